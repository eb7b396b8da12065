#!/bin/sh
# Runs in a virtual machine. Asks the machine's host for something, such as `lab fail PLAIN write`,
# and waits until the host has done it.
exec 3<>/dev/lab/control
echo "$*" >&3
read -r answer <&3
[ "$answer" = ok ] && exit 0
echo "lab $*: $answer" >&2
exit 1
