#!/bin/sh
# Measures the emulated drive and the kernel's own target with fio, in one machine. The kernel's
# target exports a block device in memory. fio reaches both over NVMe/TCP on loopback. Prints, for
# each round: row TARGET RW DEPTH IOPS
. lab-test
. lab-fabrics

for module in /lab/optional/*.ko; do
    case $module in
    *-brd.ko) insmod "$module" rd_nr=1 rd_size=$((size_mib * 1024)) ;;
    *) insmod "$module" ;;
    esac
done
ip link set lo mtu 65536

export_device memory namespaces/1 /dev/ram0
slimio drive serve --listen 127.0.0.1:4421 "emulated:/tmp/drive,size=${size_mib}M,timing=none" >/results/drive.log 2>&1 &
found() { nvme discover -t tcp -a 127.0.0.1 -s 4421 >/tmp/found 2>&1; }
until_true found
drive=$(sed -n 's/^subnqn: *//p' /tmp/found | grep -v '^nqn.2014-08.org.nvmexpress.discovery' | head -n 1)
set -e
connect memory 127.0.0.1 4420
connect "$drive" 127.0.0.1 4421
set +e

# Writes every block first, so that no measurement meets a block that was never written.
for nqn in memory "$drive"; do
    dd if=/dev/urandom of="$(block_of "$(device_of "$nqn")")" bs=1M count=$size_mib oflag=direct 2>/dev/null
done

# measure TARGET NQN RW DEPTH: prints a row. In fio's output, field 8 has the reads per second, and
# field 49 has the writes per second.
measure() {
    iops=$(fio --name=x --filename="$(block_of "$(device_of "$2")")" --rw="$3" --bs=4k --iodepth="$4" --direct=1 \
        --ioengine=io_uring --time_based --ramp_time=1 --runtime="$seconds" --output-format=terse |
        awk -F';' -v rw="$3" '$1 == 3 { print rw == "randread" ? $8 : $49 }')
    echo "row $1 $3 $4 $iops"
}

# Measures two programs that only send each other 4 KiB in turn. No target can answer a host faster
# than these programs answer each other.
echoes() {
    both="--ioengine=net --protocol=tcp --port=5001 --bs=4k --size=100g --pingpong=1"
    fio --name=echo $both --listen --rw=read >/results/echo.log 2>&1 &
    echo=$!
    until_true grep -q ':1389 00000000:0000 0A' /proc/net/tcp
    iops=$(fio --name=x $both --hostname=127.0.0.1 --rw=write --time_based --ramp_time=1 --runtime="$seconds" \
        --output-format=terse | awk -F';' '$1 == 3 { print $49 }')
    wait $echo
    echo "row echo pingpong 1 $iops"
}

round=0
while [ $round -lt "$rounds" ]; do
    round=$((round + 1))
    echo "round $round of $rounds"
    echoes
    for rw in randread randwrite; do
        for depth in 1 32; do
            # Odd rounds begin with the drive, even rounds with the kernel's target.
            if [ $((round % 2)) = 0 ]; then
                measure memory memory $rw $depth
                measure drive "$drive" $rw $depth
            else
                measure drive "$drive" $rw $depth
                measure memory memory $rw $depth
            fi
        done
    done
done
