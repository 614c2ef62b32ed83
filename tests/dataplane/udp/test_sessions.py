"""UDP: complete datagrams, separate sessions, changes of endpoints."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from kubeproxy.dataplane.budgets.fd_budget import DescriptorBudget
from kubeproxy.dataplane.in_process import LocalDataPlane
from kubeproxy.dataplane.interface import Counters
from kubeproxy.dataplane.messages import Retire, SetEndpoints, Tune
from kubeproxy.dataplane.sockets.udp_options import SO_RCVBUFFORCE
from kubeproxy.model import Address, Protocol, Target
from tests.dataplane.conftest import LOOPBACK, Bench, eventually, frontend

Answer = Callable[[bytes, Any], bytes | None]


class _Server(asyncio.DatagramProtocol):
    def __init__(self, answer: Answer, delay_s: float) -> None:
        self.answer = answer
        self.delay_s = delay_s

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self.transport = transport

        # asyncio receives one datagram in each turn of the loop; faster ones have to wait in the buffer.
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 16 << 20)

    def datagram_received(self, data: bytes, addr: Any) -> None:
        answer = self.answer(data, addr)
        if answer is not None:
            asyncio.get_running_loop().call_later(self.delay_s, self.transport.sendto, answer, addr)


@contextlib.asynccontextmanager
async def endpoint(answer: Answer, *, host: str = "127.0.0.1", delay_s: float = 0.0) -> AsyncIterator[Target]:
    """A UDP server as an endpoint, which answers after `delay_s`."""
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: _Server(answer, delay_s), local_addr=(host, 0)
    )
    try:
        yield Target(Address(host), transport.get_extra_info("sockname")[1])
    finally:
        transport.close()


@contextlib.contextmanager
def client(address: tuple[str, int]) -> Iterator[socket.socket]:
    """A client's connected socket."""
    with socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        sock.connect(address)
        yield sock


async def ask(sock: socket.socket, question: bytes, *, timeout_s: float = 15.0) -> bytes:
    """Send a datagram and wait for the answer."""
    sock.send(question)
    return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(sock, 70_000), timeout_s)


def echo(data: bytes, _peer: Any) -> bytes:
    return data


def sends(text: bytes) -> Answer:
    return lambda data, peer: text


def counters(bench: Bench) -> Counters:
    return bench.plane.engine.counters()[frontend()]


@pytest.mark.parametrize("size", [1, 1_400, 4_097, 9_000, 60_000, 65_507])
async def test_datagrams_arrive_whole_both_ways(bench: Bench, size: int) -> None:
    payload = os.urandom(size)
    async with endpoint(echo) as target:
        with client(await bench.serve(target, protocol=Protocol.UDP)) as sock:
            assert await ask(sock, payload) == payload


async def test_an_empty_datagram_is_forwarded(bench: Bench) -> None:
    received: list[bytes] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.setblocking(False)
        asyncio.get_running_loop().add_reader(server, lambda: received.append(server.recv(10)))
        target = Target(LOOPBACK, server.getsockname()[1])
        with client(await bench.serve(target, protocol=Protocol.UDP)) as sock:
            sock.send(b"")
            await eventually(lambda: received == [b""])
        asyncio.get_running_loop().remove_reader(server)


async def test_ipv6(bench: Bench) -> None:
    async with endpoint(echo, host="::1") as target:
        with client(await bench.serve(target, protocol=Protocol.UDP, address=Address("::1"))) as sock:
            assert await ask(sock, b"six") == b"six"


async def test_sessions_take_turns_over_the_endpoints_and_stay(bench: Bench) -> None:
    async with endpoint(sends(b"a")) as a, endpoint(sends(b"b")) as b, contextlib.AsyncExitStack() as stack:
        address = await bench.serve(a, b, protocol=Protocol.UDP)
        clients = [stack.enter_context(client(address)) for _ in range(6)]
        first = [await ask(sock, b"?") for sock in clients]
        assert Counter(first) == {b"a": 3, b"b": 3}
        assert [await ask(sock, b"?") for sock in clients] == first
    assert counters(bench).accepted == 6


async def test_affinity_holds_over_ports(bench: Bench) -> None:
    async with endpoint(sends(b"a")) as a, endpoint(sends(b"b")) as b, contextlib.AsyncExitStack() as stack:
        address = await bench.serve(a, b, protocol=Protocol.UDP, affinity_timeout_s=600)
        assert len({await ask(stack.enter_context(client(address)), b"?") for _ in range(6)}) == 1


async def test_answers_reach_the_client_that_asked(bench: Bench) -> None:
    async with endpoint(echo) as target, contextlib.AsyncExitStack() as stack:
        address = await bench.serve(target, protocol=Protocol.UDP)
        clients = [stack.enter_context(client(address)) for _ in range(500)]
        for begin in range(0, len(clients), 50):
            group = list(enumerate(clients))[begin : begin + 50]
            answers = await asyncio.gather(*(ask(sock, b"client %d" % number) for number, sock in group))
            assert answers == [b"client %d" % number for number, _ in group]


async def test_an_endpoint_that_refuses_is_left_with_the_next_datagram(bench: Bench) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as placeholder:
        placeholder.bind(("127.0.0.1", 0))
        dead = Target(LOOPBACK, placeholder.getsockname()[1])
    async with endpoint(sends(b"alive")) as alive:
        address = await bench.serve(dead, alive, protocol=Protocol.UDP)
        for _ in range(4):
            with client(address) as sock:
                for _attempt in range(3):
                    with contextlib.suppress(TimeoutError):
                        assert await ask(sock, b"?", timeout_s=0.3) == b"alive"
                        break
                else:
                    pytest.fail("no answer after the endpoint had refused")


async def test_a_session_stays_until_its_endpoint_no_longer_serves(bench: Bench) -> None:
    async with endpoint(sends(b"old")) as old, endpoint(sends(b"new")) as new:
        address = await bench.serve(old, protocol=Protocol.UDP)
        with client(address) as sock, client(address) as late:
            assert await ask(sock, b"?") == b"old"
            await bench.plane.send([SetEndpoints(frontend(), (new,), staying=(old,))])
            assert [await ask(sock, b"?"), await ask(late, b"?")] == [b"old", b"new"]
            await bench.plane.send([SetEndpoints(frontend(), (new,))])
            assert await ask(sock, b"?") == b"new"


async def test_no_endpoints_and_then_some(bench: Bench) -> None:
    async with endpoint(echo) as target:
        address = await bench.serve(protocol=Protocol.UDP)
        with client(address) as sock:
            sock.send(b"lost")
            await eventually(lambda: counters(bench).dropped == 1)
            await bench.plane.send([SetEndpoints(frontend(), (target,))])
            assert await ask(sock, b"found") == b"found"


async def test_idle_sessions_end_and_active_ones_do_not(bench: Bench) -> None:
    await bench.plane.send([Tune(udp_idle_s=0.4)])
    async with endpoint(echo) as target:
        address = await bench.serve(target, protocol=Protocol.UDP)
        with client(address) as idle, client(address) as busy:
            await ask(idle, b"x")
            for _ in range(12):
                await ask(busy, b"y")
                await asyncio.sleep(0.05)
            await eventually(lambda: counters(bench).active == 1, within_s=2)
            assert await ask(idle, b"again") == b"again"
            assert counters(bench).accepted == 3
    await eventually(lambda: counters(bench).active == 0)
    assert bench.plane._context.budget.used == 1


async def test_a_slow_answer_reaches_the_client(bench: Bench) -> None:
    """A session timeout of 250 ms, as in kube-proxy's userspace mode, would lose this one."""

    async with endpoint(sends(b"42"), delay_s=1.0) as target:
        with client(await bench.serve(target, protocol=Protocol.UDP)) as sock:
            assert await ask(sock, b"think") == b"42"


async def test_without_room_the_idlest_session_is_evicted() -> None:
    plane = LocalDataPlane(budget=DescriptorBudget(1 + 4), rng=random.Random(1))
    bench = Bench(plane)
    async with endpoint(echo) as target, contextlib.AsyncExitStack() as stack:
        address = await bench.serve(target, protocol=Protocol.UDP)
        clients = [stack.enter_context(client(address)) for _ in range(5)]
        for sock in clients:
            assert await ask(sock, b"?") == b"?"
        assert (counters(bench).active, counters(bench).evicted) == (3, 2)
        await plane.send([Tune(udp_sessions_max=2)])
        assert await ask(clients[0], b"!") == b"!"
        assert (counters(bench).active, counters(bench).evicted) == (2, 4)
    await plane.close()


@pytest.mark.parametrize("limit", [1 + 1 + 40, 1000], ids=["by descriptors", "by number"])
async def test_a_flood_of_clients_evicts_no_session_of_another_frontend(limit: int) -> None:
    """Finding 8: the frontend with the most sessions gives up its own idlest one."""
    plane = LocalDataPlane(budget=DescriptorBudget(limit), rng=random.Random(1))
    bench = Bench(plane)
    await plane.send([Tune(udp_sessions_max=30)])
    async with endpoint(echo) as target, contextlib.AsyncExitStack() as stack:
        flooded = await bench.serve(target, protocol=Protocol.UDP, name="flooded")
        quiet = await bench.serve(target, protocol=Protocol.UDP, name="quiet")
        clients = [stack.enter_context(client(quiet)) for _ in range(3)]
        for sock in clients[:2]:
            assert await ask(sock, b"?") == b"?"
        for _ in range(100):
            assert await ask(stack.enter_context(client(flooded)), b"!") == b"!"
        # One more comes in although there is no room.
        for sock in clients:
            assert await ask(sock, b"?") == b"?"
        counters = plane.engine.counters()
        assert (counters[frontend("quiet")].accepted, counters[frontend("quiet")].evicted) == (3, 0)
        flood = counters[frontend("flooded")]
        assert flood.accepted == 100
        assert flood.active + 3 <= 30
        assert flood.evicted == 100 - flood.active
    await plane.close()
    assert plane._context.budget.used == 0
    assert plane._context.budget._extra == 0


async def test_a_flooding_client_does_not_starve_others(bench: Bench) -> None:
    async with endpoint(lambda data, peer: data if data == b"ping" else None) as target:
        address = await bench.serve(target, protocol=Protocol.UDP)
        with client(address) as chatty, client(address) as quiet:
            for _ in range(50):
                for _ in range(300):
                    with contextlib.suppress(BlockingIOError):
                        chatty.send(b"blah")
                assert await ask(quiet, b"ping") == b"ping"


async def test_sessions_end_with_their_frontend(bench: Bench) -> None:
    async with endpoint(echo) as target:
        address = await bench.serve(target, protocol=Protocol.UDP)
        with client(address) as sock:
            await ask(sock, b"x")
            await bench.plane.send([Retire(frontend())])
            assert bench.plane._context.budget.used == 1
            sock.send(b"y")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.get_running_loop().sock_recv(sock, 10), 0.2)


async def test_a_session_is_counted_as_open_until_it_ends(bench: Bench) -> None:
    async with endpoint(echo) as first, endpoint(echo) as second:
        address = await bench.serve(first, second, protocol=Protocol.UDP)
        # A shorter time-out counts from the next sweep on, and they would be 15 s apart.
        await bench.plane.send([Tune(udp_idle_s=4.0)])
        with client(address) as one, client(address) as other:
            assert [await ask(one, b"a"), await ask(other, b"b"), await ask(other, b"c")] == [b"a", b"b", b"c"]
            assert bench.open() == {first: 1, second: 1}
            await bench.plane.send([SetEndpoints(frontend(), (second,))])
            assert bench.open() == {second: 1}
            await bench.plane.send([Tune(udp_idle_s=0.05)])
            assert await ask(one, b"d") == b"d"
            await eventually(lambda: not bench.open())
