# Sourced by what happens in the container: its helpers, two backends on this very host, and a route to service addresses.
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

clients=
ask_steadily() { # new connections for as long as the file asking is there; each that failed is a line
  touch /tmp/asking
  python3 -c '
import os, urllib.request
count = 0
while os.path.exists("/tmp/asking"):
    try:
        urllib.request.urlopen("http://10.96.0.10/", timeout=20).close()
        count += 1
    except OSError as error:
        print(f"failed: {error}", flush=True)
print(f"{count} answered", flush=True)' >/tmp/asked 2>&1 &
  clients=$!
}
none_failed() {
  rm -f /tmp/asking
  wait "$clients"
  ! grep failed /tmp/asked || die "clients failed"
  echo "   $(tail -1 /tmp/asked)"
}
is_version() { # within 20 s
  for _ in $(seq 100); do
    ! kubeproxy status | grep -q "^kubeproxy $1 on" || return 0
    sleep 0.2
  done
  die "the daemon is not version $1"
}
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
