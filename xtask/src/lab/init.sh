#!/bin/sh
# The first process of the lab's machine. Sets the scene, runs what it was told, says how it ended.
export PATH=/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin HOME=/tmp TERM=linux
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm /dev/lab /proc /sys /tmp /results
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devpts devpts /dev/pts
mount -t tmpfs tmp /tmp
mount -t tmpfs shm /dev/shm
ip link set lo up

# The ports to the host, by name.
for port in /sys/class/virtio-ports/*; do
    ln -s "/dev/${port##*/}" "/dev/lab/$(cat "$port/name")"
done
exec >/dev/lab/output 2>&1

finish() {
    tar -c -C /results . >/dev/lab/results
    sync
    # The host takes the power away when it has read this.
    echo "exit $1" >/dev/lab/control
    while :; do sleep 60; done
}

for module in /lab/modules/*.ko; do
    [ ! -e "$module" ] || insmod "$module" || finish 125
done

# A controller's serial number is the name of its namespace, and the order in which the kernel finds
# controllers is its own.
for name in $(cat /lab/namespaces); do
    generic=
    tries=0
    while [ -z "$generic" ]; do
        for found in /sys/class/nvme-generic/ng*; do
            [ "$(cat "$found/device/serial" 2>/dev/null | tr -d ' ')" = "$name" ] || continue
            generic=/dev/${found##*/}
        done
        [ -n "$generic" ] || sleep 0.1
        tries=$((tries + 1))
        if [ $tries -gt 200 ]; then
            echo "the kernel shows no namespace $name"
            finish 125
        fi
    done
    export "SLIMIO_NVME_$name=$generic"
    export "SLIMIO_NVME_${name}_BLOCK=/dev/nvme${generic#/dev/ng}"
done

if [ -e /lab/shell ]; then
    cat /lab/welcome >/dev/hvc0
    cd /tmp && setsid cttyhack sh -l </dev/hvc0 >/dev/hvc0 2>&1
    finish 0
fi
cd /tmp
sh /lab/run </dev/null
finish $?
