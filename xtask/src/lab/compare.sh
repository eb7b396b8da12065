#!/bin/sh
# Stock Redis and SlimIO on one namespace, one after the other, under `always`. A line for each:
# row NAME CLIENTS REQUESTS_PER_SECOND CPU_MICROSECONDS_PER_WRITE SYSTEM_CALLS_PER_WRITE
. lab-test

block=$SLIMIO_NVME_PLAIN_BLOCK
generic=$SLIMIO_NVME_PLAIN
trigger=/sys/kernel/tracing/events/raw_syscalls/sys_enter/trigger
hist=/sys/kernel/tracing/events/raw_syscalls/sys_enter/hist

answers() { [ "$(redis-cli PING)" = PONG ]; }
dead() { ! kill -0 "$server" 2>/dev/null; }

# Processor time of the server so far, in microseconds.
cpu_us() { awk '{ print ($14 + $15) * 10000 }' "/proc/$server/stat"; }

# System calls of all threads of the server since counting began.
calls() {
    for task in "/proc/$server/task"/*; do
        sed -n "s/.*common_pid: *${task##*/} .*hitcount: *\([0-9]*\).*/\1/p" $hist
    done | awk '{ sum += $1 } END { print sum + 0 }'
}

load() { slimio-bench load --clients "$1" --value-size 100 --keys 10000 --warmup 0 --seconds "$2"; }
value() { sed -n "s|^$1  *\([0-9.]*\).*|\1|p" /tmp/load; }

measure() {
    load "$2" 1 >/dev/null || return 1
    before=$(cpu_us)
    load "$2" 5 >/tmp/load || return 1
    after=$(cpu_us)
    rate=$(value requests/s)
    # Counting costs time, so it has a load of its own.
    echo 'hist:keys=common_pid' >$trigger
    load "$2" 2 >/tmp/load || return 1
    counted=$(calls)
    echo '!hist:keys=common_pid' >$trigger
    awk -v name="$1" -v clients="$2" -v rate="$rate" -v cpu=$((after - before)) \
        -v calls="$counted" -v counted="$(value requests/s)" \
        'BEGIN { printf "row %s %d %.0f %.0f %.2f\n", name, clients, rate, cpu / (rate * 5), calls / (counted * 2) }'
}

# serve_and_measure NAME COMMAND…
serve_and_measure() {
    name=$1
    shift
    "$@" >/results/"$name".log 2>&1 &
    server=$!
    until_true answers || return 1
    measure "$name" 50 && measure "$name" 1
    kill -9 $server
    wait $server 2>/dev/null
    until_true dead
    umount /mnt 2>/dev/null
    blkdiscard -f "$block" 2>/dev/null || dd if=/dev/zero of="$block" bs=1M count=16 2>/dev/null
}

redis_always() {
    exec redis-server --port 6379 --dir /mnt --appendonly yes --appendfsync always --save ''
}

mount -t tracefs trace /sys/kernel/tracing
for module in /lab/optional/*.ko; do insmod "$module"; done

mkfs.ext4 -qF "$block" && mount "$block" /mnt && serve_and_measure stock-ext4 redis_always
mkfs.xfs -qf "$block" && mount "$block" /mnt && serve_and_measure stock-xfs redis_always
mkfs.ext4 -qF "$block" && mount "$block" /mnt &&
    serve_and_measure slimio-ext4 slimio serve --volume /mnt/volume --appendfsync always
slimio format --force --volume "$block" &&
    serve_and_measure slimio-block slimio serve --volume "$block" --volume-passthrough no --appendfsync always
slimio format --force --volume "$generic" &&
    serve_and_measure slimio-passthrough slimio serve --volume "$generic" --appendfsync always
