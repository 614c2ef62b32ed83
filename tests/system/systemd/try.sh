#!/usr/bin/env bash
# The service under a real systemd: bash tests/system/systemd/try.sh, as root on Debian (debootstrap, systemd-container), about
# three minutes. Makes a Debian in a temporary directory, installs there, and boots it in a container with a network of its
# own; guest.sh is what happens inside. Exit status 0 if everything held.
set -euo pipefail
cd "$(dirname "$0")/../.."
for need in debootstrap systemd-nspawn; do
  command -v "$need" >/dev/null || { echo "try: $need is missing: apt-get install debootstrap systemd-container" >&2; exit 1; }
done
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
echo "try: making a Debian in $root"
debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus,python3,nftables,iptables,iproute2,procps \
  bookworm "$root/os" http://deb.debian.org/debian >"$root/log" || { tail -20 "$root/log"; exit 1; }
make --no-print-directory install DESTDIR="$root/os" PYTHON=/usr/bin/python3
mv "$root/os/etc/kubeproxy/manifests/example.yaml.disabled" "$root/os/etc/kubeproxy/manifests/example.yaml"
cp tests/system/systemd/guest.sh "$root/os/root/guest.sh"
cat >"$root/os/etc/systemd/system/try.service" <<END
[Unit]
After=systemd-sysusers.service systemd-tmpfiles-setup.service
[Service]
Type=oneshot
ExecStart=/bin/bash -c "exec bash /root/guest.sh >/root/guest.log 2>&1"
ExecStopPost=/bin/systemctl poweroff --force --force
[Install]
WantedBy=multi-user.target
END
mkdir -p "$root/os/etc/systemd/system/multi-user.target.wants"
ln -s ../try.service "$root/os/etc/systemd/system/multi-user.target.wants/try.service"
echo "try: booting it"
timeout 240 systemd-nspawn --quiet --register=no --keep-unit --private-network --directory="$root/os" --boot \
  >"$root/boot.log" 2>&1 || tail -5 "$root/boot.log"
cat "$root/os/root/guest.log"
tail -1 "$root/os/root/guest.log" | grep -qx "all held"
