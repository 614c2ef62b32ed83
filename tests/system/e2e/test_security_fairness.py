"""Security finding 8: flooded Services, many of them and by UDP too, do not keep others from being served."""

from __future__ import annotations

import re
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.lab import Daemon
from tests.support.lab.daemon import KUBEPROXY, METRICS
from tests.system.e2e import kernel_state
from tests.system.e2e.full_services import MIRROR, start_mirrors, udp
from tests.system.e2e.stage import QUICK, Object, Stage, ask, endpoints, service, until
from tests.system.e2e.test_faults import descriptors

pytestmark = pytest.mark.netns

CLIENTS = 2600
HELLO = ("10.96.0.200", 80)
NEIGHBOUR = ("10.96.0.201", 80)


@pytest.fixture(scope="module")
def mirrors(theatre: Stage) -> None:
    """Every pod answers with the client's address by UDP."""
    start_mirrors(theatre)


@pytest.fixture
def many_files() -> Iterator[None]:
    """This process may have as many sockets as the flood takes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 2 * CLIENTS)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def of_namespace(namespace: str, *objects: Object) -> list[Object]:
    """The same objects, of another tenant."""
    return [{**it, "metadata": {**it["metadata"], "namespace": namespace}} for it in objects]


def serve(stage: Stage, floods: int, *options: str, limit: int) -> Daemon:
    """A daemon with Services of one tenant to be flooded, one more of that tenant, and one of another."""
    for number in range(floods):
        stage.write_service([0, 1], name=f"flooded-{number}", vip=f"10.96.0.{100 + number}")
    stage.write_service([2], name="neighbour", vip=NEIGHBOUR[0])
    stage.write("hello", *of_namespace("other", service("hello", HELLO[0]), endpoints("hello", [3])))
    daemon = stage.daemon(QUICK, *options, command=["prlimit", f"--nofile={limit}:{limit}", KUBEPROXY])
    stage.await_answers(2, address=NEIGHBOUR)
    stage.await_answers(3, address=HELLO)
    for number in range(floods):
        address = (f"10.96.0.{100 + number}", 80)
        until(lambda: address in kernel_state.redirects(stage.node), "a rule")  # noqa: B023
    return daemon


@pytest.mark.parametrize("floods", [2, 12])
@pytest.mark.parametrize("limit", [1024, 2048])
@pytest.mark.usefixtures("many_files")
def test_flooded_services_leave_room_for_others(stage: Stage, limit: int, floods: int) -> None:
    """Silent clients of several Services of one tenant: those of others are served, and so is one more of its own."""
    daemon = serve(stage, floods, "--workers=1", limit=limit)
    before = descriptors(daemon)
    with ExitStack() as flood:
        for number in range(floods):
            for _ in range(CLIENTS // floods):
                sock = flood.enter_context(stage.client.make_socket())
                sock.setblocking(False)
                sock.connect_ex((f"10.96.0.{100 + number}", 80))
        until(lambda: descriptors(daemon) > before + 0.7 * limit, "descriptors run short")
        time.sleep(1.0)
        print(f"\n{descriptors(daemon)} descriptors of {limit}")
        for address in (HELLO, NEIGHBOUR):
            took = []
            for _ in range(20):
                began = time.monotonic()
                assert ask(stage.client, address, timeout_s=3).startswith("pod-"), address
                took.append(time.monotonic() - began)
            print(f"{address}: served in at most {1000 * max(took):.1f} ms")
        with ExitStack() as kept:  # and not only one at a time
            for _ in range(5):
                sock = kept.enter_context(stage.client.connect(HELLO, timeout=3))
                sock.sendall(b"drip 100 1\n")
                assert sock.recv(100)
    assert "Traceback" not in daemon.log(), daemon.log()


def datagrams(name: str, vip: str, port: int = 53) -> list[Object]:
    """A UDP Service with one mirror."""
    made = service(name, vip, {"dns": port})
    made["spec"]["ports"][0]["protocol"] = "UDP"
    listed = endpoints(name, [0], ["dns"])
    listed["ports"] = [{"name": "dns", "port": MIRROR, "protocol": "UDP"}]
    return [made, listed]


@pytest.mark.parametrize("limit", [1024, 4096])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.usefixtures("mirrors")
def test_a_flood_of_datagrams_evicts_no_session_of_another_service(stage: Stage, workers: int, limit: int) -> None:
    """20,000 source ports, as a sender of forged addresses has them; TCP Services go on, too."""
    stage.write("flooded", *datagrams("flooded", "10.96.0.100"))
    stage.write("quiet", *datagrams("quiet", "10.96.0.101"))
    stage.write_service([1], name="neighbour", vip=NEIGHBOUR[0])
    daemon = stage.daemon(QUICK, f"--workers={workers}", command=["prlimit", f"--nofile={limit}:{limit}", KUBEPROXY])
    stage.await_answers(1, address=NEIGHBOUR)
    until(lambda: {("10.96.0.100", 53), ("10.96.0.101", 53)} <= kernel_state.redirects(stage.node).keys(), "rules")
    with ExitStack() as stack:
        loyal = [stack.enter_context(udp(stage.client, ("10.96.0.101", 53), timeout_s=15)) for _ in range(10)]
        before = [answer(sock) for sock in loyal]
        began = time.monotonic()
        with stage.client.entered():
            for _ in range(20_000):
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                    # Never answered: the port of an evicted session is used again, and with it its late answer.
                    sock.sendto(b"late 3600 x", ("10.96.0.100", 53))
        print(f"\n{20_000 / (time.monotonic() - began):.0f} datagrams a second")
        assert [answer(sock) for sock in loyal] == before, "every client has the session that it had"
        with udp(stage.client, ("10.96.0.101", 53), timeout_s=15) as late:
            assert answer(late).startswith("pod-0")
        assert ask(stage.client, NEIGHBOUR, timeout_s=15) == "pod-1"
    until(lambda: evicted(daemon, "flooded") > 0, "the flood evicts its own")
    assert evicted(daemon, "quiet") == 0


def answer(sock: socket.socket) -> str:
    """Which pod answers, and from which port it is asked: the session's."""
    sock.send(b"name")
    return sock.recv(100).decode()


def evicted(daemon: Daemon, name: str) -> float:
    """Sessions of a Service that made room for others."""
    text = daemon.get("/metrics", address=METRICS).body
    pattern = rf'^kubeproxy_udp_sessions_evicted_total{{[^}}]*service="{name}"[^}}]*}} (\S+)'
    return sum(map(float, re.findall(pattern, text, re.MULTILINE)))
