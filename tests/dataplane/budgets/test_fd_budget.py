"""The descriptor budget: without descriptors clients wait, and the process goes on."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import socket
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from kubeproxy.dataplane.budgets.fd_budget import DescriptorBudget, Share, Tenant
from kubeproxy.dataplane.in_process import LocalDataPlane
from kubeproxy.dataplane.tcp import connection, dial, flow, listener
from kubeproxy.model import Protocol, Target
from tests.dataplane.conftest import LOOPBACK, Bench, echo, endpoint, eventually, frontend
from tests.support.compiled_modules import of_sources


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


def test_a_waiting_callback_is_called_once() -> None:
    budget = DescriptorBudget(1)
    assert budget.take(1)
    called = []

    def callback() -> None:
        called.append(True)

    for _ in range(3):
        budget.call_when_free(callback)
    budget.give(1)
    assert called == [True]


def test_a_flooded_frontend_gets_nothing_of_the_last_quarter_another_gets_half() -> None:
    budget = DescriptorBudget(10 + 100)
    assert budget.take(10)  # listeners and the like
    flooded, quiet, late = Share(), Share(), Share()
    while budget.take(2, flooded):
        pass
    assert flooded.held == 74
    assert not budget.take_spare(12)
    while budget.take(2, quiet):
        pass
    assert quiet.held == 12
    assert not budget.take(2, flooded)
    assert budget.take(6, late)
    assert not budget.take(2, late)
    for share in (flooded, quiet, late):
        budget.give(share.held, share)
    assert budget.used == 10
    assert budget.take(74, late)


@pytest.mark.parametrize("floods", [2, 3, 10, 40])
def test_flooded_frontends_of_one_tenant_leave_room_for_another_tenant(floods: int) -> None:
    """Finding 8: each alone would have taken its fair part."""
    budget = DescriptorBudget(1000)
    theirs = Tenant()
    crowd = [Share(theirs) for _ in range(floods)]
    for share in crowd:
        while budget.take(2, share):
            pass
    other = Share()
    while budget.take(2, other):
        pass
    assert other.held >= 20
    assert sum(share.extra for share in (*crowd, other)) == budget._extra <= 250
    for share in (*crowd, other):
        budget.give(share.held, share)
        assert share.extra == 0
    assert budget.used == budget._extra == theirs.extra == other.tenant.extra == 0


@pytest.mark.parametrize("floods", [2, 3, 10])
def test_flooded_frontends_leave_room_for_another_of_the_same_tenant(floods: int) -> None:
    budget = DescriptorBudget(1000)
    theirs = Tenant()
    for share in [Share(theirs) for _ in range(floods)]:
        while budget.take(2, share):
            pass
    assert budget.take(2, Share(theirs)), "its first client is served"


def test_a_frontend_without_clients_gets_one_while_there_is_room_at_all() -> None:
    budget = DescriptorBudget(100)
    crowd = [Share() for _ in range(50)]
    assert all(budget.take(2, share) for share in crowd)
    assert not budget.take(2, Share())


async def test_a_flooded_frontend_leaves_room_for_others() -> None:
    plane = LocalDataPlane(budget=DescriptorBudget(2 + 2 * 20), rng=random.Random(1))
    async with endpoint(echo) as target:
        flooded = await Bench(plane).serve(target, name="flooded")
        other = await Bench(plane).serve(target, name="other")
        flood = [await asyncio.open_connection(*flooded) for _ in range(40)]
        await eventually(lambda: plane.engine.counters()[frontend("flooded")].active == 15)
        for _ in range(30):
            reader, writer = await asyncio.open_connection(*other)
            writer.write(b"hello")
            assert await asyncio.wait_for(reader.readexactly(5), 20) == b"hello"
            writer.close()
        assert plane.engine.counters()[frontend("flooded")].accepted == 15
        for _, writer in flood:
            writer.close()
        await eventually(lambda: plane.engine.counters()[frontend("flooded")].accepted == 40)
        await eventually(lambda: not plane._context.live)
        assert plane._context.budget.used == 2
    await plane.close()


class Sparse:
    """A function that raises MemoryError at every n-th call."""

    def __init__(self, function: Callable[..., Any], every: int) -> None:
        self.function = function
        self.every = every
        self.calls = 0
        self.failures = 0

    def __call__(self, *args: Any, **more: Any) -> Any:
        self.calls += 1
        if self.calls % self.every == 0:
            self.failures += 1
            raise MemoryError
        return self.function(*args, **more)


@pytest.mark.parametrize(
    ("room", "names"),
    [
        (flow, "read"),
        (flow, "write write_last"),
        pytest.param(connection, "Flow", marks=of_sources),
        (dial, "read"),
        (dial, "write"),
        (dial, "partial"),
        pytest.param(dial, "begin_connecting", marks=of_sources),
        pytest.param(dial, "Connection", marks=of_sources),
        pytest.param(listener, "Dial", marks=of_sources),
    ],
)
async def test_a_memory_error_costs_one_connection_only(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, room: ModuleType, names: str
) -> None:
    scarce = []
    for name in names.split():
        scarce.append(Sparse(getattr(room, name), every={"Flow": 4, "write": 3, "write_last": 3}.get(name, 7)))
        monkeypatch.setattr(room, name, scarce[-1])
    loop = asyncio.get_running_loop()
    async with endpoint(echo) as target:
        address = await bench.serve(target)
        descriptors = len(os.listdir("/proc/self/fd"))

        async def answer() -> bytes:
            with socket.create_connection(address) as sock:
                # Received before the client is accepted, as the data plane has had no turn yet.
                sock.sendall(b"hello")
                sock.shutdown(socket.SHUT_WR)
                sock.setblocking(False)
                async with asyncio.timeout(20):
                    return await loop.sock_recv(sock, 100)

        answers = await asyncio.gather(*(answer() for _ in range(30)), return_exceptions=True)
        monkeypatch.undo()
        assert any(sparse.failures for sparse in scarce)
        assert answers.count(b"hello") >= 5
        assert await answer() == b"hello"
        await eventually(lambda: not bench.plane._context.live)
        assert bench.plane._context.budget.used == 1
        assert bench.plane.engine.counters()[frontend()].active == 0
        await eventually(lambda: len(os.listdir("/proc/self/fd")) <= descriptors)


@pytest.mark.parametrize("room", [dial, flow])
async def test_the_reserve_serves_a_client_after_a_memory_error(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, room: ModuleType
) -> None:
    reads = 0

    def read(fd: int, size: int) -> bytes:
        nonlocal reads
        reads += 1
        if reads == 1:
            raise MemoryError
        return os.read(fd, size)

    monkeypatch.setattr(room, "read", read)
    async with endpoint(echo) as target:
        reader, writer = await asyncio.open_connection(*await bench.serve(target))
        writer.write(b"hello")
        assert await asyncio.wait_for(reader.readexactly(5), 20) == b"hello"
        writer.close()
    assert reads > 1
    assert bench.plane.engine.worker_status().memory_shortages == 1


async def test_clients_beyond_the_budget_wait_and_are_served_when_there_is_room() -> None:
    plane = LocalDataPlane(budget=DescriptorBudget(1 + 2 * 3), rng=random.Random(1))
    async with endpoint(echo) as target:
        address = await Bench(plane).serve(target)
        connections = [await asyncio.open_connection(*address) for _ in range(6)]
        for _, writer in connections:
            writer.write(b"x")
        for reader, _ in connections[:2]:
            assert await reader.readexactly(1) == b"x"
        assert plane.engine.counters()[frontend()].accepted == 2
        for _, writer in connections[:2]:
            writer.close()
        for reader, writer in connections[2:]:
            assert await asyncio.wait_for(reader.readexactly(1), 20) == b"x"
            writer.close()
        await eventually(lambda: plane.engine.counters()[frontend()].active == 0)
        assert plane.engine.counters()[frontend()].failed == 0
    await plane.close()


async def test_emfile_of_the_kernel_pauses_accepting(bench: Bench) -> None:
    """EMFILE in spite of the budget, as other parts of the process use descriptors, too: pause and try again."""
    loop = asyncio.get_running_loop()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        server.setblocking(False)
        client.setblocking(False)
        address = await bench.serve(Target(LOOPBACK, server.getsockname()[1]))
        fillers: list[socket.socket] = []
        try:
            # From here on no descriptor can be opened.
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
            assert await asyncio.wait_for(loop.sock_recv(accepted, 100), 20) == b"still there?"


async def test_a_port_in_use_is_an_error(bench: Bench) -> None:
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
