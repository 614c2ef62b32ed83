"""The effect of dead endpoints, exhausted descriptors and hostile clients on the other clients."""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.lab import Daemon
from tests.support.lab.daemon import KUBEPROXY, METRICS
from tests.system.e2e import kernel_state
from tests.system.e2e.first_bytes import FirstBytes, first_bytes, percentile, summary
from tests.system.e2e.stage import (
    KERNEL,
    QUICK,
    TARGET,
    VIP,
    Stage,
    ask,
    ask_often,
    await_rescue,
    endpoints,
    service,
    until,
)

pytestmark = pytest.mark.netns

WEB = (VIP, 80)
OTHER_VIP = "10.96.0.11"
OTHER = (OTHER_VIP, 80)
RESET = struct.pack("ii", 1, 0)
STEP_S = 0.25
"""The first step of the dial ladder."""
LADDER_S = 3.75
"""All steps of the dial ladder."""

LONG_CONNECTIONS = 100
"""From each host of clients, while an endpoint is killed."""

# Faults of connections to the backend of a pod.
HOLE, REFUSAL = "drop", "reject with tcp reset"
GONE = "reject with icmp type host-unreachable"
"""What the last router says of a pod whose host is gone."""


@contextmanager
def broken(stage: Stage, fault: str, *pods: int) -> Iterator[None]:
    """The backends of these pods are dead: packets to them are dropped, or refused."""
    hosts = [stage.network.pods[pod] for pod in pods]
    try:
        for host in hosts:
            host.run(["nft", "add table inet fault"])
            host.run(["nft", "add chain inet fault input { type filter hook input priority 0; }"])
            host.run(["nft", f"add rule inet fault input tcp dport {TARGET} {fault}"])
        yield
    finally:
        for host in hosts:
            host.run(["nft", "delete table inet fault"], check=False)


def family(daemon: Daemon) -> list[int]:
    """The process ids of the daemon."""
    pids = [daemon.process.pid]
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            pids += map(int, (task / "children").read_text().split())
    return pids


def cpu_s(daemon: Daemon) -> float:
    """The CPU time of the daemon so far."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in family(daemon)]
    return sum(int(it[11]) + int(it[12]) for it in fields) / os.sysconf("SC_CLK_TCK")


def rss_mib(daemon: Daemon) -> float:
    """The memory of the daemon."""
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in family(daemon))
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def descriptors(daemon: Daemon) -> int:
    """The open descriptors of the daemon."""
    return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in family(daemon))


def two_services(stage: Stage, workers: int = 1, *, netfilter: str = "nftables") -> Daemon:
    """A daemon with two Services, each with four endpoints."""
    stage.write_service(range(4))
    stage.write_service(range(4), name="other", vip=OTHER_VIP)
    daemon = stage.daemon(QUICK, f"--workers={workers}", netfilter=netfilter)
    if netfilter == KERNEL:
        await_rescue(daemon)
    stage.await_answers(0, 1, 2, 3)
    stage.await_answers(0, 1, 2, 3, address=OTHER)
    return daemon


each_path = pytest.mark.parametrize("netfilter", ["nftables", KERNEL])


@pytest.fixture
def netfilter() -> str:
    """The adapter, or the kernel path; some tests have both."""
    return "nftables"


@pytest.fixture
def served(stage: Stage, netfilter: str) -> Iterator[tuple[Stage, Daemon]]:
    """Two Services, each with four endpoints."""
    daemon = two_services(stage, netfilter=netfilter)
    yield stage, daemon
    assert daemon.process.poll() is None, daemon.log()


@pytest.mark.parametrize(
    ("workers", "netfilter"), [(0, "nftables"), (2, "nftables"), (1, KERNEL)], ids=["0", "2", KERNEL]
)
@pytest.mark.parametrize(
    ("fault", "pods"),
    [(HOLE, (2,)), (REFUSAL, (2,)), (HOLE, (0, 1, 3))],
    ids=["one of four is black-holed", "one of four refuses", "three of four are black-holed"],
)
def test_no_client_sees_a_dead_endpoint(
    stage: Stage, fault: str, pods: tuple[int, ...], workers: int, netfilter: str
) -> None:
    """Only the clients of the first moment wait for a dead endpoint."""
    two_services(stage, workers, netfilter=netfilter)
    with broken(stage, fault, *pods):
        seen = first_bytes(stage.client, WEB, 2000, at_once=50, per_s=1000)
    later = seen.times(since_s=1.0)
    print(f"\n{summary(seen.times())}, {len(seen.failed)} failed; after the first second {summary(later)}")
    assert not seen.failed
    if fault == HOLE:
        assert percentile(seen.times(), 100) > STEP_S, "no client has met the dead endpoint"
    # A quarter of the clients, if they still met the dead endpoint; a busy machine delays some, too.
    assert percentile(later, 90) < STEP_S
    # As soon as the endpoints are back, all of them serve again.
    began = time.monotonic()
    until(lambda: len(ask_often(stage.client, WEB, 20, at_once=4)) == 4, "all four answer", within_s=20)
    print(f"all four answer {time.monotonic() - began:.1f} s after they could")


def test_an_endpoint_whose_host_is_gone_is_not_said_to_refuse(stage: Stage) -> None:
    """The runbook decides by the reason: an endpoint that refuses is there, and does not listen."""
    stage.write_service([0])
    daemon = stage.daemon(QUICK, "--workers=1")
    stage.await_answers(0)

    def scrape() -> str:
        return daemon.get("/metrics", address=METRICS).body

    failed = 'kubeproxy_connections_failed_total{namespace="default",service="web",port="http",reason='
    with broken(stage, GONE, 0):
        for _ in range(3):
            with pytest.raises(OSError):
                ask(stage.client, WEB)
        until(lambda: f'{failed}"unreachable"}} 3' in scrape(), "all three were counted as unreachable")
        assert f'{failed}"refused"}} 0' in scrape()
        until(lambda: "endpoint ejected" in daemon.log(), "the ejection is logged")
    assert "reason=unreachable" in daemon.log()


@each_path
def test_a_client_with_a_dead_endpoint_stays_with_another(stage: Stage, netfilter: str) -> None:
    web = service()
    web["spec"]["sessionAffinity"] = "ClientIP"
    stage.write("web", web, endpoints("web", range(4)))
    daemon = stage.daemon(QUICK, "--workers=2", netfilter=netfilter)
    if netfilter == KERNEL:
        await_rescue(daemon)
    until(lambda: WEB in kernel_state.redirects(stage.node), f"a rule for {WEB}")
    (mine,) = ask_often(stage.client, WEB, 20)
    with broken(stage, HOLE, int(mine.removeprefix("pod-"))):
        seen = first_bytes(stage.client, WEB, 2000, at_once=50, per_s=1000)
        (other,) = ask_often(stage.client, WEB, 20)
    later = seen.times(since_s=1.0)
    print(f"\n{summary(seen.times())}, {len(seen.failed)} failed; after the first second {summary(later)}")
    assert not seen.failed
    # A quarter of the clients, if they still met the dead endpoint; a busy machine delays some, too.
    assert percentile(later, 90) < STEP_S
    assert set(ask_often(stage.client, WEB, 20)) == {other} != {mine}


@each_path
def test_a_killed_endpoint_ends_its_own_connections_only(served: tuple[Stage, Daemon]) -> None:
    stage, _ = served
    with ExitStack() as stack:
        sockets = [
            stack.enter_context(host.connect(WEB, timeout=30)) for host in stage.asking for _ in range(LONG_CONNECTIONS)
        ]
        for sock in sockets:
            sock.sendall(b"drip 1000 0.2\n")
        names = [_line(sock) for sock in sockets]
        assert set(names) == {f"pod-{pod}" for pod in range(4)}
        stage.kill_backend(1)
        try:
            for host in stage.asking:
                assert set(ask_often(host, WEB, 60, at_once=4)) == {"pod-0", "pod-2", "pod-3"}
            for sock, name in zip(sockets, names, strict=True):
                assert _rest(sock) == (name if name != "pod-1" else "")
        finally:
            stage.start_backends(1)


def _line(sock: socket.socket) -> str:
    """The next line of a connection; empty if it has ended."""
    said = b""
    with suppress(ConnectionResetError):
        while not said.endswith(b"\n") and (data := sock.recv(1)):
            said += data
    return said.decode().strip()


def _rest(sock: socket.socket) -> str:
    """What a connection says after all that has come by now; empty if it has ended."""
    sock.setblocking(False)
    with suppress(BlockingIOError, ConnectionResetError):
        while sock.recv(65536):
            pass
    sock.setblocking(True)
    sock.settimeout(30)
    return _line(sock)


@each_path
def test_when_all_endpoints_are_dead_only_their_clients_fail(served: tuple[Stage, Daemon], netfilter: str) -> None:
    """The userspace path resets them after its last attempt; the kernel path goes on leading to silent endpoints."""
    stage, _ = served
    # The other Service has its own pods: another port of the same pods would fail in the same way.
    stage.write_service((0, 1), name="web")
    stage.write_service((2, 3), name="other", vip=OTHER_VIP)
    stage.await_answers(0, 1)
    stage.await_answers(2, 3, address=OTHER)
    before = first_bytes(stage.client, OTHER, 1000, at_once=1)
    with broken(stage, HOLE, 0, 1), FirstBytes(stage.client, OTHER) as beside:
        seen = first_bytes(stage.client, WEB, 50, at_once=50)
    took = sorted(took for _, took, _ in seen.failed)
    print(
        f"\nfailed after {took[0]:.2f} to {took[-1]:.2f} s; clients of the other Service before"
        f" {summary(before.times())}; beside {summary(beside.seen.times())}"
    )
    assert not seen.answered
    why = "silence" if netfilter == KERNEL else os.strerror(errno.ECONNRESET)
    assert {found for _, _, found in seen.failed} == {why}
    assert took[0] > LADDER_S * 0.9
    assert not beside.seen.failed
    assert percentile(beside.seen.times(), 100) < LADDER_S * 0.9, "no wait behind clients of dead endpoints"


@each_path
def test_an_endpoint_that_is_listed_again_gets_its_chance_at_once(served: tuple[Stage, Daemon], netfilter: str) -> None:
    """The daemon ejects it for up to 30 s. A return to the list ends that."""
    stage, _ = served
    with broken(stage, REFUSAL, 2):
        for _ in range(4):  # so that it is ejected for a while
            ask_often(stage.client, WEB, 20, at_once=5)
            time.sleep(1.1)
    # The answers show that the list without the endpoint was in use.
    stage.write_service((0, 1))
    stage.await_answers(0, 1)
    stage.write_service(range(4))
    began = time.monotonic()
    # On the kernel path it has one state for all Services, and waits for the next dial, at most 5 s.
    within_s = 2 if netfilter != KERNEL else 20
    until(lambda: "pod-2" in ask_often(stage.client, WEB, 8), "the endpoint answers", within_s=within_s)
    print(f"\nback in use after {time.monotonic() - began:.2f} s")


def test_a_flood_takes_all_descriptors_but_those_of_others(stage: Stage) -> None:
    """RLIMIT_NOFILE is 256, and 2,000 clients connect and send nothing."""
    stage.write_service(range(4))
    stage.write_service(range(4), name="other", vip=OTHER_VIP)
    daemon = stage.daemon(QUICK, "--workers=1", command=["prlimit", "--nofile=256:256", KUBEPROXY])
    stage.await_answers(0, 1, 2, 3)
    stage.await_answers(0, 1, 2, 3, address=OTHER)
    before = descriptors(daemon)
    with ExitStack() as flood:
        for _ in range(2000):
            sock = flood.enter_context(stage.client.make_socket())
            sock.setblocking(False)
            sock.connect_ex(WEB)
        until(lambda: descriptors(daemon) >= before + 80, "descriptors run out")
        used = cpu_s(daemon)
        time.sleep(2.0)
        busy = (cpu_s(daemon) - used) / 2.0
        print(f"\nfull, with {descriptors(daemon)} descriptors in use: {busy:.1%} of a core")
        assert busy < 0.3
        for _ in range(10):
            assert ask(stage.client, OTHER).startswith("pod-")
        assert daemon.process.poll() is None
    began = time.monotonic()
    assert ask(stage.client, WEB, timeout_s=20).startswith("pod-")
    print(f"served again {time.monotonic() - began:.2f} s after the flood")
    until(lambda: descriptors(daemon) <= before + 4, "descriptors are given back", within_s=20)
    assert "Traceback" not in daemon.log(), daemon.log()


@each_path
def test_a_syn_flood_does_not_stop_another_service(served: tuple[Stage, Daemon]) -> None:
    """A SYN flood: the client drops every answer."""
    stage, _ = served
    stage.client.run(["nft", "add table inet deaf"])
    try:
        stage.client.run(["nft", "add chain inet deaf input { type filter hook input priority 0; }"])
        stage.client.run(["nft", f"add rule inet deaf input ip saddr {VIP} drop"])
        with ExitStack() as flood:
            for _ in range(3000):
                sock = flood.enter_context(stage.client.make_socket())
                sock.setblocking(False)
                sock.connect_ex(WEB)
            for _ in range(20):
                assert ask(stage.client, OTHER, timeout_s=2).startswith("pod-")
            assert ask(stage.node, WEB, timeout_s=5).startswith("pod-")
    finally:
        stage.client.run(["nft", "delete table inet deaf"])


def test_slow_readers_cost_no_memory(served: tuple[Stage, Daemon]) -> None:
    """The backend sends each a gigabyte, and they read slowly: the unread rest stays at the backend."""
    stage, daemon = served
    before = rss_mib(daemon)
    with ExitStack() as readers:
        socks = [readers.enter_context(stage.client.connect(WEB)) for _ in range(20)]
        for sock in socks:
            sock.sendall(b"both 1000000000 x\n")
        for _ in range(5):
            for sock in socks:
                assert len(sock.recv(1)) == 1
            time.sleep(0.5)
        after = rss_mib(daemon)
    print(f"\nRSS of all processes {before:.1f} MiB, then {after:.1f} MiB")
    assert after < before + 16
    assert ask(stage.client, WEB).startswith("pod-")


def test_resets_in_every_state_leave_nothing_behind(served: tuple[Stage, Daemon]) -> None:
    stage, daemon = served
    ask_often(stage.client, WEB, 50, at_once=10)
    before = descriptors(daemon)

    def nothing(sock: socket.socket) -> None:
        """Reset a new connection, perhaps before the proxy has accepted it."""

    def asked(sock: socket.socket) -> None:
        sock.sendall(b"slow 0.2\n")

    def half_asked(sock: socket.socket) -> None:
        sock.sendall(b"na")

    def answered(sock: socket.socket) -> None:
        sock.sendall(b"both 100000 x\n")
        sock.recv(1)

    def in_bulk(sock: socket.socket) -> None:
        sock.sendall(b"both 50000000 x\n")
        for _ in range(20):
            sock.recv(65536)

    def after_its_fin(sock: socket.socket) -> None:
        sock.sendall(b"slow 0.2\n")
        sock.shutdown(socket.SHUT_WR)

    def after_their_fin(sock: socket.socket) -> None:
        sock.sendall(b"name\n")
        while sock.recv(100):
            pass

    for state in (nothing, half_asked, asked, answered, in_bulk, after_its_fin, after_their_fin):
        for _ in range(10):
            with stage.client.connect(WEB) as sock, suppress(ConnectionError):
                state(sock)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    assert ask(stage.client, WEB).startswith("pod-")
    # Two pipes may stay in the pool.
    until(lambda: descriptors(daemon) <= before + 8, f"at most {before} descriptors and a few: {descriptors(daemon)}")
