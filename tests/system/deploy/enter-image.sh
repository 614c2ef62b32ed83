#!/bin/sh
# A program of an image, as a pod would run it: enter-image.sh ROOTFS MOUNT CAPABILITIES COMMAND...
# Its file system read-only but for /tmp and /run, MOUNT at /mnt, root with these capabilities and no other. To be run in
# a mount namespace of its own (unshare --mount).
set -e
root=$1 volume=$2 capabilities=$3
shift 3
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t tmpfs tmpfs "$root/tmp"
mount -t tmpfs tmpfs "$root/run"
mount --bind "$volume" "$root/mnt"
exec env -i PATH=/opt/kubeproxy/bin:/usr/sbin:/usr/bin:/sbin:/bin PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 \
  chroot "$root" setpriv --no-new-privs --inh-caps=-all --bounding-set="-all,$capabilities" "$@"
