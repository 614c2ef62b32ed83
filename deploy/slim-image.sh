#!/usr/bin/env bash
# Takes from the image's Debian what nothing in it runs: bash deploy/slim-image.sh, in the image's build alone
# Packages go by dpkg, so that its list, which scanners and the SBOM read, says what is there.
set -euo pipefail

# What installs and sets up packages: perl runs their scripts, GnuTLS serves apt.
packaging="apt libapt-pkg6.0 libgnutls30 libhogweed6 libnettle8 libidn2-0 libunistring2 libp11-kit0 libtasn1-6 libxxhash0
  libseccomp2 gpgv debian-archive-keyring adduser base-passwd debconf libdebconfclient0 perl-base init-system-helpers usr-is-merged"
# Logins, disks, mounts, terminals: a container has none.
host="login passwd libpam-modules libpam-modules-bin libpam-runtime libsemanage2 libsemanage-common libsepol2 e2fsprogs
  libext2fs2 libss2 logsave mount util-linux-extra ncurses-bin sysvinit-utils"
# Of Python's modules those for sqlite3, dbm and NIS, with Kerberos below the last one.
modules="libsqlite3-0 libdb5.3 libnsl2 libtirpc3 libtirpc-common libgssapi-krb5-2 libkrb5-3 libk5crypto3 libkrb5support0
  libkeyutils1 libcom-err2"

python=$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
rm -rf "$python"/{test,unittest,pydoc_data,ensurepip,idlelib,lib2to3,turtledemo,sqlite3,dbm} "$python"/lib-dynload/{_sqlite3,_dbm,nis}.*

# Scripts of packages ask for programs that have just been removed, and have nothing to undo in an image.
rm -f /var/lib/dpkg/info/*.{preinst,postinst,prerm,postrm}
remove() { dpkg --purge --force-depends --force-remove-essential --force-remove-protected "$@" >/dev/null; }
for package in $packaging $host $modules; do
  # A base may have been made without some of them.
  if dpkg-query --show --showformat='${db:Status-Abbrev}' "$package" 2>/dev/null | grep -q ^ii; then echo "$package"; fi
done | { mapfile -t present; remove "${present[@]}"; } 2>/run/slim.log || { cat /run/slim.log >&2; exit 1; }

rm -rf /usr/lib/*/gconv /usr/share/{doc,doc-base,man,info,locale,lintian,bash-completion,perl5} /usr/share/zoneinfo/{right,posix} \
  /var/lib/apt /var/cache/* /var/log/* /var/lib/dpkg/*-old /etc/apt /etc/*- /run/slim.log
# No program of the image may give a process more rights than the container has.
find / -xdev -type f -perm /6000 -exec chmod ug-s {} +
