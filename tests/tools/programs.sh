#!/usr/bin/env bash
# Fetches the programs that some tests put their questions to: bash tests/tools/programs.sh DIR [full]
# As root on Debian and Ubuntu. Whatever cannot be had is said, and the tests that ask for it are skipped and say so.
# By default what is small and starts nothing; with `full` also HAProxy, nginx, wrk and a browser (200 MB to fetch).
set -euo pipefail
directory=$1
mkdir -p "$directory"
PATH="$(cd "$directory" && pwd):$PATH:/usr/sbin:/sbin"
have() { command -v "$1" >/dev/null; }

packages=()
have systemd-analyze || packages+=(systemd)
have groff || packages+=(groff-base)
if [ "${2-}" = full ]; then
  have haproxy || packages+=(haproxy)
  have nginx && [ -e /usr/lib/nginx/modules/ngx_stream_module.so ] || packages+=(nginx libnginx-mod-stream)
  have wrk || packages+=(wrk)
  have chromium || have chromium-browser || have google-chrome || packages+=(chromium fonts-dejavu-core)
fi
fetch_promtool=
have promtool || fetch_promtool=yes
[ -n "${packages[*]-}$fetch_promtool" ] || exit 0

# Root of a user namespace may not install anything.
if [ "$(id -u)" != 0 ] || ! have apt-get || ! grep -q ' 4294967295$' /proc/self/uid_map; then
  echo "programs: not here, the tests that need them are skipped: ${packages[*]-} ${fetch_promtool:+prometheus (promtool)}"
  exit 0
fi
echo "programs: installing ${packages[*]-} ${fetch_promtool:+promtool}"
export DEBIAN_FRONTEND=noninteractive
scratch=$(mktemp -d)
policy=/usr/sbin/policy-rc.d # Debian asks this program whether what it installs may be started
trap 'rm -rf "$scratch"; if [ -n "${ours-}" ]; then rm -f "$policy"; fi' EXIT
if [ ! -e "$policy" ]; then
  ours=yes
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
fi
{
  apt-get update -qq || true
  if [ -n "${packages[*]-}" ]; then
    timeout 300 apt-get install -y -qq --no-install-recommends "${packages[@]}" || echo "programs: cannot install ${packages[*]}" >&3
  fi
  # Only this one program: the package brings a server that would start with the machine.
  if [ -n "$fetch_promtool" ]; then
    (cd "$scratch" && timeout 120 apt-get download -qq -o APT::Sandbox::User=root prometheus && dpkg-deb -x prometheus_*.deb .) \
      && cp "$scratch/usr/bin/promtool" "$directory/" || echo "programs: cannot fetch promtool" >&3
  fi
} 3>&2 >"$directory/install.log" 2>&1
