"""A data plane on loopback, and endpoints for it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping

import pytest
import uvloop

from kubeproxy.dataplane.budgets.fd_budget import DescriptorBudget
from kubeproxy.dataplane.in_process import LocalDataPlane
from kubeproxy.dataplane.loop.reactor import Reactor
from kubeproxy.dataplane.messages import Listen, SetEndpoints
from kubeproxy.model import (
    ROUND_ROBIN,
    Address,
    Balancing,
    Family,
    FrontendName,
    Protocol,
    ServicePortName,
    Target,
    family_of,
)
from tests.support.clock import Clock

LOOPBACK = Address("127.0.0.1")


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run every test of this room with the daemon's event loop."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reactor(clock: Clock) -> Iterator[Reactor]:
    reactor = Reactor(clock=clock)
    yield reactor
    reactor.shut()


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def frontend(name: str = "web") -> FrontendName:
    """The name of a frontend of default/<name>."""
    return FrontendName(ServicePortName("default", name, ""), Family.IPV4)


class Bench:
    """A running data plane with shortcuts for tests."""

    def __init__(self, plane: LocalDataPlane) -> None:
        self.plane = plane

    async def serve(
        self,
        *endpoints: Target,
        name: str = "web",
        affinity_timeout_s: int | None = None,
        balancing: Balancing = ROUND_ROBIN,
        protocol: Protocol = Protocol.TCP,
        address: Address = LOOPBACK,
    ) -> tuple[str, int]:
        """Serve a frontend with these endpoints; its address and port."""
        reserved = self.plane.reserve(protocol, address, 0)
        failures = await self.plane.send(
            [
                Listen(frontend=frontend(name), protocol=protocol, address=address, port=reserved.port),
                SetEndpoints(frontend(name), endpoints, affinity_timeout_s, balancing=balancing),
            ]
        )
        assert not failures
        return "127.0.0.1" if family_of(address) is Family.IPV4 else "::1", reserved.port

    def open(self, name: str = "web") -> Mapping[Target, int]:
        """What is open to each endpoint of a frontend, by its balancer's count."""
        return self.plane.engine._listeners[frontend(name)].balancer.open


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    plane = LocalDataPlane(budget=DescriptorBudget(10_000), rng=random.Random(1))
    yield Bench(plane)
    await plane.close()


@contextlib.asynccontextmanager
async def endpoint(handler: Handler, *, host: str = "127.0.0.1") -> AsyncIterator[Target]:
    """A TCP server as an endpoint."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Not every Python raises a ConnectionError when the other end has closed (ENOTCONN from shutdown).
        with contextlib.suppress(OSError):
            await handler(reader, writer)
        writer.close()

    server = await asyncio.start_server(handle, host, 0)
    try:
        yield Target(Address(host), server.sockets[0].getsockname()[1])
    finally:
        server.close()


def sends(text: str) -> Handler:
    """A handler that sends a text to every client, then closes."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(text.encode())
        await writer.drain()

    return handler


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends all received bytes back."""
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.write_eof()


@contextlib.contextmanager
def refusing_target() -> Iterator[Target]:
    """An address that refuses connections: bound, so that no other socket gets it, but not listening."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield Target(LOOPBACK, sock.getsockname()[1])


@contextlib.contextmanager
def silent_target() -> Iterator[Target]:
    """An address that never answers: a listener with a full queue, so that the kernel drops further SYNs."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(address)
        yield Target(LOOPBACK, address[1])


async def ask(address: tuple[str, int], *, timeout_s: float = 20.0) -> str:
    """Connect and read all that the server sends."""
    async with asyncio.timeout(timeout_s):
        reader, writer = await asyncio.open_connection(*address)
        try:
            return (await reader.read()).decode()
        finally:
            writer.close()


async def eventually(condition: Callable[[], bool], *, within_s: float = 30.0) -> None:
    """Wait for a condition; AssertionError after `within_s`."""
    deadline = asyncio.get_running_loop().time() + within_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "condition not met in time"
        await asyncio.sleep(0.01)
