"""Marks and hop limits of dials: the client's as the kernel reports it, and the dial's as the endpoint sees it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from kubeproxy.dataplane.sockets.loop_prevention import (
    COST,
    FARTHEST,
    IP_RECVTTL,
    hops_left,
    hops_of,
    limit_hops,
    mark,
    save_syns,
    why_not_marked,
)
from kubeproxy.model import MARK, Address, Protocol, Target
from kubeproxy.runtime import privileges
from kubeproxy.runtime.threads import in_thread
from tests.dataplane.conftest import Bench, eventually, frontend

LOOPBACK = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}


def test_a_loop_ends_after_eight_proxies() -> None:
    hops, passed = FARTHEST, 0
    while (hops := hops_left(hops)) > 0:
        passed += 1
    assert passed < FARTHEST / COST == 8


@pytest.mark.parametrize(
    ("received", "left"), [(0, 56), (64, 56), (128, 56), (255, 56), (34, 26), (9, 1), (8, 0), (1, 0)]
)
def test_a_dial_has_fewer_hops_than_its_client(received: int, left: int) -> None:
    assert hops_left(received) == left


@pytest.mark.parametrize("family", LOOPBACK)
def test_the_hop_limit_of_a_client_is_read_from_its_syn(family: socket.AddressFamily) -> None:
    with socket.socket(family) as listener, socket.socket(family) as client:
        save_syns(listener)
        listener.bind((LOOPBACK[family], 0))
        listener.listen()
        limit_hops(client, 37)
        client.connect(listener.getsockname())
        accepted, _ = listener.accept()
        with accepted:
            assert hops_of(accepted.fileno()) == 37
            assert hops_of(accepted.fileno()) == 0, "the kernel reports it once"


@pytest.fixture
def receiver() -> Iterator[socket.socket]:
    """A UDP endpoint that reads the hop limit of each datagram."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.IPPROTO_IP, IP_RECVTTL, 1)
        sock.bind(("127.0.0.1", 0))
        sock.setblocking(False)
        yield sock


async def receive(sock: socket.socket) -> tuple[bytes, int]:
    """The next datagram and its hop limit."""
    for _ in range(500):
        with contextlib.suppress(BlockingIOError):
            data, ancillary, _, _ = sock.recvmsg(100, 100)
            return data, int.from_bytes(ancillary[0][2][:1], "little")
        await asyncio.sleep(0.01)
    raise TimeoutError


async def test_datagrams_lose_hops_and_never_gain_any(bench: Bench, receiver: socket.socket) -> None:
    """A session keeps the lowest hop limit that it has met: a ring of sessions ends, too."""
    target = Target(Address("127.0.0.1"), receiver.getsockname()[1])
    address = await bench.serve(target, protocol=Protocol.UDP)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.connect(address)
        for sent, arrives in ((64, 56), (40, 32), (60, 32)):
            limit_hops(client, sent)
            client.send(b"x")
            assert await receive(receiver) == (b"x", arrives)
        limit_hops(client, 8)
        client.send(b"y")
        await eventually(lambda: bench.plane.engine.counters()[frontend()].looped == 1)
        limit_hops(client, 64)
        client.send(b"z")
        assert await receive(receiver) == (b"z", 32)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.connect(address)
        limit_hops(client, 1)
        client.send(b"y")
        await eventually(lambda: bench.plane.engine.counters()[frontend()].looped == 2)
        assert bench.plane.engine.worker_status().looped == 2
        assert bench.plane.engine.counters()[frontend()].accepted == 1


async def connect_and_read(loop: asyncio.AbstractEventLoop, sock: socket.socket, address: tuple[str, int]) -> bytes:
    """The first byte; OSError if there is none."""
    await loop.sock_connect(sock, address)
    return await loop.sock_recv(sock, 1)


async def test_a_connection_that_came_too_far_is_reset(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = await bench.serve(Target(Address("127.0.0.1"), server.getsockname()[1]))
        client = socket.socket()
        limit_hops(client, 8)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        with client, pytest.raises(ConnectionResetError):
            await asyncio.wait_for(connect_and_read(loop, client, address), 10)
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
    counters = bench.plane.engine.counters()[frontend()]
    assert (counters.looped, counters.failed, counters.active) == (1, 1, 0)


@pytest.mark.skipif(not privileges.held() >> privileges.Capability.NET_ADMIN & 1, reason="needs CAP_NET_ADMIN")
async def test_a_dial_is_marked(bench: Bench) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        mark(sock)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_MARK) == MARK
    assert await in_thread(why_not_marked) is None
    assert privileges.held(), "only that thread has lost any"


def test_without_privileges_a_dial_is_not_marked() -> None:
    found: list[str | None] = []

    def look() -> None:
        privileges.use_alone(())
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            mark(sock)
            found.append(str(sock.getsockopt(socket.SOL_SOCKET, socket.SO_MARK)))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == ["0"]
    assert os.getuid() or privileges.held()
