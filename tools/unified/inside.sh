#!/bin/bash
# Prepares the system as an init would, runs the command in a control group of its own, and ends the machine.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=1777 tmpfs /dev/shm 2>/dev/null || { mkdir -p /dev/shm && mount -t tmpfs -o mode=1777 tmpfs /dev/shm; }
mkdir -p /dev/pts && mount -t devpts -o gid=5,mode=620,ptmxmode=666 devpts /dev/pts
ln -sfn /proc/self/fd /dev/fd
mount -t cgroup2 -o nsdelegate cgroup2 /sys/fs/cgroup
. /mnt/ours/order
mkdir -p /mnt/directory
mount --bind "$DIRECTORY" /mnt/directory
# Places where programs make file systems or overlays of their own are folders of the disk, not of the overlay.
for place in /tmp /var/lib /var/tmp; do
    mkdir -p "/mnt/disk/places$place"
    case $place in /var/lib) cp -a /var/lib/. "/mnt/disk/places$place" 2>/dev/null ;; *) chmod 1777 "/mnt/disk/places$place" ;; esac
    mount --bind "/mnt/disk/places$place" "$place"
done
[ -d "$DIRECTORY" ] || { mkdir -p "$DIRECTORY" && mount --bind /mnt/directory "$DIRECTORY"; } # below one of them
mkdir -p /lib/modules
mount --bind /mnt/ours/modules /lib/modules
hostname unified
ip link set lo up
if [ -n "$ADDRESS" ]; then
    ip address add "$ADDRESS" dev eth0
    ip link set eth0 up
    ip route add default via "$GATEWAY"
    echo 1 >/proc/sys/net/ipv4/ip_forward
fi
modprobe br_netfilter
grep -q "QEMU TCG" /proc/cpuinfo && export BACKENDAI_KUBE_SLOWNESS=10
mkdir -p /sys/fs/cgroup/tests
echo $$ >/sys/fs/cgroup/tests/cgroup.procs
# As systemd does for its services: controllers are there for the children of the root.
for controller in $(cat /sys/fs/cgroup/cgroup.controllers); do echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control; done
bash -c "$COMMAND" </dev/null
echo "exit status $?" >/dev/ttyS1
sync
echo o >/proc/sysrq-trigger
sleep 10
