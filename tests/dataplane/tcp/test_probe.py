"""Endpoints that were put aside are tried beside the clients."""

from __future__ import annotations

import asyncio
import socket

import pytest

from kubeproxy.dataplane.balancing import balancer
from kubeproxy.dataplane.balancing.balancer import Ejection
from kubeproxy.dataplane.messages import Tune
from kubeproxy.model import Address, Target
from tests.dataplane.conftest import Bench, ask, endpoint, eventually, frontend, refusing_target, says, silent_target

ASIDE_S = 0.05


@pytest.fixture(autouse=True)
def briefly_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balancer, "EJECTION_FIRST_S", ASIDE_S)


def ejection(bench: Bench, target: Target) -> Ejection | None:
    """How the only frontend passes that endpoint over."""
    return bench.plane.engine._listeners[frontend()].balancer.ejected.get(target)


async def found_out(bench: Bench, dead: Target, alive: Target) -> tuple[str, int]:
    """Where both are served; a client has met the dead one, which is put aside."""
    address = await bench.serve(dead, alive)
    for _ in range(2):
        assert await ask(address) == "alive"
    return address


async def until_due(bench: Bench, target: Target) -> None:
    """Its time aside is over."""
    ejected = ejection(bench, target)
    assert ejected is not None
    await asyncio.sleep(ejected.until - bench.plane._context.reactor.clock() + 0.01)


async def test_no_client_is_dialed_to_an_endpoint_that_is_still_silent(bench: Bench) -> None:
    await bench.plane.send([Tune(dial_steps_s=(0.05, 0.1))])
    context = bench.plane._context
    with silent_target() as dead:
        async with endpoint(says("alive")) as alive:
            address = await found_out(bench, dead, alive)
            ejected = ejection(bench, dead)
            assert ejected is not None
            for _ in range(3):
                failures = ejected.failures
                await until_due(bench, dead)
                for _ in range(4):
                    assert await ask(address) == "alive"
                await eventually(lambda: not context.probes)
                assert ejected.failures > failures
    assert bench.plane.engine.counters()[frontend()].dial_retries == 1, "but for the first, none had to be tried anew"
    await eventually(lambda: not context.live)
    assert context.budget.used == 1  # the held port


async def test_an_endpoint_that_is_back_is_used_again(bench: Bench) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.setblocking(False)
        back = Target(Address("127.0.0.1"), sock.getsockname()[1])
        async with endpoint(says("alive")) as alive:
            address = await found_out(bench, back, alive)
            sock.listen()
            await until_due(bench, back)
            assert await ask(address) == "alive"
            await eventually(lambda: ejection(bench, back) is None)
            loop = asyncio.get_running_loop()
            tried, _ = await loop.sock_accept(sock)
            with tried:
                assert await loop.sock_recv(tried, 1) == b"", "the trial itself says nothing"
            asking = [asyncio.create_task(ask(address)) for _ in range(2)]
            sockets, _ = await loop.sock_accept(sock)
            with sockets:
                sockets.send(b"back")
            assert sorted(await asyncio.gather(*asking)) == ["alive", "back"]
    assert bench.plane._context.probes == set()


async def test_one_that_refuses_again_is_put_aside_for_longer(bench: Bench) -> None:
    with refusing_target() as dead:
        async with endpoint(says("alive")) as alive:
            address = await found_out(bench, dead, alive)
            await until_due(bench, dead)
            assert await ask(address) == "alive"
            ejected = ejection(bench, dead)
            assert ejected is not None
            assert (ejected.failures, ejected.delay_s, ejected.reason) == (2, 2 * ASIDE_S, "refused")
    assert bench.plane.engine.counters()[frontend()].dial_retries == 1
    assert bench.plane._context.probes == set()


async def test_an_only_endpoint_is_dialed_for_clients_all_the_same(bench: Bench) -> None:
    await bench.plane.send([Tune(dial_steps_s=(0.05, 0.1))])
    with silent_target() as dead:
        address = await bench.serve(dead)
        for _ in range(3):
            with pytest.raises(ConnectionResetError):
                await ask(address)
            await until_due(bench, dead)
    assert bench.plane.engine.counters()[frontend()].silent == 3


async def test_for_want_of_a_descriptor_the_trial_is_put_off_and_the_client_is_served(bench: Bench) -> None:
    context = bench.plane._context
    with refusing_target() as dead:
        async with endpoint(says("alive")) as alive:
            address = await found_out(bench, dead, alive)
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


async def test_a_trial_ends_with_the_data_plane(bench: Bench) -> None:
    context = bench.plane._context
    with silent_target() as dead:
        async with endpoint(says("alive")) as alive:
            address = await found_out(bench, dead, alive)
            await until_due(bench, dead)
            assert await ask(address) == "alive"
            assert context.probes
            bench.plane.engine.close()
            assert context.probes == set()
