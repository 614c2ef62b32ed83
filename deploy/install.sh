#!/usr/bin/env bash
# Installs on a host, for systemd: deploy/install.sh install|upgrade|uninstall, with DESTDIR=, PREFIX=, PYTHON= and ALIAS= as in make.
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

# Programs of other packages have the same names, and kube-proxy's own is often in /usr/local/bin.
is_ours() { [ "$(readlink "$1")" = "../lib/kubeproxy/bin/$(basename "$1")" ]; }
is_free() { is_ours "$1" || ! { [ -e "$1" ] || [ -L "$1" ]; }; }
link() { ln -sfn "../lib/kubeproxy/bin/$1" "$destdir$prefix/bin/$1"; }
unlink_ours() { if is_ours "$1"; then rm -f "$1"; elif [ -e "$1" ] || [ -L "$1" ]; then say kept "$1, which is not kubeproxy's"; fi; }

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

  local alias=$destdir$prefix/bin/kube-proxy program=$destdir$prefix/bin/kubeproxy
  is_free "$program" || { say install "$program is another program; remove it, or choose another PREFIX="; exit 1; } >&2
  mkdir -p "$destdir$prefix/bin" "$destdir$prefix/lib"
  bash deploy/venv.sh "$python" "$destdir$lib" "$lib"
  link kubeproxy
  if [ -z "${ALIAS:-}" ]; then
    is_free "$alias" || say kept "$alias, which is not kubeproxy's"
  elif is_free "$alias"; then
    link kube-proxy
  else
    say kept "$alias, which is not kubeproxy's; remove it first if ALIAS= is to replace it" >&2
  fi

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

  complete_in_shells
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
  if alive; then
    systemctl is-active --quiet kubeproxy || say next "edit /etc/kubeproxy/config.yaml, then: systemctl enable --now kubeproxy"
  elif [ -z "$destdir" ]; then
    say next "edit /etc/kubeproxy/config.yaml, then, as no systemd runs here: kubeproxy run --config=/etc/kubeproxy/config.yaml"
  fi
}

# Where bash, zsh and fish look for completions of programs with this prefix.
completions() {
  local zsh=$prefix/share/zsh/site-functions
  [ "$prefix" != /usr ] || zsh=/usr/share/zsh/vendor-completions
  echo "bash $destdir$prefix/share/bash-completion/completions/kubeproxy"
  echo "zsh $destdir$zsh/_kubeproxy"
  echo "fish $destdir$prefix/share/fish/vendor_completions.d/kubeproxy.fish"
}

complete_in_shells() {
  local shell file
  while read -r shell file; do
    mkdir -p "$(dirname "$file")"
    "$destdir$lib/bin/python" "$destdir$lib/bin/kubeproxy" completion "$shell" >"$file"
    chmod 644 "$file"
  done < <(completions)
}

# The running daemon executes what was installed, without an end of its connections. A rollback is the same, from a
# checkout of the old version.
upgrade_all() {
  [ -z "$destdir" ] || { say upgrade "is for this host: without DESTDIR="; exit 64; } >&2
  install_all
  systemctl is-active --quiet kubeproxy || { say upgrade "kubeproxy is not running: systemctl start kubeproxy"; return; }
  local before program=$prefix/bin/kubeproxy version
  version=$("$program" --version)
  "$program" check --config=/etc/kubeproxy/config.yaml >/dev/null \
    || { say upgrade "the configuration has faults: the old program keeps serving. After mending them: systemctl kill --kill-whom=main --signal=USR2 kubeproxy"; exit 1; } >&2
  before=$(systemctl show -p MainPID --value kubeproxy)
  systemctl kill --kill-whom=main --signal=USR2 kubeproxy
  for _ in $(seq 150); do
    sleep 0.2
    case $("$program" status 2>/dev/null | head -1) in
      "$version on "*"(pid $before)") "$program" healthcheck >/dev/null 2>&1 || continue; say upgraded "$version serves, with PID $before as before"; return ;;
    esac
  done
  say upgrade "the daemon does not answer as $version after 30 s; it tells why: journalctl -u kubeproxy" >&2
  exit 1
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
  unlink_ours "$destdir$prefix/bin/kubeproxy"
  unlink_ours "$destdir$prefix/bin/kube-proxy"
  rm -f "$destdir$units/kubeproxy.service" "$destdir$units/kubeproxy-controllers.service" \
    "$destdir/usr/lib/sysusers.d/kubeproxy.conf" "$destdir/usr/lib/tmpfiles.d/kubeproxy.conf" \
    "$destdir$prefix/share/man/man8/kubeproxy.8"
  local shell file
  while read -r shell file; do rm -f "$file"; done < <(completions)
  if alive; then
    systemctl daemon-reload
  fi
  say uninstalled "$destdir$prefix/bin/kubeproxy; $destdir/etc/kubeproxy stays"
}

case ${1:-} in
  install) install_all ;;
  upgrade) upgrade_all ;;
  uninstall) uninstall_all ;;
  *) echo "usage: $0 install|upgrade|uninstall" >&2; exit 64 ;;
esac
