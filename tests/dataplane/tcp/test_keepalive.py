"""TCP keepalive: on for clients from the start, for endpoints once their connections are older."""

from __future__ import annotations

import asyncio
import socket

import pytest

from kubeproxy.dataplane.messages import Tune
from kubeproxy.dataplane.tcp import connection_sweep as sweep_module
from kubeproxy.dataplane.tcp.connection import Connection
from kubeproxy.dataplane.tcp.connection_sweep import sweep
from tests.dataplane.conftest import Bench, echo, endpoint, eventually


def probed(fd: int) -> tuple[bool, int, int]:
    """Whether keepalive is on, its idle time and its interval."""
    sock = socket.socket(fileno=fd)
    try:
        return (
            bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)),
            sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
            sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL),
        )
    finally:
        sock.detach()


async def test_keepalive_is_on_for_clients_at_once_and_for_endpoints_later(bench: Bench) -> None:
    await bench.plane.send([Tune(keepalive_s=3600)])
    live = bench.plane._context.live
    async with endpoint(echo) as target:
        with socket.create_connection(await bench.serve(target)):
            await eventually(lambda: any(isinstance(each, Connection) for each in live))
            (connection,) = live
            assert isinstance(connection, Connection)
            assert probed(connection._client) == (True, 3600, 3600)
            assert not probed(connection._endpoint)[0]
            await bench.plane.send([Tune(keepalive_s=1)])
            await eventually(lambda: probed(connection._endpoint) == (True, 1, 1))


async def test_keepalive_is_turned_on_once(bench: Bench) -> None:
    await bench.plane.send([Tune(keepalive_s=1)])
    live = bench.plane._context.live
    async with endpoint(echo) as target:
        address = await bench.serve(target)
        with socket.create_connection(address):
            await eventually(lambda: any(isinstance(each, Connection) and each.kept_alive for each in live))
            (first,) = live
            assert isinstance(first, Connection)
            sock = socket.socket(fileno=first._endpoint)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 77)
            sock.detach()
            with socket.create_connection(address):
                await eventually(lambda: len(live) == 2 and all(getattr(each, "kept_alive", False) for each in live))
            assert probed(first._endpoint) == (True, 77, 1)


async def test_a_sweep_takes_several_turns_and_leaves_out_what_has_ended(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_module, "AT_ONCE", 1)
    context, over = bench.plane._context, asyncio.Event()
    turns: dict[Connection, int] = {}

    def each(connection: Connection) -> None:
        turns[connection] = context.reactor.turn_number
        if len(turns) == 2:
            next(it for it in context.live if it not in turns).abort()

    async with endpoint(echo) as target:
        address = await bench.serve(target)
        with socket.create_connection(address), socket.create_connection(address), socket.create_connection(address):
            await eventually(lambda: len(context.live) == 3 and all(isinstance(it, Connection) for it in context.live))
            sweep(context, each, over.set)
            await over.wait()
    assert len(set(turns.values())) == 2, "the third one has ended meanwhile"
