#!/bin/sh
# The first process of the lab's machine. It sets the system up, runs the task, and reports the exit
# status of the task.
export PATH=/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin HOME=/tmp TERM=linux
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm /dev/lab /proc /sys /tmp /results
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devpts devpts /dev/pts
mount -t tmpfs tmp /tmp
mount -t tmpfs shm /dev/shm
ip link set lo up

# For each port that leads to the host, makes a link in /dev/lab. The link has the port's name.
for port in /sys/class/virtio-ports/*; do
    ln -s "/dev/${port##*/}" "/dev/lab/$(cat "$port/name")"
done
exec >/dev/lab/output 2>&1

# ends_with LINE: hands the results to the host, and then the line that says how the machine ended.
# The host stops QEMU when it has read the line.
ends_with() {
    tar -c -C /results . >/dev/lab/results
    sync
    echo "$1" >/dev/lab/control
    while :; do sleep 60; done
}
finish() { ends_with "exit $1"; }

# not_ready REASON: reports that the machine lacks something that the task needs, instead of running
# the task.
not_ready() {
    echo "$1; the kernel says:"
    dmesg | tail -n 40
    ends_with "not ready"
}

# load MODULE: loads a module as modprobe would, with its parameters from the kernel's command line.
load() {
    name=$(basename "$1" .ko)
    insmod "$1" $(tr ' ' '\n' </proc/cmdline | sed -n "s/^${name#*-}\.//p")
}
for module in /lab/modules/*.ko /lab/network/*.ko; do
    [ ! -e "$module" ] || load "$module" || not_ready "$module can't be loaded"
done
if [ -e /lab/network ]; then
    ip link set eth0 up && ip address add 10.0.2.15/24 dev eth0 || not_ready "the network can't be set up"
fi

# The kernel finds controllers in no fixed order. So each namespace is found by the serial number of
# its controller, which is the namespace's name.
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
        [ $tries -le 600 ] || not_ready "there is no namespace $name"
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
