#!/usr/bin/env bash
# Builds a Debian package, with dpkg-deb: deploy/build-deb.sh [DIRECTORY]    (make deb; default: dist)
#
#   PYTHON=/usr/bin/python3   the Python of the distribution that the package is for; the package needs that version there
#   REVISION=1                the Debian revision
#   DEBFULLNAME= DEBEMAIL=    its maintainer, as with Debian's own tools
#   PROJECT_URL=              its home page, if it has one
#
# Its contents are those of `make install PREFIX=/usr`. It never has the name kube-proxy, which may be another program's.
set -euo pipefail
cd "$(dirname "$0")/.."
directory=${1:-dist}
python=${PYTHON:-/usr/bin/python3}
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' kubeproxy/model/version.py)-${REVISION:-1}
architecture=$(dpkg --print-architecture)
for need in dpkg-deb dpkg-shlibdeps; do
  command -v "$need" >/dev/null || { echo "deb: $need is missing: apt-get install dpkg-dev" >&2; exit 1; }
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/kubeproxy
mkdir -p "$root/DEBIAN" "$work/debian" "$directory"
DESTDIR=$root PREFIX=/usr PYTHON=$python ALIAS= bash deploy/install.sh install >"$work/log" || { cat "$work/log" >&2; exit 1; }

doc=$root/usr/share/doc/kubeproxy
mkdir -p "$doc"
cp deploy/deb/copyright "$doc/copyright"
gzip -9n <CHANGELOG.md >"$doc/changelog.gz"
gzip -9n "$root/usr/share/man/man8/kubeproxy.8"

# The libraries that the compiled modules need, in the versions that Debian's tool finds.
cat >"$work/debian/control" <<END
Source: kubeproxy

Package: kubeproxy
Architecture: any
END
libraries=$(cd "$work" && find kubeproxy -name '*.so*' -type f -print0 \
  | xargs -0 dpkg-shlibdeps --ignore-missing-info -O -l"$root/usr/lib/kubeproxy/lib" 2>"$work/shlibs.log" \
  | sed -n 's/^shlibs:Depends=//p') || { cat "$work/shlibs.log" >&2; exit 1; }

# As dpkg-gencontrol counts: what a file system takes for them differs.
size=$(find "$root" -path "$root/DEBIAN" -prune -o -type f -printf '%s\n' -o -printf '1\n' \
  | awk '{ all += int(($1 + 1023) / 1024) } END { print all }')
# The environment is that of one minor version of Python.
read -r this next < <("$python" -c 'import sys; print("3.%d 3.%d" % (sys.version_info[1], sys.version_info[1] + 1))')
sed -e "s|@VERSION@|$version|" -e "s|@ARCHITECTURE@|$architecture|" \
  -e "s|@MAINTAINER@|${DEBFULLNAME:-Local build} <${DEBEMAIL:-root@localhost}>|" \
  -e "s|@DEPENDS@|python3 (>= $this), python3 (<< $next), ${libraries:+$libraries, }|" \
  -e "s|@SIZE@|$size|" deploy/deb/control >"$root/DEBIAN/control"
[ -z "${PROJECT_URL:-}" ] || echo "Homepage: $PROJECT_URL" >>"$root/DEBIAN/control"
install -m 755 -t "$root/DEBIAN" deploy/deb/postinst deploy/deb/prerm deploy/deb/postrm
(cd "$root" && find etc -type f -printf '/%p\n' | sort) >"$root/DEBIAN/conffiles"
(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
find "$root" -type d -exec chmod 755 {} +

file=$directory/kubeproxy_${version}_$architecture.deb
# Built beside the package and renamed, so that nobody meets half of one.
trap 'rm -rf "$work" "$file.new"' EXIT
dpkg-deb --root-owner-group --build "$root" "$file.new" >/dev/null
mv "$file.new" "$file"
echo "deb: $file ($(du -m "$file" | cut -f1) MB)"
