"""Workers on loopback, with shortcuts for tests."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kubeproxy.dataplane.messages import Listen, Message, SetEndpoints
from kubeproxy.dataplane.sockets.port_reservation import ReservedPort
from kubeproxy.dataplane.workers.pool import WorkerDataPlane
from kubeproxy.dataplane.workers.process import WorkerProcess
from kubeproxy.dataplane.workers.supervisor import WorkerEnd
from kubeproxy.model import ROUND_ROBIN, Address, Balancing, Family, FrontendName, Protocol, Target, family_of
from tests.dataplane.conftest import LOOPBACK, eventually, frontend


@dataclass
class WorkerPool:
    """A running data plane of workers, and the ends of workers that it reported."""

    plane: WorkerDataPlane
    ends: list[WorkerEnd] = field(default_factory=list)
    held: dict[FrontendName, ReservedPort] = field(default_factory=dict)

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
        held = self.held[frontend(name)] = self.plane.reserve(protocol, address, 0)
        messages: list[Message] = [
            Listen(frontend(name), protocol, address, held.port),
            SetEndpoints(frontend(name), endpoints, affinity_timeout_s, balancing=balancing),
        ]
        assert await self.plane.send(messages) == {}
        return "127.0.0.1" if family_of(address) is Family.IPV4 else "::1", held.port

    @property
    def workers(self) -> list[WorkerProcess]:
        """The workers in service, by number."""
        return [worker for _, worker in sorted(self.plane._workers.items()) if worker.in_service]

    async def complete(self, count: int) -> None:
        """Wait until `count` workers are in service."""
        await eventually(lambda: len(self.workers) == count)


@contextlib.asynccontextmanager
async def worker_pool(count: int, **options: Any) -> AsyncIterator[WorkerPool]:
    """A data plane of `count` workers, all in service; at the end none has crashed, and no process remains."""
    crashes: list[tuple[str, BaseException]] = []
    ends: list[WorkerEnd] = []
    plane = WorkerDataPlane(count, on_end=ends.append, on_crash=lambda *crash: crashes.append(crash), **options)
    pids: set[int] = set()
    try:
        it = WorkerPool(plane, ends)
        await it.complete(count)
        yield it
        pids |= {worker.pid for worker in it.workers}
    finally:
        await plane.close()
        await plane.close()  # a shutdown does so, and the end of the life after it
    assert crashes == []
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


async def until(condition: Callable[[], Awaitable[bool]], *, within_s: float = 30.0) -> None:
    """Wait for an asynchronous condition; TimeoutError after `within_s`."""
    async with asyncio.timeout(within_s):
        while not await condition():
            await asyncio.sleep(0.01)


def status(pid: int) -> dict[str, str]:
    """The fields of /proc/PID/status."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def listening(port: int) -> int:
    """How many sockets listen at a port (IPv4)."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    words = [line.split() for line in lines]
    return sum(int(each[1].rpartition(":")[2], 16) == port and each[3] == "0A" for each in words)


def udp_client() -> socket.socket:
    """A non-blocking UDP socket."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setblocking(False)
    return sock
