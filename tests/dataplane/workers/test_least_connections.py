"""Least connections over all workers: what is open is counted together, and no worker leaves a ghost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from kubeproxy.dataplane.messages import SetEndpoints
from kubeproxy.model import Balancing, Protocol, Scheduler, Target
from tests.dataplane.conftest import echo, endpoint, eventually, frontend
from tests.dataplane.udp import test_sessions as udp
from tests.dataplane.workers.harness import worker_pool

LEAST = Balancing(Scheduler.LEAST_CONNECTIONS)
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Held:
    """Endpoints that tell which of them has a client, and the clients' connections."""

    def __init__(self, count: int) -> None:
        self.targets: list[Target] = []
        self.open: Counter[int] = Counter()
        """By endpoint."""
        self.clients: list[tuple[int, Streams]] = []
        self.count = count

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Held]:
        async with contextlib.AsyncExitStack() as stack:
            for number in range(self.count):

                async def handler(
                    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int = number
                ) -> None:
                    self.open[number] += 1
                    writer.write(bytes([number]))
                    await echo(reader, writer)
                    self.open[number] -= 1

                self.targets.append(await stack.enter_async_context(endpoint(handler)))
            yield self

    async def connect(self, address: tuple[str, int], count: int) -> None:
        for _ in range(count):
            streams = await asyncio.open_connection(*address)
            number = (await asyncio.wait_for(streams[0].readexactly(1), 20.0))[0]
            self.clients.append((number, streams))

    async def close(self, number: int, count: int) -> None:
        """Close connections to one endpoint, until it has seen the ends."""
        gone = [client for client in self.clients if client[0] == number][:count]
        left = self.open[number] - len(gone)
        for client in gone:
            self.clients.remove(client)
            client[1][1].close()
        await eventually(lambda: self.open[number] == left)

    async def close_all(self) -> None:
        for _, (_, writer) in self.clients:
            writer.close()
        await eventually(lambda: not +self.open)


@pytest.mark.parametrize("workers", [1, 2, 4])
async def test_what_is_open_is_even_over_all_workers(workers: int) -> None:
    async with worker_pool(workers) as it, Held(4).serving() as held:
        address = await it.serve(*held.targets, balancing=LEAST)
        await held.connect(address, 40)
        assert set(held.open.values()) == {10}, "one after the other: exact"
        await held.close(2, 6)
        # The endpoint sees the end before the worker has counted it.
        await eventually(lambda: sum(it.plane._columns.open_of(frontend()).values()) == 34)
        await held.connect(address, 6)
        assert set(held.open.values()) == {10}, "what has closed is filled up again"
        await held.close_all()


async def test_a_worker_that_dies_leaves_no_ghosts() -> None:
    async with worker_pool(2) as it, Held(3).serving() as held:
        address = await it.serve(*held.targets, balancing=LEAST)
        await held.connect(address, 30)
        os.kill(it.workers[0].pid, signal.SIGKILL)
        await eventually(lambda: len(it.ends) == 1)
        await it.complete(2)
        await eventually(lambda: sum(held.open.values()) < 30)
        await held.connect(address, 30)
        table = it.plane._columns
        by_endpoint = [held.open[number] for number in range(3)]
        assert table.open_of(frontend()) == dict(zip(held.targets, by_endpoint, strict=True))
        assert max(by_endpoint) - min(by_endpoint) <= 1
        assert await it.plane.open_by_endpoint() == {frontend(): table.open_of(frontend())}
        await held.close_all()
        await eventually(lambda: set(table.open_of(frontend()).values()) == {0})


async def test_connections_of_another_scheduler_count_once_it_is_least_connections() -> None:
    async with worker_pool(2) as it, Held(2).serving() as held:
        address = await it.serve(held.targets[0])
        await held.connect(address, 8)
        await it.plane.send([SetEndpoints(frontend(), tuple(held.targets), balancing=LEAST)])
        await held.connect(address, 8)
        assert held.open == {0: 8, 1: 8}
        await held.close_all()


async def test_sessions_of_udp_count_as_connections_do() -> None:
    async with worker_pool(2) as it, udp.endpoint(udp.sends(b"a")) as a, udp.endpoint(udp.sends(b"b")) as b:
        address = await it.serve(a, b, protocol=Protocol.UDP, balancing=LEAST)
        with contextlib.ExitStack() as stack:
            clients: list[socket.socket] = [stack.enter_context(udp.client(address)) for _ in range(12)]
            answers = Counter([await udp.ask(client, b"?") for client in clients])
            assert answers == {b"a": 6, b"b": 6}


async def test_each_frontend_counts_for_itself() -> None:
    async with worker_pool(2) as it, Held(2).serving() as held:
        first = await it.serve(*held.targets, balancing=LEAST)
        await held.connect(first, 6)
        second = await it.serve(*held.targets, name="other", balancing=LEAST)
        await held.connect(second, 2)
        assert it.plane._columns.open_of(frontend("other")) == dict.fromkeys(held.targets, 1)
        assert it.plane._columns.open_of(frontend()) == dict.fromkeys(held.targets, 3)
        await held.close_all()
        await eventually(lambda: set(it.plane._columns.open_of(frontend()).values()) == {0})
