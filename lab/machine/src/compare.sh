#!/bin/sh
# Runs stock Redis and SlimIO in turn on one namespace, in several rounds, under `appendfsync
# always`. Prints:
# row NAME CLIENTS WRITES_PER_SECOND P50_US SERVER_CPU_US SWITCHES, in each round
# calls NAME CLIENTS CALLS COMMANDS WRITES, in each round
# functions NAME FUNCTIONS WRITES, in the first round
# snapshot NAME SECONDS, in the first $snapshot_rounds rounds
# For each way to write and each round, the script leaves a trace in /results/WAY.ROUND.trace. The
# number of calls of each kernel function is in /results/NAME.functions.
. lab-test

block=$SLIMIO_NVME_PLAIN_BLOCK
generic=$SLIMIO_NVME_PLAIN
tracing=/sys/kernel/tracing
calls=$tracing/events/raw_syscalls/sys_enter
commands=$tracing/events/block/block_rq_issue

answers() { [ "$(redis-cli PING)" = PONG ]; }
dead() { ! kill -0 "$server" 2>/dev/null; }

# load CLIENTS SECONDS: runs a load. Tries at most three times, because the host may stall.
load() {
    for try in 1 2 3; do
        slimio-lab load --clients "$1" --value-size 100 --keys 10000 --warmup 0.3 \
            --seconds "$2" --server-pid "$server" >/tmp/load && return 0
    done
    return 1
}
value() { sed -n "s|^$1  *\([0-9.]*\).*|\1|p" /tmp/load; }

# hits EVENT PATTERN: sums the counts of the lines in the event's histogram that match the pattern.
hits() { sed -n "s/.*$2.*hitcount: *\([0-9]*\).*/\1/p" "$1/hist" | awk '{ sum += $1 } END { print sum + 0 }'; }

calls_of_server() {
    for task in "/proc/$server/task"/*; do
        hits $calls "common_pid: *${task##*/} "
    done | awk '{ sum += $1 } END { print sum + 0 }'
}

# measure NAME CLIENTS WRITES: measures a load, then counts the server's system calls and the
# device's commands during WRITES requests.
measure() {
    load "$2" "$load_seconds" || return 1
    echo "row $1 $2 $(value requests/s) $(value 'p50 us') $(value 'server CPU us/request')" \
        "$(value 'server switches/request')"
    # The counts are of a separate load, because counting slows the server down.
    echo 'hist:keys=common_pid' >$calls/trigger
    echo 'hist:keys=dev' >$commands/trigger
    slimio-lab load --clients "$2" --value-size 100 --keys 10000 --warmup 0 \
        --requests "$3" >/tmp/load &&
        echo "calls $1 $2 $(calls_of_server) $(hits $commands dev) $(value requests)"
    echo '!hist:keys=common_pid' >$calls/trigger
    echo '!hist:keys=dev' >$commands/trigger
}

# profile NAME: counts the server's calls of each kernel function during 100 requests of a lone
# client.
profile() {
    echo >$tracing/trace
    ls "/proc/$server/task" >$tracing/set_ftrace_pid
    echo function >$tracing/current_tracer
    slimio-lab load --clients 1 --value-size 100 --keys 10000 --warmup 0 --requests 100 >/tmp/load
    echo 0 >$tracing/tracing_on
    awk '$NF ~ /^<-/ { count[$(NF - 1)]++ } END { for (name in count) print count[name], name }' \
        $tracing/trace >/results/"$1".functions
    echo nop >$tracing/current_tracer
    echo >$tracing/set_ftrace_pid
    echo 1 >$tracing/tracing_on
    echo "functions $1 $(awk '{ sum += $1 } END { print sum + 0 }' /results/"$1".functions) $(value requests)"
}

# start NAME COMMAND…: starts a server, and waits until the server answers.
start() {
    name=$1
    shift
    "$@" >/results/"$name".log 2>&1 &
    server=$!
    until_true answers
}

stop() {
    kill -9 $server
    wait $server 2>/dev/null
    until_true dead
    clear_namespace
}

clear_namespace() {
    umount /mnt 2>/dev/null
    blkdiscard -f "$block" 2>/dev/null || dd if=/dev/zero of="$block" bs=1M count=16 2>/dev/null
}

on_ext4() { mkfs.ext4 -qF "$block" && mount "$block" /mnt; }
on_xfs() { mkfs.xfs -qf "$block" && mount "$block" /mnt; }
formatted() { slimio format --force --volume "$1" >/dev/null; }
redis_always() {
    exec redis-server --port 6379 --dir /mnt --appendonly yes --appendfsync always --save ''
}

# serve CONTENDER: formats the namespace for the contender and starts the contender.
serve() {
    case $1 in
    stock-ext4) on_ext4 && start "$1" redis_always ;;
    stock-xfs) on_xfs && start "$1" redis_always ;;
    slimio-ext4) on_ext4 && start "$1" slimio serve --volume /mnt/volume --appendfsync always ;;
    slimio-block)
        formatted "$block" && start "$1" slimio serve --volume "$block" --volume-passthrough no \
            --appendfsync always --enable-debug-command local
        ;;
    slimio-passthrough)
        formatted "$generic" && start "$1" slimio serve --volume "$generic" --appendfsync always \
            --enable-debug-command local
        ;;
    esac
}

# snapshot NAME: prints how many seconds a snapshot of uncompressed values takes.
snapshot() {
    redis-cli CONFIG SET rdbcompression no >/dev/null
    # Keeps the server from taking a snapshot by itself meanwhile.
    redis-cli CONFIG SET auto-aof-rewrite-percentage 0 >/dev/null
    redis-cli DEBUG POPULATE "$snapshot_keys" key 4096 >/dev/null
    [ "$(redis-cli DBSIZE)" = "$snapshot_keys" ] || return 1
    # The time of the second snapshot counts, because the first one writes to blocks that were never
    # written before.
    for try in first second; do
        began=$(cut -d' ' -f1 /proc/uptime)
        redis-cli BGSAVE >/dev/null
        until_saved || return 1
        ended=$(cut -d' ' -f1 /proc/uptime)
    done
    redis-cli INFO slimio | grep -q snapshot_saves_complete:2 || return 1
    echo "snapshot $1 $(awk "BEGIN { print $ended - $began }")"
}
until_saved() {
    tries=0
    until redis-cli INFO persistence | grep -q rdb_bgsave_in_progress:0; do
        tries=$((tries + 1))
        [ $tries -lt 3000 ] || return 1
        sleep 0.02
    done
}

# trace WAY PATH: writes to PATH in the way WAY, and records the requests that reach the device,
# with their times.
trace() {
    echo >$tracing/trace
    for event in issue complete; do echo 1 >$tracing/events/block/block_rq_$event/enable; done
    write_time "$1" "$2" "$traced_writes" $tracing/trace_marker >/results/"$1".log 2>&1
    for event in issue complete; do echo 0 >$tracing/events/block/block_rq_$event/enable; done
    grep -E 'block_rq_|tracing_mark_write' $tracing/trace >/results/"$1.$round.trace"
}

mount -t tracefs trace $tracing
echo mono >$tracing/trace_clock
echo 8192 >$tracing/buffer_size_kb
for module in /lab/optional/*.ko; do insmod "$module"; done

contenders='stock-ext4 stock-xfs slimio-ext4 slimio-block slimio-passthrough'
round=0
while [ $round -lt "$rounds" ]; do
    round=$((round + 1))
    echo "round $round of $rounds"
    for contender in $contenders; do
        serve $contender && measure $contender 50 5000 && measure $contender 1 500 &&
            { [ $round -gt 1 ] || profile $contender; }
        stop
    done
    on_ext4 && trace append /mnt/append && trace preallocated /mnt/preallocated
    clear_namespace
    trace block "$block"
    trace passthrough "$generic"
    for contender in slimio-block slimio-passthrough; do
        [ $round -gt "$snapshot_rounds" ] || {
            serve $contender && snapshot $contender
            stop
        }
    done
    # The next round starts with the next contender.
    contenders="${contenders#* } ${contenders%% *}"
done
