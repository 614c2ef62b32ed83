# What tests/system/systemd/try.sh has the container do as a new user does: the README, from a bare Debian to a served
# Service, and out again. Ends with "all held" if everything was as it should be.
. /root/host.sh
cd /root/kubeproxy

step "install on a host, with systemd"
make install
(cd /etc/kubeproxy/manifests && cp example.yaml.disabled example.yaml)
kubeproxy check --config /etc/kubeproxy/config.yaml --manifests /etc/kubeproxy/manifests
systemctl enable --now kubeproxy
ask "after the installation"
kubeproxy status
kubeproxy trace 10.96.0.10:80
for file in /usr/local/share/bash-completion/completions/kubeproxy /usr/local/share/zsh/site-functions/_kubeproxy; do
  grep -q _KUBEPROXY_COMPLETE $file || die "$file completes nothing"
done
bash -n /usr/local/share/bash-completion/completions/kubeproxy

step "a change: another endpoint, at once"
sed -i 's/192.0.2.11/192.0.2.13/' /etc/kubeproxy/manifests/example.yaml
ip address add 192.0.2.13/32 dev lo
for _ in $(seq 50); do
  ! kubeproxy status web | grep -q 192.0.2.13:8080 || break
  sleep 0.2
done
kubeproxy status web | grep -q 192.0.2.13:8080 || die "the change has no effect"
sed -i 's/192.0.2.13/192.0.2.11/' /etc/kubeproxy/manifests/example.yaml
systemctl reload kubeproxy

version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' kubeproxy/model/version.py)
before=$(main)
step "upgrade"
sed -i "s/^__version__ = .*/__version__ = \"$version+next\"/" kubeproxy/model/version.py
ask_steadily
make upgrade
is_version "$version+next"
[ "$(main)" = "$before" ] || die "another process"
none_failed

step "rollback"
sed -i "s/^__version__ = .*/__version__ = \"$version\"/" kubeproxy/model/version.py
ask_steadily
make upgrade
is_version "$version"
none_failed

step "an upgrade with a faulty configuration changes nothing that runs"
cp /etc/kubeproxy/config.yaml /tmp/good
echo "kubeproxy: [" >>/etc/kubeproxy/config.yaml
! make upgrade || die "it went on"
ask "with the faulty configuration on disk"
cp /tmp/good /etc/kubeproxy/config.yaml

step "out again"
make uninstall
[ "$(ours)" = 0 ] || die "processes are left: $(pgrep -af lib/kubeproxy/bin/python)"
! nft list tables | grep kubeproxy || die "rules are left"
[ -e /etc/kubeproxy/manifests/example.yaml ] || die "the manifests are gone"
[ -z "$(find /usr/local /etc/systemd /usr/lib/sysusers.d /usr/lib/tmpfiles.d -name '*kubeproxy*')" ] \
  || die "files are left: $(find /usr/local /etc/systemd -name '*kubeproxy*')"
echo "all held"
