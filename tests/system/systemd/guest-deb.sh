# What tests/system/systemd/try.sh has the container do with the Debian package. Ends with "all held" if everything was as
# it should be.
. /root/host.sh
version=$(dpkg-deb -f /root/this.deb Version)
program=${version%-*}

step "another kube-proxy stays as it is"
for place in /usr/bin /usr/local/bin; do
  echo "not ours" >"$place/kube-proxy"
done

step install
dpkg -i /root/this.deb
! systemctl is-active --quiet kubeproxy || die "it was started, beside a kube-proxy perhaps"
[ "$(id -gn kubeproxy)" = kubeproxy ] || die "there is no user"
[ "$(stat -c %U:%G:%a /run/xtables.lock)" = root:kubeproxy:660 ] || die "the lock is another's"
cp /etc/kubeproxy/manifests/example.yaml.disabled /etc/kubeproxy/manifests/example.yaml
systemctl enable --now kubeproxy
ask "after the installation"
kubeproxy status | head -3
is_version "$program"
before=$(main)

step "upgrade, with connections: the process executes the new program"
ask_steadily
dpkg -i /root/next.deb
is_version "$program+next"
[ "$(main)" = "$before" ] || die "another process"
ask "after the upgrade"
none_failed

step "an edited configuration stays, and a rollback is the same way back"
echo "# mine" >>/etc/kubeproxy/config.yaml
ask_steadily
dpkg -i /root/this.deb
is_version "$program"
grep -q "^# mine" /etc/kubeproxy/config.yaml || die "the configuration was replaced"
[ "$(main)" = "$before" ] || die "another process"
none_failed

step "remove: nothing serves, no rule is left, the configuration stays"
dpkg -r kubeproxy
[ "$(ours)" = 0 ] || die "processes are left: $(pgrep -af lib/kubeproxy/bin/python)"
! nft list tables | grep kubeproxy || die "rules are left"
[ -e /etc/kubeproxy/config.yaml ] || die "the configuration is gone"
[ ! -e /usr/lib/kubeproxy ] || die "files are left: $(find /usr/lib/kubeproxy | head)"
[ ! -e /etc/systemd/system/multi-user.target.wants/kubeproxy.service ] || die "the unit is still enabled"

step "purge: only the administrator's own files stay"
dpkg --purge kubeproxy
[ "$(find /etc/kubeproxy -type f)" = /etc/kubeproxy/manifests/example.yaml ] || die "$(find /etc/kubeproxy)"
for place in /usr/bin /usr/local/bin; do
  [ "$(cat "$place/kube-proxy")" = "not ours" ] || die "$place/kube-proxy was changed"
done
echo "all held"
