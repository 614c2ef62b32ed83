#!/usr/bin/env bash
# Makes all files of a release, from what is committed: deploy/release.sh [DIRECTORY]    (make release; default: dist)
#
#   wheels, sdist, Debian package, chart, image (an OCI archive), SBOMs of the wheel's and the image's contents (CycloneDX),
#   SHA256SUMS; for this machine's architecture, as root
#
#   COMPARE=1   makes everything a second time, and names the files that differ
#   IMAGE=      empty: without the image, and so without buildah and debootstrap
#
# Every file has the time of the commit.
set -euo pipefail
cd "$(dirname "$0")/.."
changed=$(git status --porcelain)
[ -z "$changed" ] || { printf 'release: commit or remove these first:\n%s\n' "$changed" >&2; exit 1; }
directory=$(realpath -m "${1:-dist}")
image=${IMAGE-yes}
python=$PWD/.venv/bin/python
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' kubeproxy/model/version.py)
architecture=$(dpkg --print-architecture)
[ -x "$python" ] || { echo "release: .venv is missing: make setup" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) REVISION=$(git rev-parse --short HEAD)
export SOURCE_DATE_EPOCH
umask 022
.venv/bin/uv pip install -q --require-hashes --target "$work/syft" --python "$python" -r requirements-release.lock

# An SBOM of SOURCE in FILE, without what Syft makes anew in every run.
write_sbom() {
  PYTHONPATH=$work/syft SYFT_CHECK_FOR_APP_UPDATE=false "$python" "$work/syft/bin/syft" scan -q "$1" \
    --source-name kubeproxy --source-version "$version" -o "cyclonedx-json=$work/sbom.json"
  "$python" - "$work/sbom.json" "$2" <<'END'
import datetime, json, os, pathlib, sys

sbom = json.loads(pathlib.Path(sys.argv[1]).read_text())
del sbom["serialNumber"]
sbom["metadata"]["component"].pop("bom-ref", None)  # a hash of the directory's name
time = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
sbom["metadata"]["timestamp"] = time.isoformat()
pathlib.Path(sys.argv[2]).write_text(json.dumps(sbom, indent=1) + "\n")
END
}

make_all() {
  local to=$1 source=$work/source
  rm -rf "$source" && mkdir -p "$source" "$to"
  git archive "$REVISION" | tar -x -C "$source"
  # A wheel for every Python, and a compiled one for the Python and the architecture that make it.
  (cd "$source" && "$python" -m hatchling build -d "$to" && HATCH_BUILD_HOOK_ENABLE_CUSTOM=true PYTHONHASHSEED=0 \
    "$python" -m hatchling build -t wheel -d "$to") >"$work/log" 2>&1 || { cat "$work/log" >&2; return 1; }
  bash "$source/deploy/build-deb.sh" "$to"
  # As `helm package` makes it, with the files that the chart's links lead to.
  tar -C "$source/deploy" -ch --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
    --transform 's,^chart,kubeproxy,' chart | gzip -9n >"$to/kubeproxy-chart-$version.tgz"
  # A wheel says what it needs; which versions are tested and installed is said by the lock.
  mkdir -p "$work/wheel"
  cp "$source/requirements.lock" "$work/wheel/requirements.txt"
  write_sbom "dir:$work/wheel" "$to/kubeproxy-$version-wheel.cdx.json"
  if [ -n "$image" ]; then
    local archive=$to/kubeproxy-$version-image-$architecture.tar
    REVISION=$REVISION OUTPUT=$work/image.tar bash "$source/deploy/build-image.sh" "localhost/kubeproxy:$version"
    # Again, because buildah gives the files in the archive the time of now. Syft reads no names that begin with "./".
    rm -rf "$work/image" && mkdir "$work/image"
    tar -C "$work/image" -xf "$work/image.tar"
    tar -C "$work/image" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -cf "$archive" \
      blobs index.json oci-layout
    rm "$work/image.tar"
    write_sbom "oci-archive:$archive" "$to/kubeproxy-$version-image-$architecture.cdx.json"
  fi
  (cd "$to" && LC_ALL=C && sha256sum kubeproxy* >SHA256SUMS)
}

make_all "$work/release"
if [ -n "${COMPARE:-}" ]; then
  make_all "$work/again"
  for file in "$work"/release/kubeproxy*; do
    if cmp -s "$file" "$work/again/${file##*/}"; then verdict=same; else verdict=differs; fi
    echo "release: made twice, $verdict: ${file##*/}"
  done
fi
mkdir -p "$directory"
rm -f "$directory"/kubeproxy[-_]* "$directory/SHA256SUMS"
mv "$work"/release/* "$directory/"
echo "release: $version of $REVISION in $directory"
