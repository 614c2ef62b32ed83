# What tests/system/systemd/try.sh has the container's systemd do. Ends with "all held" if everything was as it should be.
. /root/host.sh

step start
systemctl start kubeproxy
ask start
systemctl show -p StatusText --value kubeproxy
[ "$(stat -c %U "/proc/$(main)")" = kubeproxy ] || die "it runs as another user"
grep -q 'CapEff:.*3400$' "/proc/$(main)/status" || die "other capabilities: $(grep CapEff "/proc/$(main)/status")"

step "reload; and reload of a faulty configuration, which is refused"
systemctl reload kubeproxy
cp /etc/kubeproxy/config.yaml /tmp/good
echo "kubeproxy: [" >>/etc/kubeproxy/config.yaml
! systemctl reload kubeproxy 2>/dev/null || die "a faulty configuration was taken"
cp /tmp/good /etc/kubeproxy/config.yaml
ask "after reloads"

step "more than a megabyte of manifests, which is parsed by helper processes"
python3 -c '
for n in range(4000):
    print(f"""apiVersion: v1
kind: Service
metadata: {{name: s{n}}}
spec:
  clusterIP: 10.97.{n // 250}.{n % 250 + 1}
  ports: [{{name: http, port: 80}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: s{n}-1, labels: {{kubernetes.io/service-name: s{n}}}}}
addressType: IPv4
ports: [{{name: http, port: 8080}}]
endpoints:
  - addresses: [192.0.2.11]
---""")' >/etc/kubeproxy/manifests/.many
[ "$(stat -c %s /etc/kubeproxy/manifests/.many)" -gt 1048576 ] || die "they are fewer"
mv /etc/kubeproxy/manifests/.many /etc/kubeproxy/manifests/many.yaml
for _ in $(seq 150); do
  ! kubeproxy status | grep -q "^services *4001: 4001 ok" || break
  sleep 0.2
done
kubeproxy status | grep "^services *4001: 4001 ok" || die "not all are served"
systemctl reload kubeproxy || die "the check of so many failed"
journalctl -u kubeproxy --no-pager -o cat >/tmp/journal
! grep "a helper process" /tmp/journal || die "a helper could not be had, or was lost"
rm /etc/kubeproxy/manifests/many.yaml

step "kill -9 of the control process: its workers keep serving until the next one has taken over"
before=$(main)
kill -9 "$before"
ask "without control process"
becomes "$before" 10
systemctl is-active --quiet kubeproxy || sleep 3
ask "after the crash"

step "a loop that hangs: the watchdog ends it, workers keep serving"
before=$(main)
kill -STOP "$before"
ask "while it hangs"
becomes "$before" 60
journalctl -u kubeproxy --no-pager -o cat >/tmp/journal
grep -q "Fatal Python error: Aborted" /tmp/journal || die "it did not say where it hung"
sleep 3
ask "after the watchdog"

step "restart: new clients wait"
systemctl restart --no-block kubeproxy
for _ in 1 2 3 4 5; do ask "during a restart"; done

step "iptables, as the same user"
echo 'KUBEPROXY_OPTIONS="--netfilter=iptables"' >/etc/kubeproxy/environment
systemctl restart kubeproxy
ask iptables
iptables-legacy-save -t nat >/tmp/nat
grep -qi kube /tmp/nat || die "no rules in the legacy tables"

step "a faulty configuration at start: no second try"
echo "kubeproxy: [" >>/etc/kubeproxy/config.yaml
! systemctl restart kubeproxy 2>/dev/null || die "it started"
sleep 1
[ "$(systemctl show -p ExecMainStatus --value kubeproxy)" = 64 ] || die "another exit status than 64"
[ "$(systemctl show -p ActiveState --value kubeproxy)" = failed ] || die "it is started again"
cp /tmp/good /etc/kubeproxy/config.yaml
systemctl start kubeproxy
ask "with the good one again"

step "stop: nothing is left over"
systemctl stop kubeproxy
[ "$(ours)" = 0 ] || die "processes are left: $(pgrep -af lib/kubeproxy/bin/python)"
echo "all held"
