"""Exhausted memory and ports, and a link that goes down: the effect on clients, and the recovery."""

from __future__ import annotations

import re
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.lab import Daemon
from tests.support.lab.daemon import METRICS
from tests.system.e2e.stage import KERNEL, QUICK, Stage, ask, await_rescue, until
from tests.system.e2e.test_faults import OTHER, OTHER_VIP, RESET, WEB, cpu_s, descriptors, family

pytestmark = pytest.mark.netns

CLIENTS = 2000


def allow_memory(daemon: Daemon) -> None:
    """Limit each process of the daemon to its present size with RLIMIT_AS."""
    for pid in family(daemon):
        size = re.search(r"VmSize:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        assert size is not None
        limit = int(size[1]) * 1024
        resource.prlimit(pid, resource.RLIMIT_AS, (limit, limit))


@contextmanager
def flood(stage: Stage, request: bytes) -> Iterator[list[socket.socket]]:
    """`CLIENTS` clients of a Service that send a request and read nothing."""
    with ExitStack() as stack:
        socks = []
        for _ in range(CLIENTS):
            sock = stack.enter_context(stage.client.make_socket())
            sock.setblocking(False)
            sock.connect_ex(WEB)
            socks.append(sock)
        if request:
            for sock in socks:
                with suppress(OSError):  # not connected yet
                    sock.send(request)
        yield socks


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("request_", [b"", b"drip 1000 0.1\n"], ids=["silent", "served"])
def test_memory_runs_out(stage: Stage, workers: int, request_: bytes) -> None:
    """All processes survive and serve other Services. After the flood all Services work, though the limit stays."""
    stage.write_service([0, 1])
    stage.write_service([2, 3], name="other", vip=OTHER_VIP)
    daemon = stage.daemon(QUICK, f"--workers={workers}")
    stage.await_answers(0, 1)
    stage.await_answers(2, 3, address=OTHER)
    processes, before = family(daemon), descriptors(daemon)
    allow_memory(daemon)
    with flood(stage, request_):
        until(lambda: descriptors(daemon) > before + 500, "the flood has come")
        # In each process the client at the moment of the shortage may fail.
        assert sum(not answers(stage, OTHER) for _ in range(20)) <= max(1, workers)
        if shortages(daemon):  # memory reserved for threads may be enough
            until(lambda: "no memory for new clients" in daemon.log(), "the log reports it")
            assert "no descriptors for new clients" not in daemon.log()
        if not request_:
            used = cpu_s(daemon)
            time.sleep(1.0)
            print(f"\n{descriptors(daemon)} descriptors, {cpu_s(daemon) - used:.1%} of a core while full")
            assert cpu_s(daemon) - used < 0.3
    began = time.monotonic()
    until(lambda: answers(stage), "served again")
    print(f"\nserved again {time.monotonic() - began:.2f} s after the flood")
    until(lambda: descriptors(daemon) <= before + 8, "descriptors are given back")
    assert daemon.process.poll() is None
    assert family(daemon)[0] == processes[0]
    if workers:
        assert family(daemon) == processes, daemon.log()
    assert "internal error" not in daemon.log(), daemon.log()


def shortages(daemon: Daemon) -> float:
    """The number of memory shortages in the metrics."""
    metrics = daemon.get("/metrics", address=METRICS).body
    return float(re.findall(r"^kubeproxy_memory_shortages_total (\S+)", metrics, re.MULTILINE)[0])


def answers(stage: Stage, address: tuple[str, int] = WEB) -> bool:
    """Whether a Service answers, by default the flooded one."""
    try:
        return ask(stage.client, address, timeout_s=5).startswith("pod-")
    except OSError:
        return False


@pytest.mark.parametrize("workers", [0, 1])
def test_ports_towards_an_endpoint_are_used_up(stage: Stage, workers: int) -> None:
    """The node has ten source ports for connections to endpoints.

    If there is none for an endpoint, another endpoint serves the client. If there is none for any, the client gets an
    error. As soon as some are free again, everything works without an action of the operator.
    """
    stage.write_service([0])
    daemon = stage.daemon(QUICK, f"--workers={workers}")
    stage.await_answers(0)
    stage.node.sysctl("net.ipv4.ip_local_port_range", "40000 40009")
    try:
        with ExitStack() as held:
            while use_a_port(stage, held):
                pass
            with pytest.raises(ConnectionResetError):
                ask(stage.client, WEB)
            until(lambda: "no ephemeral port for a dial" in daemon.log(), "the log reports it")
            assert 'remedy="widen net.ipv4.ip_local_port_range' in daemon.log()
            stage.write_service([0, 1])
            until(lambda: answers(stage), "the other endpoint serves")
            assert {ask(stage.client, WEB) for _ in range(4)} == {"pod-1"}
            stage.write_service([0])
            until(lambda: not answers(stage), "the other endpoint has gone")
        until(lambda: answers(stage), "served again")
    finally:
        stage.node.sysctl("net.ipv4.ip_local_port_range", "32768 60999")
    metrics = daemon.get("/metrics", address=METRICS).body
    failed = [line for line in metrics.splitlines() if "connections_failed" in line and 'reason="local"' in line]
    assert sum(float(line.rpartition(" ")[2]) for line in failed) >= 2
    assert float(re.findall(r"^kubeproxy_ephemeral_ports_exhausted_total (\S+)", metrics, re.MULTILINE)[0]) >= 2


def use_a_port(stage: Stage, held: ExitStack) -> bool:
    """Open a connection that stays; whether it got a port.

    It ends with a reset, so that the port is free at once.
    """
    sock = held.enter_context(stage.client.connect(WEB))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    sock.sendall(b"echo\nx")
    try:
        assert sock.recv(1) == b"x"
    except ConnectionResetError:
        return False
    return True


@pytest.mark.parametrize("netfilter", ["nftables", KERNEL])
def test_a_link_goes_down_and_up_again(stage: Stage, netfilter: str) -> None:
    """For five seconds: running connections continue afterwards, and other pods serve new clients meanwhile.

    Then the pod serves again, too.
    """
    stage.write_service([0, 1])
    daemon = stage.daemon(QUICK, "--workers=1", netfilter=netfilter)
    if netfilter == KERNEL:
        await_rescue(daemon)
    stage.await_answers(0, 1)
    with ExitStack() as open_:
        socks = [open_.enter_context(stage.client.connect(WEB)) for _ in range(8)]
        for sock in socks:
            sock.sendall(b"echo\nbefore")
        for sock in socks:
            assert sock.recv(100) == b"before"
        stage.node.ip("link set pod0 down")
        down_at = time.monotonic()
        try:
            while time.monotonic() < down_at + 5.0:
                assert ask(stage.client, WEB, timeout_s=3) == "pod-1"
                assert ask(stage.node, WEB, timeout_s=3) == "pod-1"
            for sock in socks:
                sock.sendall(b"meanwhile")
        finally:
            stage.node.ip("link set pod0 up")
            stage.node.ip("addr replace fd00:3:0::1/64 dev pod0 nodad")
        for sock in socks:
            assert sock.recv(100) == b"meanwhile"
        print(f"\nall running connections went on {time.monotonic() - down_at - 5.0:.2f} s after the link was back")
    stage.await_answers(0, 1)
    assert "error" not in daemon.log(), daemon.log()
