"""UDP from outside: whole datagrams, late answers, answers from the address asked, sessions that outlive changes."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.lab import Daemon
from tests.system.e2e.backend import noise
from tests.system.e2e.conftest import PATHS, lasting
from tests.system.e2e.full_services import (
    FAMILIES,
    V4,
    V6,
    Cell,
    Whole,
    of_cells,
    start_mirrors,
    udp,
)
from tests.system.e2e.stage import Stage, until
from tests.system.e2e.udp_clients import SOON_S, WAYS, Loyal

pytestmark = pytest.mark.netns

WHOLE = Whole(1)
SECOND = {V4: "10.2.0.9", V6: "fd00:2::9"}
"""Another address of the node, on the interface that has the first."""
SOURCES = ("10.2.0.2", "10.2.0.21", "10.2.0.22", "10.2.0.23")
"""The client's addresses."""


@pytest.fixture(scope="module")
def mirrors(theatre: Stage) -> Stage:
    """With pods that answer with the client's address, a node of two addresses and a client of four."""
    start_mirrors(theatre)
    theatre.node.ip(f"addr add {SECOND[V4]}/24 dev to-client", f"addr add {SECOND[V6]}/64 dev to-client nodad")
    theatre.client.ip(*(f"addr add {source}/24 dev eth0" for source in SOURCES[1:]))
    return theatre


@pytest.fixture(scope="module", params=PATHS)
def daemon(request: pytest.FixtureRequest, mirrors: Stage) -> Iterator[Daemon]:
    """One for all tests with an adapter, and a Service that stays."""
    yield from lasting(mirrors, WHOLE, request.param)


@pytest.mark.parametrize("size", [0, 1, 1400, 4097, 9000, 60_000])
def test_datagrams_come_back_whole(mirrors: Stage, daemon: Daemon, size: int) -> None:
    def echoed(cell: Cell) -> bool:
        sent = noise(size, str(cell))
        with udp(cell.host(mirrors), WHOLE.address(cell.kind, cell.family)) as sock:
            sock.send(sent)
            return sock.recv(65_536) == sent

    assert all(of_cells(echoed, WAYS).values())


def test_an_answer_that_is_five_seconds_late_arrives(mirrors: Stage, daemon: Daemon) -> None:
    def echoed(cell: Cell) -> bool:
        sent = f"late 5 {cell}".encode()
        with udp(cell.host(mirrors), WHOLE.address(cell.kind, cell.family), timeout_s=15) as sock:
            sock.send(sent)
            return sock.recv(65_536) == sent

    assert all(of_cells(echoed, WAYS).values())


@pytest.mark.parametrize("family", FAMILIES)
def test_an_answer_comes_from_the_address_that_was_asked(mirrors: Stage, daemon: Daemon, family: int) -> None:
    first, port = WHOLE.address("node port", family)
    places = [(first, port), (SECOND[family], port), WHOLE.address("cluster IP", family)]
    kind = socket.AF_INET6 if family == V6 else socket.AF_INET
    for host in mirrors.asking:
        # Only this socket's destination tells the flows apart.
        with host.make_socket(kind, socket.SOCK_DGRAM) as sock:
            sock.settimeout(5)
            for turn in range(9):
                place, said = places[turn % 3], f"{turn}".encode()
                sock.sendto(said, place)
                answer, source = sock.recvfrom(100)
                assert (answer, source[:2]) == (said, place)


def test_ten_thousand_clients_are_not_mixed_up(mirrors: Stage, daemon: Daemon) -> None:
    place = WHOLE.address("cluster IP", V4)
    at_once = 250
    for batch in range(10_000 // at_once):
        with ExitStack() as held:
            clients = {
                held.enter_context(udp(mirrors.client, place, source=SOURCES[index % len(SOURCES)])): index
                for index in range(batch * at_once, (batch + 1) * at_once)
            }
            for turn in range(2):
                for sock, index in clients.items():
                    sock.send(f"{index} {turn}".encode())
                for sock, index in clients.items():
                    assert sock.recv(100) == f"{index} {turn}".encode()
            assert select.select(list(clients), [], [], 0)[0] == [], "more answers than questions"


def test_a_client_that_keeps_its_socket_is_served_again(mirrors: Stage, daemon: Daemon) -> None:
    with ExitStack() as held:
        loyal = Loyal(mirrors, WHOLE, held)
        loyal.await_service("at first")
        mirrors.remove(WHOLE.name)
        loyal.await_silence("deleted")
        mirrors.write(WHOLE.name, *WHOLE.objects(0, 1))
        loyal.await_service("made again")
        mirrors.write(WHOLE.name, *WHOLE.objects())
        loyal.await_silence("without endpoints")
        mirrors.write(WHOLE.name, *WHOLE.objects(2))
        loyal.await_service("with endpoints again")
        mirrors.write(WHOLE.name, *WHOLE.objects(3))
        loyal.await_service("with another endpoint")
        mirrors.write(WHOLE.name, *WHOLE.objects(0, 1))
        loyal.await_service("as at first")


def test_a_client_that_keeps_its_socket_follows_a_port(mirrors: Stage, daemon: Daemon) -> None:
    ways = [cell for cell in WAYS if cell.kind in ("cluster IP", "external IP", "load balancer IP")]

    def unserved(sockets: list[socket.socket]) -> int:
        count = 0
        for sock in sockets:
            try:
                sock.send(b"hello")
                sock.recv(100)
            except OSError:
                count += 1
        return count

    with ExitStack() as held:
        old, new = (
            [
                held.enter_context(udp(cell.host(mirrors), WHOLE.address(cell.kind, cell.family, port), timeout_s=0.05))
                for cell in ways
            ]
            for port in (80, 81)
        )
        until(lambda: unserved(old) == 0, "the old port is served")
        assert unserved(new) == len(ways)
        mirrors.write(WHOLE.name, *WHOLE.objects(0, 1, port=81))
        until(lambda: unserved(new) == 0, "the new port is served", within_s=SOON_S)
        until(lambda: unserved(old) == len(ways), "the old port is not")
        mirrors.write(WHOLE.name, *WHOLE.objects(0, 1))
        until(lambda: unserved(old) == 0, "the old port is served again", within_s=SOON_S)
        until(lambda: unserved(new) == len(ways), "the new port is not")
