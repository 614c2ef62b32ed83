#!/usr/bin/env bash
# Installs on a host, for systemd: deploy/install.sh install|uninstall, with DESTDIR=, PREFIX= and PYTHON= as in make.
# With DESTDIR it writes below that directory alone, for packages. uninstall keeps /etc/kubeproxy.
set -euo pipefail
cd "$(dirname "$0")/.."
destdir=${DESTDIR:-} prefix=${PREFIX:-/usr/local}
lib=$prefix/lib/kubeproxy
# systemd reads units of packages from one directory; those of a local prefix belong beside the administrator's own.
case $prefix in
  /usr) units=/usr/lib/systemd/system ;;
  *) units=/etc/systemd/system ;;
esac
alive() { [ -z "$destdir" ] && [ -d /run/systemd/system ]; }

say() { echo "$1: $2"; }

find_python() {
  local candidate
  # The system's own Python first: a service with ProtectHome= cannot use one below /root or /home.
  for candidate in ${PYTHON:-/usr/bin/python3 python3}; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      "$candidate" -c 'import sys; print(sys.executable)'
      return
    fi
  done
  say install "no Python 3.11 or newer with venv was found (${PYTHON:-/usr/bin/python3, python3}); install it, or set PYTHON=" >&2
  [ -e /etc/debian_version ] && say install "on Debian and Ubuntu: apt-get install python3-venv python3-dev gcc libc6-dev nftables iptables" >&2
  return 1
}

install_all() {
  local python
  python=$(find_python)
  case $(readlink -f "$python") in
    /root/* | /home/*) say install "$python is below a home directory, which the service does not see; set PYTHON=" >&2; exit 1 ;;
  esac
  PATH="$PATH:/usr/sbin:/sbin" command -v nft >/dev/null \
    || say install "nft is not there yet: kubeproxy needs the package nftables (or iptables) to run" >&2
  [ -z "$destdir" ] && [ "$(id -u)" != 0 ] && { say install "needs root, or DESTDIR="; exit 1; } >&2

  mkdir -p "$destdir$prefix/bin" "$destdir$prefix/lib"
  bash deploy/venv.sh "$python" "$destdir$lib" "$lib"
  ln -sfn ../lib/kubeproxy/bin/kubeproxy "$destdir$prefix/bin/kubeproxy"
  ln -sfn ../lib/kubeproxy/bin/kube-proxy "$destdir$prefix/bin/kube-proxy"

  mkdir -p "$destdir$units"
  local unit
  for unit in kubeproxy.service kubeproxy-controllers.service; do
    sed "s|@PREFIX@|$prefix|" "systemd/$unit" >"$destdir$units/$unit"
    chmod 644 "$destdir$units/$unit"
  done
  install -D -m 644 systemd/kubeproxy.sysusers "$destdir/usr/lib/sysusers.d/kubeproxy.conf"
  install -D -m 644 systemd/kubeproxy.tmpfiles "$destdir/usr/lib/tmpfiles.d/kubeproxy.conf"
  if [ -e docs/kubeproxy.8 ]; then
    install -D -m 644 docs/kubeproxy.8 "$destdir$prefix/share/man/man8/kubeproxy.8"
  fi

  local file
  for file in config.yaml environment manifests/example.yaml.disabled; do
    if [ -e "$destdir/etc/kubeproxy/$file" ]; then
      say kept "$destdir/etc/kubeproxy/$file"
    else
      install -D -m 644 "systemd/etc/$file" "$destdir/etc/kubeproxy/$file"
    fi
  done

  if alive; then
    systemd-sysusers kubeproxy.conf
    systemd-tmpfiles --create kubeproxy.conf
    systemctl daemon-reload
  fi
  say installed "$destdir$prefix/bin/kubeproxy, $destdir$units/kubeproxy.service"
  [ -n "$destdir" ] || say next "edit /etc/kubeproxy/config.yaml, then: systemctl enable --now kubeproxy"
}

uninstall_all() {
  local unit
  for unit in kubeproxy.service kubeproxy-controllers.service; do
    if alive && systemctl cat "$unit" >/dev/null 2>&1; then
      systemctl disable --now "$unit" || true
    fi
  done
  if [ -z "$destdir" ] && [ -x "$lib/bin/kubeproxy" ]; then
    "$lib/bin/kubeproxy" cleanup
  fi
  rm -rf "$destdir$lib"
  rm -f "$destdir$prefix/bin/kubeproxy" "$destdir$prefix/bin/kube-proxy" "$destdir$units/kubeproxy.service" \
    "$destdir$units/kubeproxy-controllers.service" \
    "$destdir/usr/lib/sysusers.d/kubeproxy.conf" "$destdir/usr/lib/tmpfiles.d/kubeproxy.conf" \
    "$destdir$prefix/share/man/man8/kubeproxy.8"
  if alive; then
    systemctl daemon-reload
  fi
  say uninstalled "$destdir$prefix/bin/kubeproxy; $destdir/etc/kubeproxy stays"
}

case ${1:-} in
  install) install_all ;;
  uninstall) uninstall_all ;;
  *) echo "usage: $0 install|uninstall" >&2; exit 64 ;;
esac
