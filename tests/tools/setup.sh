#!/usr/bin/env bash
# Puts a ready virtual environment in place: bash tests/tools/setup.sh DIR
# As root on Debian and Ubuntu it installs the system packages that are missing; elsewhere it says which to install.
set -euo pipefail
venv=$1
python=${PYTHON:-python3}

# command to look for, package that brings it
needs=(
  "nft nftables"
  "iptables-legacy iptables"
  "conntrack conntrack"
  "ip iproute2"
  "gcc gcc"
)
missing=()
for need in "${needs[@]}"; do
  read -r command package <<<"$need"
  PATH="$PATH:/usr/sbin:/sbin" command -v "$command" >/dev/null || missing+=("$package")
done
if [ -n "${missing[*]-}" ] || ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
   || ! "$python" -c 'import venv, ensurepip, sysconfig, os; assert os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))' 2>/dev/null; then
  "$python" -c 'import venv, ensurepip' 2>/dev/null || missing+=(python3-venv)
  "$python" -c 'import sysconfig, os; assert os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))' 2>/dev/null \
    || missing+=(python3-dev libc6-dev)
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "setup: installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
  elif [ -n "${missing[*]-}" ]; then
    echo "setup: these packages are missing; install them, then run this again:" >&2
    echo "  apt-get install ${missing[*]}      (Debian, Ubuntu; other systems: the packages of the same purpose)" >&2
    exit 1
  fi
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "setup: Python 3.11 or newer is needed, found $("$python" --version); set PYTHON=" >&2
  exit 1
fi

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
export PIP_DISABLE_PIP_VERSION_CHECK=1
# What is executed in a build has hashes, too: pip would fetch the newest build tools without. So they come first.
"$venv/bin/python" -m pip install --quiet --only-binary :all: --require-hashes -r requirements-build.lock
"$venv/bin/python" -m pip install --quiet --use-pep517 --no-build-isolation --require-hashes -r requirements-dev.lock
"$venv/bin/python" -m pip install --quiet --no-deps --no-build-isolation --editable .
echo "setup: $venv is ready"
