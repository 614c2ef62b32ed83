# What tests/system/systemd/try.sh has the container's systemd do. Ends with "all held" if everything was as it should be.
set -euo pipefail
step() { echo "-- $*"; }
die() { echo "FAILED: $*"; journalctl -u kubeproxy --no-pager -o cat | tail -40; exit 1; }
ask() {
  python3 -c '
import time, urllib.request
began = time.monotonic()
status = urllib.request.urlopen("http://10.96.0.10/", timeout=20).status
print(f"   answered {status} after {time.monotonic() - began:.3f} s")' || die "no answer ($1)"
}
main() { systemctl show -p MainPID --value kubeproxy; }
ours() { pgrep -f "lib/kubeproxy/bin/python" -c || true; }
becomes() { # another main process than $1 within $2 seconds
  for _ in $(seq $(($2 * 10))); do
    case $(main) in "$1" | 0) sleep 0.1 ;; *) return ;; esac
  done
  die "no new process within $2 s"
}

# Two backends on this very host, and some route to the service address.
ip link set lo up
ip address add 192.0.2.11/32 dev lo
ip address add 192.0.2.12/32 dev lo
ip link add v0 type veth peer name v1
ip address add 10.9.0.1/24 dev v0
ip link set v0 up
ip link set v1 up
ip route add default via 10.9.0.2
for address in 192.0.2.11 192.0.2.12; do
  # Not http.server's own command: its name look-up waits for a DNS server that is not there.
  python3 -c '
import sys
from http.server import SimpleHTTPRequestHandler
from socketserver import ThreadingTCPServer
ThreadingTCPServer((sys.argv[1], 8080), SimpleHTTPRequestHandler).serve_forever()' $address >/dev/null 2>&1 &
done
sleep 1

step start
systemctl start kubeproxy
ask start
systemctl show -p StatusText --value kubeproxy
[ "$(stat -c %U "/proc/$(main)")" = kubeproxy ] || die "it runs as somebody else"
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

step "kill -9 of the control process: its workers serve on until the next one has taken over"
before=$(main)
kill -9 "$before"
ask "without control process"
becomes "$before" 10
systemctl is-active --quiet kubeproxy || sleep 3
ask "after the crash"

step "a loop that hangs: the watchdog ends it, workers serve on"
before=$(main)
kill -STOP "$before"
ask "while it hangs"
becomes "$before" 60
journalctl -u kubeproxy --no-pager -o cat >/tmp/journal
grep -q "Fatal Python error: Aborted" /tmp/journal || die "it did not say where it hung"
sleep 3
ask "after the watchdog"

step "restart: who comes meanwhile waits"
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
