#!/usr/bin/env bash
# Puts the program with everything that it needs into one directory: deploy/venv.sh PYTHON DIR FINAL_DIR
# It is built in DIR and runs as FINAL_DIR, because packages and images are not built where they run. Only PYTHON must be
# there again. Versions and hashes are those of requirements.lock and requirements-build.lock.
set -euo pipefail
python=$1 target=$2 final=$3
cd "$(dirname "$0")/.."

# Built beside the present directory, and moved into its place when it is complete: a running daemon still imports from it.
dir=$target.new
rm -rf "$dir"
trap 'rm -rf "$dir"' EXIT
"$python" -m venv "$dir"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
# What is executed in a build has hashes, too: pip would fetch the newest build tools without. So they come first.
install() { "$dir/bin/python" -m pip install --quiet --no-compile --no-deps --require-hashes "$@"; }
install --only-binary :all: -r requirements-build.lock
# Debug information, which strip removes below, would leave the name of a temporary directory in the build ID.
export CFLAGS="${CFLAGS:-} -g0"
install --use-pep517 --no-build-isolation -r requirements.lock

site=$("$dir/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
cp -R kubeproxy "$site/"
# A compiler that refuses them is no reason to have no kubeproxy.
PYTHONHASHSEED=0 "$dir/bin/python" deploy/compile.py "$site/kubeproxy/compiled" >"$dir/log" 2>&1 || {
  rm -rf "$site/kubeproxy/compiled"
  tail -n 20 "$dir/log" >&2
  echo "install: the byte path could not be compiled (above), and runs from its sources" >&2
}
"$dir/bin/python" -m pip uninstall --quiet --yes \
  mypy ast-serialize librt mypy-extensions pathspec wheel packaging setuptools pip 2>/dev/null
rm "$dir/log"
find "$site" -depth -type d -name __pycache__ -exec rm -rf {} +

# Programs of the dependencies are not installed.
find "$dir/bin" -mindepth 1 ! -name 'python*' -delete
sed -i '\|^\.\./\.\./\.\./bin/|d' "$site"/*.dist-info/RECORD
while read -r script function; do
  cat >"$dir/bin/$script" <<END
#!$final/bin/python
import sys

from kubeproxy.cli.main import $function

sys.exit($function())
END
  chmod 755 "$dir/bin/$script"
done <<<'kubeproxy main
kube-proxy main_run'

sed -i '/^command = /d' "$dir/pyvenv.cfg"
# What only a compiler reads, and debug sections: two thirds of some compiled modules.
find "$site" -type f \( -name '*.pyx' -o -name '*.pxd' -o -name '*.pyi' -o -name '*.[ch]' \) -delete
if command -v strip >/dev/null; then
  find "$site" -name '*.so*' -type f -exec strip --strip-unneeded {} +
fi
# For packages and images, the same bytes from the same sources: bytecode without times, and sets of constants in one order.
# Elsewhere an edited source counts at the next start, unless it is compiled (KUBEPROXY_PURE=1).
if [ -n "${SOURCE_DATE_EPOCH:-}" ]; then mode=unchecked-hash; else mode=timestamp; fi
# Of the generated API objects, which only the process of an exec plugin imports, packages and images have the bytecode alone,
# without docstrings: 12 MB in the place of 44, and the import takes as long.
if [ -n "${SOURCE_DATE_EPOCH:-}" ]; then
  generated=("$site"/kubernetes_asyncio/client/{models,api})
  PYTHONHASHSEED=0 "$dir/bin/python" -m compileall -q -j 0 -b -o 2 --invalidation-mode "$mode" -s "$dir" -p "$final" "${generated[@]}"
  find "${generated[@]}" -name '*.py' -delete
fi
# Nothing imports the lexers, 4 MB.
PYTHONHASHSEED=0 "$dir/bin/python" -m compileall -q -j 0 --invalidation-mode "$mode" -s "$dir" -p "$final" \
  -x '/pygments/lexers/[a-z]' "$site"
chmod -R u=rwX,go=rX "$dir"

rm -rf "$target.old"
[ ! -e "$target" ] || mv "$target" "$target.old"
mv "$dir" "$target"
rm -rf "$target.old"
