#!/usr/bin/env bash
# Builds the image without an engine, as root, with Debian's buildah and debootstrap: deploy/build-image.sh [TAG]
#
#   BASE=IMAGE       a base from a registry, by digest, as the Dockerfile has it; without it, one is made by debootstrap,
#                    which verifies Debian's signatures
#   SUITE=bookworm   which Debian that is
#   PUSH=1           push it to the registry that TAG names, as `buildah login` or `docker login` has been done, and print the
#                    digest. PUSH=insecure: to a registry without TLS
#   OUTPUT=FILE      write the image there too, as an OCI archive
#   ROOTFS=DIR       unpack the image's file system there too
#   SOURCE_DATE_EPOCH=SECONDS   the time of all its files, and of the image
#   STORAGE=DIR      where layers are kept (default: a directory that is removed at the end)
#
# Everything happens in chroots: no daemon, no namespaces, no registry. The certificates that the machine trusts
# (SSL_CERT_FILE or /etc/ssl/certs/ca-certificates.crt) and PIP_INDEX_URL are used in the build, and not in the image.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' kubeproxy/model/version.py)
tag=${1:-localhost/kubeproxy:$version}
suite=${SUITE:-bookworm}
case ${PUSH:-}$tag in
  ?*localhost/*) echo "image: TAG=$tag names no registry; for example TAG=registry.example.com/kubeproxy:$version" >&2; exit 64 ;;
esac

for need in buildah debootstrap; do
  command -v "$need" >/dev/null || [ "$need" = debootstrap -a -n "${BASE:-}" ] \
    || { echo "image: $need is missing; on Debian and Ubuntu: apt-get install buildah debootstrap" >&2; exit 1; }
done
[ -n "${BASE:-}" ] || [ -e /usr/share/keyrings/debian-archive-keyring.gpg ] \
  || { echo "image: Debian's keys are missing; on Debian and Ubuntu: apt-get install debian-archive-keyring" >&2; exit 1; }
[ "$(id -u)" = 0 ] || { echo "image: needs root" >&2; exit 1; }

work=$(mktemp -d)
storage=${STORAGE:-$work/storage}
trap 'rm -rf "$work"' EXIT
mkdir -p "$storage"
build() { buildah --root "$storage" --runroot "$work/run" --storage-driver vfs "$@"; }
say() { echo "image: $*"; }

base=${BASE:-localhost/debian:$suite}
if [ -z "${BASE:-}" ] && ! build inspect --type image "$base" >/dev/null 2>&1; then
  say "making a base of Debian $suite"
  # By its signature or not at all: without a keyring debootstrap would only warn.
  debootstrap --variant=minbase --force-check-gpg "$suite" "$work/base" >"$work/log" || { tail -20 "$work/log" >&2; exit 1; }
  rm -rf "$work"/base/var/cache/apt/archives/*.deb "$work"/base/var/lib/apt/lists/* "$work"/base/var/log/*.log \
    "$work"/base/usr/share/{doc,man,locale} "$work"/base/dev "$work"/base/proc "$work"/base/sys
  mkdir "$work"/base/{dev,proc,sys}
  # Updates and security fixes, which debootstrap leaves out.
  cat >"$work/base/etc/apt/sources.list" <<END
deb http://deb.debian.org/debian $suite main
deb http://deb.debian.org/debian $suite-updates main
deb http://deb.debian.org/debian-security $suite-security main
END
  container=$(build from scratch)
  build copy --quiet "$container" "$work/base" / >/dev/null
  build config --cmd bash "$container"
  build commit --quiet --rm "$container" "$base" >/dev/null
  rm -rf "$work/base"
fi

options=()
certificates=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}
if [ -e "$certificates" ]; then
  options+=(--volume "$(readlink -f "$certificates"):/run/build/ca.crt:ro" --build-arg PIP_CERT=/run/build/ca.crt)
fi
if [ -n "${PIP_INDEX_URL:-}" ]; then
  options+=(--build-arg "PIP_INDEX_URL=$PIP_INDEX_URL")
fi

if [ -n "${SOURCE_DATE_EPOCH:-}" ]; then
  options+=(--timestamp "$SOURCE_DATE_EPOCH" --build-arg "SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH")
fi

say "building $tag on $base"
build build --quiet --isolation chroot --layers=false --format docker --pull=never "${options[@]}" \
  --build-arg BASE="$base" --build-arg VERSION="$version" \
  --build-arg REVISION="${REVISION:-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)}" \
  --tag "$tag" . >/dev/null

if [ -n "${ROOTFS:-}" ]; then
  container=$(build from --pull-never "$tag")
  mkdir -p "$ROOTFS"
  cp -a "$(build mount "$container")/." "$ROOTFS/"
  build umount "$container" >/dev/null
  build rm "$container" >/dev/null
  say "unpacked to $ROOTFS ($(du -sm "$ROOTFS" | cut -f1) MB)"
fi
if [ -n "${OUTPUT:-}" ]; then
  build push --quiet "$tag" "oci-archive:$OUTPUT:$tag"
  say "written to $OUTPUT ($(du -m "$OUTPUT" | cut -f1) MB, compressed)"
fi
if [ -n "${PUSH:-}" ]; then
  tls=true
  [ "$PUSH" != insecure ] || tls=false
  build push --quiet --tls-verify="$tls" --digestfile "$work/digest" "$tag" "docker://$tag"
  say "pushed $tag, digest $(cat "$work/digest")"
fi
say "$tag is $(build images --format '{{.Size}}' "$tag")"
