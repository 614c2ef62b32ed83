"""Batches of datagrams: complete, in order, with the right peers."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

import pytest

from kubeproxy.dataplane.sockets.udp_options import prepare
from kubeproxy.dataplane.udp.mmsg import SLOTS, Arrivals, Departures, host_of, reply_to

FAMILIES = pytest.mark.parametrize(
    ("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")], ids=["ipv4", "ipv6"]
)


class Server:
    """A socket towards clients; records the bytes and dropped datagrams of each batch."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.batches: list[tuple[int, int]] = []

    def fileno(self) -> int:
        return self.sock.fileno()

    def sent(self, byte_count: int, dropped: int) -> None:
        self.batches.append((byte_count, dropped))


@contextlib.contextmanager
def serving(family: socket.AddressFamily, host: str) -> Iterator[Server]:
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        prepare(sock)
        sock.bind((host, 0))
        yield Server(sock)


@contextlib.contextmanager
def clients_of(server: Server, count: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket.socket(server.sock.family, socket.SOCK_DGRAM)) for _ in range(count)]
        for client in clients:
            client.settimeout(5)
            client.connect(server.sock.getsockname())
        yield clients


def put(departures: Departures, server: Server, datagram: bytes, peer: bytes) -> None:
    departures.room(server)[: len(datagram)] = datagram
    departures.add(len(datagram), peer)


@FAMILIES
def test_more_than_a_batch_both_ways(family: socket.AddressFamily, host: str) -> None:
    count = SLOTS + 5
    with serving(family, host) as server, clients_of(server, count) as clients:
        arrivals, departures = Arrivals(family), Departures(family)
        for number, client in enumerate(clients):
            client.send(b"%d" % number * number)
        batches = [arrivals.receive(server.fileno()) for _ in range(3)]
        assert [len(batch) for batch in batches] == [SLOTS, 5, 0]
        for peer, datagram in batches[0] + batches[1]:
            assert host_of(peer, family) == host
            put(departures, server, datagram, reply_to(peer, family))
        departures.flush()
        departures.flush()
        assert [client.recv(1000) for client in clients] == [b"%d" % number * number for number in range(count)]
        assert sum(sent for sent, _ in server.batches) == sum(len(b"%d" % number * number) for number in range(count))
        assert not any(dropped for _, dropped in server.batches)


@FAMILIES
def test_a_client_has_the_same_peer_in_every_slot(family: socket.AddressFamily, host: str) -> None:
    with serving(family, host) as server, clients_of(server, 2) as (one, other):
        arrivals = Arrivals(family)
        for size in (1, 60_000, 0, 7):
            one.send(bytes(size))
        other.send(b"x")
        one.send(bytes(3))
        arrived = arrivals.receive(server.fileno())
        assert [len(datagram) for _, datagram in arrived] == [1, 60_000, 0, 7, 1, 3]
        peers = [peer for peer, _ in arrived]
        assert len({*peers[:4], peers[5]}) == 1
        assert peers[4] != peers[0]


def test_an_answer_leaves_from_the_address_that_was_used() -> None:
    with serving(socket.AF_INET, "0.0.0.0") as server, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(5)
        asked = ("127.0.0.77", server.sock.getsockname()[1])
        client.sendto(b"?", asked)
        [(peer, _)] = Arrivals(socket.AF_INET).receive(server.fileno())
        departures = Departures(socket.AF_INET)
        put(departures, server, b"!", reply_to(peer, socket.AF_INET))
        departures.flush()
        assert client.recvfrom(10) == (b"!", asked)


def test_a_datagram_that_cannot_be_sent_is_dropped_alone() -> None:
    with serving(socket.AF_INET, "127.0.0.1") as server, clients_of(server, 1) as (client,):
        client.send(b"?")
        [(peer, _)] = Arrivals(socket.AF_INET).receive(server.fileno())
        reply = reply_to(peer, socket.AF_INET)
        nowhere = reply[:2] + bytes(2) + reply[4:]  # port 0
        departures = Departures(socket.AF_INET)
        for datagram, to in ((b"a", reply), (b"lost", nowhere), (b"b", reply)):
            put(departures, server, datagram, to)
        departures.flush()
        assert [client.recv(10), client.recv(10)] == [b"a", b"b"]
        assert server.batches == [(2, 1)]


def test_a_batch_has_one_sender() -> None:
    with serving(socket.AF_INET, "127.0.0.1") as first, serving(socket.AF_INET, "127.0.0.1") as second:
        departures = Departures(socket.AF_INET)
        with clients_of(first, 1) as (one,), clients_of(second, 1) as (other,):
            for server, client in ((first, one), (second, other)):
                client.send(b"?")
                [(peer, _)] = Arrivals(socket.AF_INET).receive(server.fileno())
                put(departures, server, b"!", reply_to(peer, socket.AF_INET))
            assert first.batches == [(1, 0)]
            departures.forget(first)
            assert second.batches == []
            departures.forget(second)
            assert second.batches == [(1, 0)]
            assert one.recv(10) == other.recv(10) == b"!"


def test_an_icmp_error_is_raised_and_no_datagram_is_lost() -> None:
    with serving(socket.AF_INET, "127.0.0.1") as server, clients_of(server, 1) as (client,):
        server.sock.setsockopt(socket.IPPROTO_IP, 11, 1)  # IP_RECVERR: else an unconnected socket gets none
        arrivals = Arrivals(socket.AF_INET)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as gone:
            gone.bind(("127.0.0.1", 0))
            no_endpoint = gone.getsockname()
        server.sock.sendto(b"?", no_endpoint)
        client.send(os.urandom(8))
        with pytest.raises(ConnectionRefusedError):
            arrivals.receive(server.fileno())
        assert len(arrivals.receive(server.fileno())) == 1
