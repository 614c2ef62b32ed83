"""Attack review, findings 10 to 19: data that the node shows to the network, floods, and core dumps."""

from __future__ import annotations

import http.client
import json
import os
import platform
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from kubeproxy.runtime.seccomp import MACHINES
from tests.support.lab import Host
from tests.support.lab.daemon import HEALTHZ, KUBEPROXY, METRICS
from tests.support.lab.node import NODE_V4, NODE_V6
from tests.support.lab.web import Answer, get
from tests.system.e2e.stage import QUICK, VIP, Stage, ask, until

pytestmark = pytest.mark.netns

NODE = NODE_V4
PAGES = (
    "/statusz",
    "/statusz.json",
    "/statusz/page.js",
    "/trace?to=10.96.0.10:80",
    "/configz",
    "/debug/tasks",
    "/none",
)
PORT = METRICS[1]


def asked(host: Host, address: str, path: str, *, name: str, port: int = PORT) -> Answer:
    """The answer to one GET with this Host header."""
    with host.connect((address, port), timeout=15) as sock:
        connection = http.client.HTTPConnection(address, port)
        connection.sock = sock
        connection.request("GET", path, headers={"Host": name, "Connection": "close"})
        response = connection.getresponse()
        return Answer(response.status, response.read().decode())


# Finding 10: the privileges of a worker


@pytest.mark.parametrize(("more", "kept"), [("+net_raw", 1 << 13), ("", 0)])
def test_finding_10_a_worker_of_the_daemon_set_keeps_no_net_admin(stage: Stage, more: str, kept: int) -> None:
    stage.write_service([0])
    capabilities = ",".join(["-all", "+net_admin", "+net_bind_service", *([more] if more else [])])
    daemon = stage.daemon(
        "--workers=1", command=("setpriv", "--no-new-privs", f"--bounding-set={capabilities}", KUBEPROXY)
    )
    (worker,) = pids(stage)
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{worker}/status").read_text().splitlines())
    assert fields["NoNewPrivs"].strip() == "1", "what remains in the bounding set is out of reach"
    for name in ("CapPrm", "CapEff", "CapInh", "CapAmb"):
        assert int(fields[name], 16) == (kept if name in ("CapPrm", "CapEff") else 0), name
    assert int(fields["Seccomp"]) == (2 if platform.machine() in MACHINES else 0)
    assert ("cannot preserve client addresses" in daemon.log()) == (not kept)
    assert ask(stage.client, (VIP, 80)) == "pod-0"


def test_finding_16_a_worker_leaves_the_file_system_and_no_process_a_core_dump(stage: Stage) -> None:
    """As root, where no unit has taken anything away."""
    stage.write_service([0])
    daemon = stage.daemon("--workers=1")
    (worker,) = pids(stage)
    assert os.readlink(f"/proc/{worker}/root") == f"/proc/{worker}/fdinfo"
    for pid in (daemon.process.pid, worker):
        soft, hard = resource.prlimit(pid, resource.RLIMIT_CORE)
        assert soft in (0, 1), "1 keeps even a handler behind a pipe from being started"
        assert hard in (0, 1)
    assert ask(stage.client, (VIP, 80)) == "pod-0"


def pids(stage: Stage) -> list[int]:
    """The worker processes of the daemon on the node."""
    workers = json.loads(get(stage.node, METRICS, "/statusz.json").body)["workers"]
    assert workers
    return [worker["pid"] for worker in workers]


# Finding 12: monitoring without access of all hosts to all pages


@pytest.mark.parametrize(
    ("address", "asked_at"),
    [
        ("0.0.0.0", [(NODE, "127.0.0.1")]),
        (NODE, [(NODE, "127.0.0.1")]),
        ("[::]", [(NODE, "127.0.0.1"), (NODE_V6, "::1")]),
        (f"[{NODE_V6}]", [(NODE_V6, "::1")]),
    ],
)
def test_finding_12_other_hosts_get_metrics_and_no_pages(
    stage: Stage, config: Path, address: str, asked_at: list[tuple[str, str]]
) -> None:
    stage.write_service([0])
    stage.daemon("--profiling", metrics=(address, PORT))
    for node, loopback in asked_at:
        for path in ("/metrics", "/metrics/slis", "/healthz", "/proxyMode"):
            assert get(stage.client, (node, PORT), path).status == 200, path
        for path in PAGES:
            answer = get(stage.client, (node, PORT), path)
            assert answer.status == 403, path
            assert "kubeproxy.publicStatus" in answer.body
            assert "10.96" not in answer.body
        for path in PAGES[:-1]:
            assert get(stage.node, (loopback, PORT), path).status == 200, path
    commands_work(stage, config, address)
    if address == "0.0.0.0":
        done = stage.client.run([KUBEPROXY, "status", "--address", f"{NODE}:{PORT}"], check=False)
        assert done.returncode == 1
        assert f"{NODE}:{PORT} refuses /statusz: This page is for this host only." in done.stderr


def test_finding_12_the_commands_work_where_the_metrics_listen_on_loopback(stage: Stage, config: Path) -> None:
    stage.write_service([0])
    stage.daemon(metrics=METRICS)
    commands_work(stage, config, METRICS[0])


def commands_work(stage: Stage, config: Path, address: str) -> None:
    """Assert that commands on the node find the metrics server by the configuration, wherever it listens."""
    config.write_text(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
        f"metricsBindAddress: '{address}:{PORT}'\n"
    )
    assert stage.node.run([KUBEPROXY, "status", "--config", str(config)], check=False).returncode == 0
    done = stage.node.run([KUBEPROXY, "trace", f"{VIP}:80", "--config", str(config)], check=False)
    assert done.returncode == 0, done.stderr


def test_finding_12_the_setting_opens_the_pages(stage: Stage) -> None:
    stage.write_service([0])
    stage.daemon("--public-status", metrics=("0.0.0.0", PORT))
    assert get(stage.client, (NODE, PORT), "/statusz").status == 200
    assert asked(stage.client, NODE, "/statusz", name="evil.example").status == 421


# Finding 13: DNS rebinding


def test_finding_13_a_website_gets_nothing_by_loopback(stage: Stage) -> None:
    stage.write_service([0])
    stage.daemon("--hostname-override=node-1.example")
    for path in ("/statusz", "/configz", "/trace?to=10.96.0.10:80", "/metrics", "/none"):
        answer = asked(stage.node, METRICS[0], path, name=f"evil.example:{PORT}")
        assert answer.status == 421, path
        assert "Host header" in answer.body
    for name in (f"127.0.0.1:{PORT}", f"localhost:{PORT}", f"node-1.example:{PORT}"):
        assert asked(stage.node, METRICS[0], "/statusz", name=name).status == 200, name
    assert asked(stage.node, HEALTHZ[0], "/healthz", name="lb.example", port=HEALTHZ[1]).status == 200


# Finding 18: the content of health pages for the network


def test_finding_18_the_network_gets_kube_proxys_fields_only(stage: Stage) -> None:
    # A reason for a degraded node: rules of kube-proxy still exist.
    stage.node.run(["nft", "add table ip kube-proxy; add chain ip kube-proxy services"])
    try:
        stage.write_service([0])
        stage.daemon(QUICK, "--iptables-sync-period=500ms", healthz=("0.0.0.0", HEALTHZ[1]))
        for path in ("/healthz", "/livez", "/readyz"):
            until(lambda path=path: "reasons" in get(stage.node, HEALTHZ, path).body, "seen on the node")  # type: ignore[misc]
        for path, fields in (
            ("/healthz", {"lastUpdated", "currentTime", "nodeEligible", "healthy", "status"}),
            ("/livez", {"lastUpdated", "currentTime", "healthy", "status"}),
            ("/readyz", {"currentTime", "ready"}),
        ):
            for host in (stage.client, stage.node):
                answer = get(host, (NODE, HEALTHZ[1]), path)
                assert answer.status == 200
                assert set(json.loads(answer.body)) == fields, path
    finally:
        stage.node.run(["nft", "delete table ip kube-proxy"])


# Finding 19: a flood of connections at the health port


def test_finding_19_the_address_with_most_connections_loses_its_oldest(stage: Stage) -> None:
    stage.write_service([0])
    stage.daemon(healthz=("0.0.0.0", HEALTHZ[1]))
    address = (NODE, HEALTHZ[1])
    with ExitStack() as stack:
        probe = stack.enter_context(stage.node.connect(address, timeout=20))
        silent = [stack.enter_context(stage.client.connect(address, timeout=20)) for _ in range(150)]
        # The probe has the oldest of too many connections; the server closes those of the client, oldest first.
        assert ended(silent[0])
        probe.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
        assert probe.recv(64).startswith(b"HTTP/1.0 200 OK")
        assert answers(stage.node, address)


def ended(sock: socket.socket) -> bool:
    """Wait until the other end closes or resets it."""
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def test_finding_19_a_flood_starves_no_probe(stage: Stage) -> None:
    stage.write_service([0])
    stage.daemon("--workers=1", healthz=("0.0.0.0", HEALTHZ[1]))
    with flooded(stage.client, (NODE, HEALTHZ[1])) as made:
        until(lambda: made() > 2000, "the flood flows")
        for number in range(15):
            before = made()
            # 1 s is the default timeout of a kubelet; a dropped packet is sent again only after that.
            assert get(stage.node, (NODE, HEALTHZ[1]), "/livez", timeout_s=1.0).status == 200, number
            until(lambda before=before: made() > before, "it flows on")  # type: ignore[misc]
        assert ask(stage.client, (VIP, 80)) == "pod-0"
    until(lambda: answers(stage.client, (NODE, HEALTHZ[1])), "the flooding client is served again")


def answers(host: Host, address: tuple[str, int]) -> bool:
    """Whether /livez answers."""
    with suppress(OSError, http.client.HTTPException):
        return get(host, address, "/livez", timeout_s=2.0).status == 200
    return False


_FLOOD = """
import select, socket, sys
address = (sys.argv[1], int(sys.argv[2]))
made, waiting = 0, []
while True:
    sock = socket.socket()
    sock.setblocking(False)
    sock.connect_ex(address)
    waiting.append(sock)
    made += 1
    if len(waiting) >= 200:
        select.select([], waiting[:1], [], 0.01)
        waiting.pop(0).close()
    if made % 500 == 0:
        print(made, flush=True)
"""


@contextmanager
def flooded(host: Host, address: tuple[str, int]) -> Iterator[Callable[[], int]]:
    """Open silent connections without end, 200 at once. Yields a function that returns their number so far."""
    process = host.popen(
        ["nice", "-n", "19", sys.executable, "-c", _FLOOD, address[0], str(address[1])], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    made = 0

    def read() -> None:
        nonlocal made
        assert process.stdout is not None
        for line in process.stdout:
            made = int(line)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield lambda: made
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stdout.close()
