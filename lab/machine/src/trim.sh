#!/bin/sh
# fio writes and trims random blocks of emulated drives. The drives differ in their spare NAND, in
# the share of trims, and in how the collector chooses its victims. On each drive, fio runs several
# times; such a run is a window. After each window, prints: row DRIVE WRITES TRIMS UNITS UNITS_FREE
# MAPPED_BYTES HOST_BYTES MEDIA_BYTES. WRITES and TRIMS are counted in sectors that the kernel sent;
# `slimio drive stats` reports the other numbers.
. lab-test
. lab-fabrics

load_modules
ip link set lo mtu 65536

# field NAME: prints a number from the drive's statistics. If several fields have this name, prints
# the first one, which belongs to the whole drive. The others belong to single handles.
field() { grep -o "\"$1\":[0-9]*" /tmp/stats | head -n 1 | cut -d: -f2; }

row() {
    slimio drive stats --json >/tmp/stats
    # In the file `stat`, the 7th field counts sectors written, and the 14th sectors discarded.
    # After `set`, they are $8 and $15.
    set -- "$1" $(cat "/sys/block/$2/stat")
    echo "row $1 $8 ${15} $(field units) $(field units_free) $(field mapped_bytes) $(field host_bytes) $(field media_bytes)"
}

# window COUNT: writes as much as COUNT times the capacity, and trims meanwhile. fio takes a random
# seed each time. With seeds such as 1, 2, 3, the blocks that it draws in different windows are not
# independent, and the measured write amplification is lower.
window() {
    fio --filename="$block" --bs=4k --direct=1 --ioengine=libaio --norandommap --randrepeat=0 --thread \
        --flow_id=1 --exitall --output-format=terse \
        --name=write --rw=randwrite --iodepth=16 --flow=100 --size="${size_mib}M" --io_size="$((size_mib * $1))M" \
        --name=trim --rw=randtrim --flow="$trims" --size="${size_mib}M" --time_based --runtime=1h >/results/fio.log 2>&1
}

number=0
for point in $points; do
    number=$((number + 1))
    spare=${point%%:*}
    trims=${point#*:}
    trims=${trims%%:*}
    rm -f /tmp/drive*
    slimio drive serve "emulated:/tmp/drive,size=${size_mib}M,ru=${unit_kib}k,spare=$spare%,fdp=off,victims=${point##*:},background=0,timing=none" \
        >/results/drive.log 2>&1 &
    found() { nvme discover -t tcp -a 127.0.0.1 -s 4420 >/tmp/found 2>&1; }
    until_true found
    nqn=$(sed -n 's/^subnqn: *//p' /tmp/found | grep -v '^nqn.2014-08.org.nvmexpress.discovery' | head -n 1)
    connect "$nqn" 127.0.0.1 4420
    block=$(block_of "$(device_of "$nqn")")
    dd if=/dev/urandom of="$block" bs=1M count=$size_mib oflag=direct 2>/dev/null
    window "$settle"
    row "$number" "${block#/dev/}"
    window=0
    while [ $window -lt "$windows" ]; do
        window=$((window + 1))
        window "$writes"
        row "$number" "${block#/dev/}"
    done
    nvme disconnect -n "$nqn" >/results/nvme.log
    kill "$(pidof slimio)"
    until_true fails pidof slimio
done
