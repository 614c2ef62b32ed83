#!/usr/bin/env bash
# The service under a real systemd: bash tests/system/systemd/try.sh [install|deb|readme], as root on Debian (debootstrap,
# systemd-container), about three minutes. Makes a Debian in a temporary directory, and boots it in a container with a
# network of its own. Exit status 0 if everything held.
#
#   install   what `make install` puts there; guest.sh is what happens inside
#   deb       the package of `make deb`, installed, upgraded, rolled back, removed and purged by dpkg; guest-deb.sh
#   readme    the README, followed by a new user: its packages, make install, a change, make upgrade; guest-readme.sh
#   BASE=DIR  a directory with such a Debian, to be copied instead of made
set -euo pipefail
cd "$(dirname "$0")/../../.."
way=${1:-install}
case $way in
  install) guest=guest.sh ;;
  deb) guest=guest-deb.sh ;;
  readme) guest=guest-readme.sh ;;
  *) sed -n '2s/^# //p' "$0" >&2; exit 64 ;;
esac
for need in debootstrap systemd-nspawn; do
  command -v "$need" >/dev/null || { echo "try: $need is missing: apt-get install debootstrap systemd-container" >&2; exit 1; }
done
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
if [ -n "${BASE:-}" ]; then
  cp -a "$BASE" "$root/os"
else
  echo "try: making a Debian in $root"
  debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus,python3,nftables,iptables,iproute2,procps \
    bookworm "$root/os" http://deb.debian.org/debian >"$root/log" || { tail -20 "$root/log"; exit 1; }
fi
case $way in
  install)
    make --no-print-directory install DESTDIR="$root/os" PYTHON=/usr/bin/python3
    mv "$root/os/etc/kubeproxy/manifests/example.yaml.disabled" "$root/os/etc/kubeproxy/manifests/example.yaml"
    ;;
  deb)
    # The next version is the same program under another number: what is tried is the way from one to the other.
    bash deploy/build-deb.sh "$root"
    this=$(echo "$root"/kubeproxy_*.deb)
    dpkg-deb -R "$this" "$root/next"
    version=$(sed -n 's/^Version: //p' "$root/next/DEBIAN/control")
    sed -i "s/^Version: .*/Version: $version+next/" "$root/next/DEBIAN/control"
    sed -i 's/^__version__ = "\(.*\)"/__version__ = "\1+next"/' "$root"/next/usr/lib/kubeproxy/lib/python3*/site-packages/kubeproxy/model/version.py
    mv "$this" "$root/os/root/this.deb"
    dpkg-deb --root-owner-group -b "$root/next" "$root/os/root/next.deb" >/dev/null
    ;;
  readme)
    # The container has no way out: its packages are fetched before it is booted, by the README's own command.
    needed=$(sed -n 's/^sudo apt-get install //p' README.md)
    echo "try: installing $needed"
    chroot "$root/os" sh -c "apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $needed" \
      >"$root/log" 2>&1 || { tail -20 "$root/log"; exit 1; }
    mkdir -p "$root/os/root/kubeproxy" "$root/os/root/wheels"
    git ls-files -z | tar -c --null -T - | tar -x -C "$root/os/root/kubeproxy"
    python3 -m pip download --quiet --no-deps --dest "$root/os/root/wheels" -r requirements.lock -r requirements-build.lock \
      >"$root/log" 2>&1 || { tail -20 "$root/log"; exit 1; }
    printf '[global]\nno-index = true\nfind-links = /root/wheels\n' >"$root/os/etc/pip.conf"
    ;;
esac
cp tests/system/systemd/$guest tests/system/systemd/host.sh "$root/os/root/"
cat >"$root/os/etc/systemd/system/try.service" <<END
[Unit]
After=systemd-sysusers.service systemd-tmpfiles-setup.service
[Service]
Type=oneshot
ExecStart=/bin/bash -c "exec bash /root/$guest >/root/guest.log 2>&1"
ExecStopPost=/bin/systemctl poweroff --force --force
[Install]
WantedBy=multi-user.target
END
mkdir -p "$root/os/etc/systemd/system/multi-user.target.wants"
ln -s ../try.service "$root/os/etc/systemd/system/multi-user.target.wants/try.service"
echo "try: booting it"
timeout 480 systemd-nspawn --quiet --register=no --keep-unit --private-network --directory="$root/os" --boot \
  >"$root/boot.log" 2>&1 || tail -5 "$root/boot.log"
cat "$root/os/root/guest.log"
tail -1 "$root/os/root/guest.log" | grep -qx "all held"
