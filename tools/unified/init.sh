#!/bin/busybox sh
# The first process of the machine: it mounts this machine's files, read-only, below a disk of its own, and runs `inside.sh` there.
/bin/busybox mkdir -p /proc /sys /dev /host /disk /merged
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sysfs /sys
/bin/busybox mount -t devtmpfs devtmpfs /dev
echo running >/dev/ttyS1
for module in $(/bin/busybox cat /modules/order); do /bin/busybox insmod "/modules/$module" || /bin/busybox echo "no module $module"; done
/bin/busybox mount -t virtiofs -o ro host /host || /bin/busybox poweroff -f
/bin/busybox mount -t ext4 /dev/vda /disk || /bin/busybox poweroff -f
/bin/busybox mkdir -p /disk/upper /disk/work
/bin/busybox mount -t overlay -o lowerdir=/host,upperdir=/disk/upper,workdir=/disk/work overlay /merged || /bin/busybox poweroff -f
for place in proc sys dev; do /bin/busybox mount --move "/$place" "/merged/$place"; done
/bin/busybox mkdir -p /merged/run /merged/mnt/disk
/bin/busybox mount --move /disk /merged/mnt/disk
/bin/busybox mkdir -p /merged/mnt/ours
/bin/busybox mount --bind /host/run/unified /merged/mnt/ours
exec /bin/busybox switch_root /merged /bin/bash /mnt/ours/inside.sh
