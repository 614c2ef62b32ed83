"""`kubeproxy status` and `kubeproxy trace` against a live daemon with one endpoint that refuses."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kubeproxy.cli import daemon_client
from kubeproxy.model.conntrack_usage import ConntrackRoom
from kubeproxy.model.errors import KubeproxyError
from kubeproxy.netfilter.conntrack import usage
from kubeproxy.observability.status.document import State
from tests.support.lab import Host
from tests.support.lab.daemon import KUBEPROXY
from tests.system.browser.shop import EJECTED, WEB, Shop, ask, open_shop

pytestmark = pytest.mark.netns

CLIENT = "10.2.0.2"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with open_shop(tmp_path_factory.mktemp("manifests"), services=8) as opened:
        yield opened


def run(shop: Shop, *words: str) -> subprocess.CompletedProcess[str]:
    return shop.network.node.run([KUBEPROXY, *words], check=False)


def eject(shop: Shop) -> None:
    """Let clients of shop/web meet the endpoint that refuses."""
    for _ in range(4):
        ask(shop.network, WEB)


def test_the_summary(shop: Shop) -> None:
    eject(shop)
    done = run(shop, "status")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert re.match(r"kubeproxy \S+ on \S+: healthy, up ", lines[0])
    table = lines[lines.index("") + 1 :]
    assert table[0].split()[:3] == ["STATE", "SERVICE", "ACTIVE"]
    assert table[1].split()[:2] == ["ejected", "shop/web"]
    assert EJECTED in table[1]
    assert table[2].split()[:2] == ["empty", "billing/reports"]
    assert len({line.find("shop/") for line in table if "shop/" in line}) == 1
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    "name", ["web", "shop/web", "shop/web:http", "web:80", WEB, f"{WEB}:80", EJECTED, EJECTED.partition(":")[0]]
)
def test_one_service(shop: Shop, name: str) -> None:
    eject(shop)
    done = run(shop, "status", name)
    assert done.returncode == 0
    assert done.stdout.startswith("shop/web: ejected")
    assert re.search(rf"(ejected|probing) +{re.escape(EJECTED)}: refuses", done.stdout)
    assert "ready       10.3.0.2:8080" in done.stdout


def test_json(shop: Shop) -> None:
    eject(shop)
    done = run(shop, "status", "-o", "json")
    status = json.loads(done.stdout)
    assert status["matched"] == len(status["services"]) == 10
    assert status["services"][0]["state"] == State.EJECTED


UNSERVED = """
apiVersion: v1
kind: Service
metadata: {name: headless, namespace: odd}
spec: {clusterIP: None, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: signals, namespace: odd}
spec: {clusterIP: 10.96.7.7, ports: [{name: m3ua, port: 2905, protocol: SCTP}]}
---
apiVersion: v1
kind: Service
metadata: {name: mixed, namespace: odd}
spec: {clusterIP: 10.96.7.8, ports: [{name: a, port: 80, protocol: SCTP}, {name: b, port: 81}]}
---
apiVersion: v1
kind: Service
metadata: {name: faulty, namespace: odd}
spec: {clusterIP: 10.96.7.9, ports: [{port: 70000}]}
"""


@pytest.fixture
def odd(shop: Shop) -> Iterator[None]:
    """Services that are not served, or only in part."""
    file = shop.manifests / "odd.yaml"
    file.write_text(UNSERVED)
    wait_for(lambda: _count(shop) == 12)
    yield
    file.unlink()
    wait_for(lambda: _count(shop) == 10)


def _count(shop: Shop) -> int:
    count: int = json.loads(run(shop, "status", "-o", "json", "--limit", "0").stdout)["totals"]["services"]
    return count


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.usefixtures("odd")
def test_services_that_are_not_served_are_found_by_name(shop: Shop) -> None:
    for name in ("signals", "mixed"):
        done = run(shop, "status", name)
        assert done.stdout.startswith(f"odd/{name}: problem"), done
        assert re.search(r"problem +port (m3ua|a): SCTP is not served", done.stdout)
    assert "odd/headless is not served: it is headless" in run(shop, "status", "odd/headless").stderr
    faulty = run(shop, "status", "faulty")
    assert faulty.returncode == 1
    assert f"faulty is not served: it is faulty, see {shop.manifests}/odd.yaml document 4: spec.ports[0].port" in (
        faulty.stderr
    )
    assert "2 Services with a problem" in run(shop, "status").stdout.splitlines()[0]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("web:81", "shop/web has no port 81; it has: http (80/TCP"),
        ("webb", "no Service webb (of 10); did you mean shop/web?"),
        ("billing/web", "no Service billing/web (of 10); did you mean shop/web?"),
        ("10.99.9.9", "no Service has the address 10.99.9.9"),
    ],
)
def test_a_query_without_a_match_has_a_hint(shop: Shop, name: str, hint: str) -> None:
    done = run(shop, "status", name)
    assert (done.returncode, done.stdout) == (1, "")
    assert hint in done.stderr


def test_filters(shop: Shop) -> None:
    eject(shop)

    def names(*words: str) -> list[str]:
        status = json.loads(run(shop, "status", "-o", "json", *words).stdout)
        return [f"{it['namespace']}/{it['name']}" for it in status["services"]]

    assert {name.partition("/")[0] for name in names("-n", "billing")} == {"billing"}
    assert set(names("--state", "ejected,empty")) == {"shop/web", "billing/reports"}
    assert names("--search", "reports") == ["billing/reports"]
    assert names("--sort", "name", "--limit", "1") == ["billing/cart"]
    assert "... and 9 more" in run(shop, "status", "--limit", "1").stdout
    refused = run(shop, "status", "--state", "sick")
    assert refused.returncode == 64
    assert "state=sick: allowed are problem" in refused.stderr


def test_exit_statuses_for_scripts(shop: Shop) -> None:
    eject(shop)
    assert run(shop, "status", "--exit-code").returncode == 2
    assert run(shop, "status", "--exit-code", "--state", "ok").returncode == 0
    assert run(shop, "status", "reports", "--exit-code").returncode == 2
    assert run(shop, "trace", f"{WEB}:80", "--expect", "proxied").returncode == 0
    assert run(shop, "trace", "10.96.0.2:80", "--expect", "proxied").returncode == 2
    assert run(shop, "trace", "192.0.2.1:80", "-o", "json", "--expect", "not-ours").returncode == 0


def test_output_that_is_not_utf_8(shop: Shop) -> None:
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "NO_COLOR": "1"}
    for words in (["status"], ["status", "web"]):
        done = shop.network.node.run(["script", "-qec", f"{KUBEPROXY} {' '.join(words)}", "/dev/null"], env=env)
        assert "UnicodeEncodeError" not in done.stdout
        assert "shop/web" in done.stdout
        assert done.stdout.isascii()


def test_the_address_is_found_in_a_faulty_configuration(shop: Shop, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
        "metricsBindAddress: 127.0.0.1:10249\nudpIdleTimeout: 60\n"
    )
    done = run(shop, "status", "--config", str(config))
    assert done.returncode == 0
    assert done.stderr.startswith(f"warning: {config}: udpIdleTimeout: found 60")


def test_an_unknown_service_is_an_error(shop: Shop) -> None:
    done = run(shop, "status", "nothing")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("kubeproxy: no Service nothing (of 10); `kubeproxy status` without a name lists")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("words", [["status"], ["trace", "10.96.0.1:80"]])
def test_a_missing_daemon_is_reported_in_one_line(words: list[str]) -> None:
    with Host("empty") as host:
        done = host.run([KUBEPROXY, *words], check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "no daemon answers at 127.0.0.1:10249: Connection refused; check that it runs on this host" in done.stderr


@pytest.mark.parametrize(
    ("entries", "says"),
    [(200, "connection tracking of this node is full (200 entries of 200)"), (9, "no daemon answers at")],
)
def test_a_full_connection_tracking_is_named_by_the_command_itself(
    entries: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel drops the command's packets, too."""
    monkeypatch.setattr(daemon_client, "TIMEOUT_S", 0.2)
    room = ConntrackRoom(entries=entries, limit=200, dropped=0)
    monkeypatch.setattr(usage, "look", lambda: room)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(KubeproxyError, match=re.escape(says)):
            daemon_client.Daemon(*silent.getsockname()).get("/statusz")


def test_the_address_comes_from_the_configuration(shop: Shop, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
    config.write_text(f"{head}metricsBindAddress: 0.0.0.0:10249\n")
    assert run(shop, "status", "--config", str(config)).returncode == 0
    config.write_text(f"{head}metricsBindAddress: 127.0.0.1:1\n")
    assert "at 127.0.0.1:1: " in run(shop, "status", "--config", str(config)).stderr
    assert run(shop, "status", "--config", str(config), "--address", "127.0.0.1:10249").returncode == 0
    assert run(shop, "status", "--address", "nonsense").returncode == 64
    # The health server speaks HTTP but has no status.
    assert "it is no kubeproxy" in run(shop, "status", "--address", "127.0.0.1:10256").stderr


def test_trace(shop: Shop) -> None:
    eject(shop)
    done = run(shop, "trace", f"{WEB}:80", "--from", CLIENT)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"TCP from {CLIENT} (another host) to {WEB}:80: proxied\n")
    assert "a cluster IP of shop/web:http; it is redirected to proxy port" in done.stdout
    order = re.findall(r"^    \d\. ([\d.]+:\d+)", done.stdout, re.MULTILINE)
    assert EJECTED in order
    assert len(order) % 3 == 0
    refused = run(shop, "trace", "10.96.0.2:80")
    assert "(this node) to 10.96.0.2:80: refused" in refused.stdout
    port = re.search(r"proxy port (\d+)", run(shop, "status", "web").stdout)
    assert port is not None
    assert "dropped" in run(shop, "trace", f"10.2.0.1:{port[1]}", "--from", CLIENT).stdout
    assert json.loads(run(shop, "trace", f"{WEB}:80", "-o", "json").stdout)["outcome"] == "proxied"
    for name in ("web:80", "web:http", "shop/web:80"):
        assert f"to {WEB}:80: proxied" in run(shop, "trace", name, "--from", CLIENT).stdout, name
    unknown = run(shop, "trace", "wbe:80")
    assert unknown.returncode == 1
    assert "web" in unknown.stderr, "the nearest name"
    assert "UDP" in run(shop, "trace", "web:80", "-p", "udp").stderr
    assert "IPv6" in run(shop, "trace", "web:80", "--from", "fd00::1").stderr
    assert run(shop, "trace", WEB).returncode == 64


def test_watch_refreshes_until_q(shop: Shop) -> None:
    eject(shop)
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "140", "LINES": "30"}
    process = shop.network.node.popen(
        [KUBEPROXY, "status", "--watch"], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    seen, deadline = b"", time.monotonic() + 20
    while seen.count(b"\x1b[H\x1b[2J") < 2:
        assert time.monotonic() < deadline, seen
        if select.select([ours], [], [], 0.5)[0]:
            seen += os.read(ours, 65536)
    os.write(ours, b"q")
    assert process.wait(10) == 0
    os.close(ours)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())
    assert "healthy" in text
    assert re.search(r"(ejected|probing|ok) +shop/web", text)
    first = text.partition("kubeproxy ")[2].partition("kubeproxy ")[0]
    assert first.count("\n") <= 30
