"""Probes of ejected endpoints, beside the clients."""

from __future__ import annotations

import asyncio
import socket

import pytest

from kubeproxy.dataplane.balancing import ejections
from kubeproxy.dataplane.balancing.ejections import Ejection
from kubeproxy.dataplane.messages import Tune
from kubeproxy.model import Address, Target
from tests.dataplane.conftest import Bench, ask, endpoint, eventually, frontend, refusing_target, sends, silent_target

EJECTION_S = 0.05


@pytest.fixture(autouse=True)
def short_ejections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ejections, "EJECTION_FIRST_S", EJECTION_S)


def ejection(bench: Bench, target: Target) -> Ejection | None:
    """The ejection of an endpoint of the only frontend."""
    return bench.plane.engine._listeners[frontend()].balancer.ejected.get(target)


async def until_ejected(bench: Bench, dead: Target, alive: Target) -> tuple[str, int]:
    """Serve both endpoints until the dead one is ejected; the frontend's address."""
    address = await bench.serve(dead, alive)
    for _ in range(2):
        assert await ask(address) == "alive"
    return address


async def until_due(bench: Bench, target: Target) -> None:
    """Wait until the ejection is over."""
    ejected = ejection(bench, target)
    assert ejected is not None
    await asyncio.sleep(ejected.until - bench.plane._context.reactor.clock() + 0.01)


async def test_no_client_gets_an_endpoint_that_is_still_silent(bench: Bench) -> None:
    await bench.plane.send([Tune(dial_steps_s=(0.05, 0.1))])
    context = bench.plane._context
    with silent_target() as dead:
        async with endpoint(sends("alive")) as alive:
            address = await until_ejected(bench, dead, alive)
            ejected = ejection(bench, dead)
            assert ejected is not None
            for _ in range(3):
                failures = ejected.failures
                await until_due(bench, dead)
                for _ in range(4):
                    assert await ask(address) == "alive"
                await eventually(lambda: not context.probes)
                assert ejected.failures > failures
    assert bench.plane.engine.counters()[frontend()].dial_retries == 1, "only the first client was dialed for twice"
    await eventually(lambda: not context.live)
    assert context.budget.used == 1  # the reserved port


async def test_an_endpoint_that_is_back_is_used_again(bench: Bench) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.setblocking(False)
        back = Target(Address("127.0.0.1"), sock.getsockname()[1])
        async with endpoint(sends("alive")) as alive:
            address = await until_ejected(bench, back, alive)
            sock.listen()
            await until_due(bench, back)
            assert await ask(address) == "alive"
            await eventually(lambda: ejection(bench, back) is None)
            loop = asyncio.get_running_loop()
            tried, _ = await loop.sock_accept(sock)
            with tried:
                assert await loop.sock_recv(tried, 1) == b"", "the probe sends no byte"
            asking = [asyncio.create_task(ask(address)) for _ in range(2)]
            sockets, _ = await loop.sock_accept(sock)
            with sockets:
                sockets.send(b"back")
            assert sorted(await asyncio.gather(*asking)) == ["alive", "back"]
    assert bench.plane._context.probes == set()


async def test_an_endpoint_that_refuses_again_is_ejected_for_longer(bench: Bench) -> None:
    with refusing_target() as dead:
        async with endpoint(sends("alive")) as alive:
            address = await until_ejected(bench, dead, alive)
            await until_due(bench, dead)
            assert await ask(address) == "alive"
            ejected = ejection(bench, dead)
            assert ejected is not None
            assert (ejected.failures, ejected.delay_s, ejected.reason) == (2, 2 * EJECTION_S, "refused")
    assert bench.plane.engine.counters()[frontend()].dial_retries == 1
    assert bench.plane._context.probes == set()


async def test_a_single_ejected_endpoint_is_still_dialed(bench: Bench) -> None:
    await bench.plane.send([Tune(dial_steps_s=(0.05, 0.1))])
    with silent_target() as dead:
        address = await bench.serve(dead)
        for _ in range(3):
            with pytest.raises(ConnectionResetError):
                await ask(address)
            await until_due(bench, dead)
    assert bench.plane.engine.counters()[frontend()].silent == 3


async def test_without_a_descriptor_the_probe_is_put_off_and_the_client_served(bench: Bench) -> None:
    context = bench.plane._context
    with refusing_target() as dead:
        async with endpoint(sends("alive")) as alive:
            address = await until_ejected(bench, dead, alive)
            await until_due(bench, dead)
            await eventually(lambda: not context.live)
            context.budget.limit = context.budget.used + 2
            assert await ask(address) == "alive"
            ejected = ejection(bench, dead)
            assert ejected is not None
            assert ejected.probing
            assert ejected.failures == 1
    await eventually(lambda: not context.live)
    assert context.budget.used == 1


async def test_a_probe_ends_with_the_data_plane(bench: Bench) -> None:
    context = bench.plane._context
    with silent_target() as dead:
        async with endpoint(sends("alive")) as alive:
            address = await until_ejected(bench, dead, alive)
            await until_due(bench, dead)
            assert await ask(address) == "alive"
            assert context.probes
            bench.plane.engine.close()
            assert context.probes == set()
