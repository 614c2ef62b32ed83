"""Descriptors run out: clients wait instead of the process dying."""

from __future__ import annotations

import asyncio
import random
import resource
import socket

import pytest

from kubeproxy.dataplane.descriptors import DescriptorBudget
from kubeproxy.dataplane.local import LocalDataPlane
from kubeproxy.model import Protocol, Target
from tests.dataplane.conftest import LOOPBACK, Bench, echo, endpoint, eventually, frontend


def test_a_budget_is_not_overdrawn() -> None:
    budget = DescriptorBudget(3)
    assert budget.take(2)
    assert not budget.take(2)
    assert budget.take(1)
    called = []
    budget.call_when_free(lambda: called.append(True))
    budget.give(1)
    budget.give(1)
    assert called == [True]
    assert (budget.used, budget.refusals) == (1, 1)


async def test_clients_beyond_the_budget_wait_and_are_served_when_there_is_room() -> None:
    plane = LocalDataPlane(budget=DescriptorBudget(1 + 2 * 3), rng=random.Random(1))
    async with endpoint(echo) as target:
        address = await Bench(plane).serve(target)
        connections = [await asyncio.open_connection(*address) for _ in range(6)]
        for _, writer in connections:
            writer.write(b"x")
        for reader, _ in connections[:3]:
            assert await reader.readexactly(1) == b"x"
        assert plane.engine.counters()[frontend()].accepted == 3
        for _, writer in connections[:3]:
            writer.close()
        for reader, writer in connections[3:]:
            assert await asyncio.wait_for(reader.readexactly(1), 5) == b"x"
            writer.close()
        await eventually(lambda: plane.engine.counters()[frontend()].active == 0)
        assert plane.engine.counters()[frontend()].failed == 0
    await plane.close()


async def test_the_kernels_own_no_is_borne(bench: Bench) -> None:
    """EMFILE in spite of the budget (others in the process use descriptors too): rest, and try again."""
    loop = asyncio.get_running_loop()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        server.setblocking(False)
        client.setblocking(False)
        address = await bench.serve(Target(LOOPBACK, server.getsockname()[1]))
        fillers: list[socket.socket] = []
        try:
            # Nothing can be opened from here on.
            resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno() + 1, hard))
            with pytest.raises(OSError, match="Too many open files"):
                fillers.extend(socket.socket() for _ in range(1000))
            await loop.sock_connect(client, address)
            await eventually(lambda: bench.plane._context.budget.used == 1)
            assert bench.plane.engine.counters()[frontend()].accepted == 0
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for filler in fillers:
                filler.close()
        client.send(b"still there?")
        accepted, _ = await asyncio.wait_for(loop.sock_accept(server), 10)
        with accepted:
            assert await asyncio.wait_for(loop.sock_recv(accepted, 100), 5) == b"still there?"


async def test_a_port_in_use_is_said(bench: Bench) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(OSError, match="in use"):
            bench.plane.reserve(Protocol.TCP, LOOPBACK, other.getsockname()[1])
    used = bench.plane._context.budget.used
    held = bench.plane.reserve(Protocol.TCP, LOOPBACK, 0)
    held.release()
    held.release()
    assert bench.plane._context.budget.used == used
