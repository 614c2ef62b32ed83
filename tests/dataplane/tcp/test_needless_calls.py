"""Calls that would find nothing are not made: each costs more than moving a small message."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

import pytest

from kubeproxy.dataplane.tcp import flow
from kubeproxy.model import Target
from tests.dataplane.conftest import LOOPBACK, Bench, ask, endpoint, eventually, frontend, sends


class CountedSocket:
    """A listening socket that counts calls of accept(2)."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.accepts = 0

    def _accept(self) -> tuple[int, Any]:
        self.accepts += 1
        return self._sock._accept()  # type: ignore[attr-defined, no-any-return]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


async def test_a_client_that_comes_alone_is_accepted_by_one_call(bench: Bench) -> None:
    async with endpoint(sends("answer")) as target:
        address = await bench.serve(target)
        listener = bench.plane.engine._listeners[frontend()]
        sock = CountedSocket(listener._sock)
        listener._sock = sock  # type: ignore[assignment]
        for _ in range(5):
            assert await ask(address) == "answer"
        assert sock.accepts == 5
        crowd = [socket.create_connection(address) for _ in range(5)]
        await eventually(lambda: bench.plane.engine.counters()[frontend()].accepted == 10)
        assert sock.accepts == 5 + 5 + 1, "the first alone, and the others together, until there is none"
        for client in crowd:
            client.close()


async def test_an_end_that_comes_with_the_last_bytes_is_not_read_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[bytes] = []

    def counted(fd: int, count: int) -> bytes:
        reads.append(os.read(fd, count))
        return reads[-1]

    monkeypatch.setattr(flow, "read", counted)
    loop = asyncio.get_running_loop()
    with socket.create_server((LOOPBACK, 0)) as server:
        target = Target(LOOPBACK, server.getsockname()[1])
        with socket.create_connection(await bench.serve(target)) as client:
            await eventually(lambda: bench.open() == {target: 1})
            side, _ = server.accept()
            side.sendall(b"answer")
            side.close()
            client.setblocking(False)
            async with asyncio.timeout(20):
                assert [await loop.sock_recv(client, 100) for _ in range(2)] == [b"answer", b""]
            assert reads == [b"answer"]
