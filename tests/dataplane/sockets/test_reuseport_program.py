"""The SO_REUSEPORT program, with real packets in a network namespace: one socket for each client, even shares."""

from __future__ import annotations

import select
import socket
import time
from collections import Counter
from contextlib import ExitStack

import pytest

from kubeproxy.dataplane.sockets.reuseport_program import attach, place, program
from kubeproxy.dataplane.sockets.udp_options import SO_RCVBUFFORCE
from kubeproxy.model import Family
from tests.support.lab import Host

CLIENTS = 240
FAMILIES = {
    Family.IPV4: (socket.AF_INET, "127.0.0.1"),
    Family.IPV6: (socket.AF_INET6, "::1"),
}
MASKS = {Family.IPV4: "/32", Family.IPV6: "/128 nodad"}
LAYOUTS = {
    (Family.IPV4, "a subnet"): [f"10.9.0.{n}" for n in range(1, CLIENTS + 1)],
    (Family.IPV4, "a subnet each"): [f"10.{n}.0.2" for n in range(1, CLIENTS + 1)],
    (Family.IPV6, "a subnet"): [f"fd00:9::{n:x}" for n in range(1, CLIENTS + 1)],
    (Family.IPV6, "a subnet each"): [f"fd00:{n:x}::2" for n in range(1, CLIENTS + 1)],
}


def meet(host: Host, family: Family, kind: socket.SocketKind, count: int, clients: list[str]) -> list[Counter[str]]:
    """The clients that each socket gets; every client connects three times."""
    kernel_family, loopback = FAMILIES[family]
    met: list[Counter[str]] = []
    with host.entered(), ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket(kernel_family, kind)) for _ in range(count)]
        for sock in sockets:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind((loopback, sockets[0].getsockname()[1]))
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 4 << 20)
            if kind is socket.SOCK_STREAM:
                sock.listen(4 * CLIENTS)
        attach(sockets[0], program(family, count=count))
        for client in clients:
            for _ in range(3):
                caller = stack.enter_context(socket.socket(kernel_family, kind))
                caller.bind((client, 0))
                caller.connect(sockets[0].getsockname())
                if kind is socket.SOCK_DGRAM:
                    caller.send(b"x")
        # On a busy machine a packet may take a moment, even within one host.
        deadline = time.monotonic() + 10
        met = [Counter() for _ in sockets]
        while sum(seen.total() for seen in met) < 3 * len(clients) and time.monotonic() < deadline:
            for sock in select.select(sockets, [], [], 0.1)[0]:
                if kind is socket.SOCK_STREAM:
                    accepted, address = sock.accept()
                    accepted.close()
                else:
                    _, address = sock.recvfrom(10)
                met[sockets.index(sock)][address[0]] += 1
    return met


@pytest.mark.netns
@pytest.mark.parametrize("count", [2, 3, 4, 8])
@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM], ids=["TCP", "UDP"])
@pytest.mark.parametrize(("family", "layout"), LAYOUTS, ids=lambda value: str(value))
def test_each_client_gets_one_socket_and_shares_are_even(
    family: Family, layout: str, kind: socket.SocketKind, count: int
) -> None:
    clients = LAYOUTS[family, layout]
    with Host("host") as host:
        host.ip(*(f"addr add {client}{MASKS[family]} dev lo" for client in clients))
        met = meet(host, family, kind, count, clients)
    all_clients: Counter[str] = sum(met, Counter())
    assert all_clients == Counter(dict.fromkeys(clients, 3))
    assert sum(len(seen) for seen in met) == len(clients), "no client got two sockets"
    assert [{place(client, count=count) for client in seen} for seen in met] == [{n} for n in range(count)]
    fair = len(clients) / count
    # The shares are binomial: six standard deviations.
    assert all(abs(len(seen) - fair) < 6 * fair**0.5 for seen in met), [len(seen) for seen in met]


def test_the_program_starts_at_the_first_index() -> None:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket(type=socket.SOCK_DGRAM)) for _ in range(3)]
        for sock in sockets:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind(("127.0.0.1", sockets[0].getsockname()[1]))
            sock.settimeout(5)
        attach(sockets[2], program(Family.IPV4, count=1, first=2))
        caller = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
        caller.sendto(b"x", sockets[0].getsockname())
        assert sockets[2].recv(10) == b"x"
