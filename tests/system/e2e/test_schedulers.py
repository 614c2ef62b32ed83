"""Schedulers with the real daemon, on both data paths: who gets which endpoint, and what becomes of a dead one's
clients."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kubeproxy.model import Address, Balancing, Scheduler, Target, seed_of
from kubeproxy.model.maglev import place_of, table_of
from tests.support.lab import Host
from tests.support.lab.node import CLIENT_V4
from tests.system.e2e.stage import KERNEL, QUICK, TARGET, VIP, Stage, ask, ask_often, endpoints, service, until
from tests.system.e2e.test_rescue import REFUSE, dead

pytestmark = pytest.mark.netns

PODS = (0, 1, 2)
TARGETS = tuple(Target(Address(f"10.3.{pod}.2"), TARGET) for pod in PODS)
PATHS = ["nftables", KERNEL]
PORTS = range(42_000, 42_030)


def start(stage: Stage, path: str, *, weights: dict[int, int] | None = None, **annotations: str) -> Any:
    """A daemon with one Service of three pods, which answers."""
    wishes = {"annotations": {f"kubeproxy/{name.replace('_', '-')}": text for name, text in annotations.items()}}
    slices = []
    for pod in PODS:
        one = endpoints("web", [pod])
        one["metadata"] |= {"name": f"web-{pod}", "annotations": {"kubeproxy/weight": str((weights or {}).get(pod, 1))}}
        slices.append(one)
    stage.write("web", service(metadata=wishes), *slices)
    daemon = stage.daemon(QUICK, "--workers=2", "--shutdown-grace=1s", netfilter=path)
    if path == KERNEL:
        until(lambda: "rescue of failed connections" in daemon.log(), "failed connections are rescued")
        until(lambda: frontend_of(stage)["data_path"] == "kernel", "the kernel path")
    return daemon


def frontend_of(stage: Stage) -> Any:
    """The status of the Service's frontend."""
    with stage.node.connect(("127.0.0.1", 10249)) as sock:
        sock.sendall(b"GET /statusz.json?service=default/web HTTP/1.0\r\n\r\n")
        answer = b"".join(iter(lambda: sock.recv(1 << 16), b""))
    return json.loads(answer.partition(b"\r\n\r\n")[2])["services"][0]["frontends"][0]


def ask_from(host: Host, port: int) -> str:
    """Ask for the name of the pod that a client of this port gets; the port is free at once."""
    with host.make_socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        sock.bind(("", port))
        sock.settimeout(20)
        sock.connect((VIP, 80))
        sock.sendall(b"name\n")
        return sock.recv(100).decode()


def of_table(port: int) -> str:
    """The name of the pod that the client has by the table, from a port."""
    table = table_of(TARGETS, Balancing(Scheduler.MAGLEV))
    place = place_of(socket.inet_aton(CLIENT_V4), port, seed=seed_of("default", "web"), size=len(table))
    return f"pod-{TARGETS.index(table[place])}"


@contextmanager
def held(host: Host, count: int) -> Iterator[None]:
    """Connections that stay open, made one after the other."""
    sockets = []
    try:
        for _ in range(count):
            sock = host.connect((VIP, 80))
            sock.settimeout(20)
            sockets.append(sock)
            sock.sendall(b"echo\n12345")
            assert sock.recv(5, socket.MSG_WAITALL) == b"12345"
        yield
    finally:
        for sock in sockets:
            sock.close()


@pytest.mark.parametrize("path", PATHS)
def test_a_client_of_maglev_has_the_endpoint_of_its_table_on_both_paths_and_returns_to_it(
    stage: Stage, path: str
) -> None:
    start(stage, path, scheduler="maglev")
    expected = {port: of_table(port) for port in PORTS}
    assert set(expected.values()) == {"pod-0", "pod-1", "pod-2"}
    until(lambda: ask_from(stage.client, PORTS[0]) == expected[PORTS[0]], "the first answer")
    assert {port: ask_from(stage.client, port) for port in PORTS} == expected
    with held(stage.client, 4):
        until(lambda: sum(it["open"] for it in frontend_of(stage)["endpoints"]) == 4, "what is open to each is shown")
    with dead(stage, 1, REFUSE):
        found = {port: ask_from(stage.client, port) for port in PORTS}
        assert "pod-1" not in found.values()
        assert {port for port in PORTS if found[port] != expected[port]} == {
            port for port in PORTS if expected[port] == "pod-1"
        }, "nobody else has moved"
    # Each worker finds out by itself that the endpoint answers again.
    until(lambda: {port: ask_from(stage.client, port) for port in PORTS} == expected, "its clients return to it")


@pytest.mark.parametrize("path", PATHS)
def test_weights_are_shares(stage: Stage, path: str) -> None:
    start(stage, path, weights={0: 8}, scheduler="random")
    until(lambda: len({endpoint["weight"] for endpoint in frontend_of(stage)["endpoints"]}) == 2, "the weights")
    seen = ask_often(stage.client, (VIP, 80), 150)
    # 120 of 150 are expected at the heaviest; fewer than 90 happen once in many millions of times.
    assert seen["pod-0"] >= 90


def test_least_connections_goes_by_workers_and_fills_up_what_is_emptiest(stage: Stage) -> None:
    """Also when open connections have moved: to a new instance, and to the same one after a re-exec."""
    first = start(stage, "nftables", scheduler="least-connections")

    def even(count: int) -> bool:
        return {endpoint["open"] for endpoint in frontend_of(stage)["endpoints"]} == {count}

    with held(stage.client, 11):
        assert frontend_of(stage)["scheduler"] == "least-connections"
        second = stage.daemon(QUICK, "--workers=2", "--shutdown-grace=1s", netfilter="nftables")
        assert first.process.wait(20) == 0
        with held(stage.client, 1):
            until(lambda: even(4), "what has moved counts")
            second.process.send_signal(signal.SIGUSR2)
            # Two workers of the first instance, and the two of this one before its re-exec.
            until(lambda: second.log().count("orphaned worker has ended") == 4, "the old workers have ended")
            until(lambda: second.log().count("listening server=metrics") == 2, "it shows its status again")
            with held(stage.client, 6):
                until(lambda: even(6), "what has moved counts")
    until(lambda: even(0), "all have ended")


def test_on_the_kernel_path_least_connections_is_a_workers_with_that_reason(stage: Stage) -> None:
    stage.write(
        "web", service(metadata={"annotations": {"kubeproxy/scheduler": "least-connections"}}), endpoints("web", PODS)
    )
    daemon = stage.daemon(QUICK, "--workers=2", netfilter=KERNEL)
    until(lambda: "rescue of failed connections" in daemon.log(), "failed connections are rescued")
    reason = "the scheduler is least-connections, and only workers count what is open"
    until(lambda: frontend_of(stage)["data_path_reason"] == reason, "the reason")
    until(lambda: ask(stage.client, (VIP, 80)).startswith("pod-"), "an answer")


def test_an_unknown_scheduler_is_reported_and_served_in_turn(stage: Stage) -> None:
    daemon = start(stage, "nftables", scheduler="fastest")
    until(lambda: frontend_of(stage)["scheduler"] == "round-robin", "the default")
    assert "'fastest'; allowed: " in daemon.log()
