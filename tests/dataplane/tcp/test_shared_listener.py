"""One socket for many frontends. What connection tracking would tell of a client is set here."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from kubeproxy.dataplane.messages import Join, Listen, Retire, SetEndpoints
from kubeproxy.dataplane.sockets.original_destination import key_of
from kubeproxy.dataplane.tcp import shared_listener
from kubeproxy.model import Address, Destination, Family, FrontendName, Protocol, ServicePortName, Target
from tests.dataplane.conftest import LOOPBACK, Bench, ask, echo, endpoint, eventually, frontend, sends

LISTENER = FrontendName(ServicePortName("", "shared", "1"), Family.IPV4)


def to(number: int, port: int = 80) -> Destination:
    return Destination(Address(f"10.96.0.{number}"), Protocol.TCP, port)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Destination]:
    """What each of the next clients asks for; the last one holds for all further ones. None asks for what is empty."""
    asked: list[Destination] = []

    def read(fd: int) -> bytes:
        return key_of(asked.pop(0) if len(asked) > 1 else asked[0]) if asked else b""

    monkeypatch.setattr(shared_listener, "reader", lambda family: read)
    return asked


async def share(bench: Bench, **served: tuple[Target, tuple[Destination, ...]]) -> tuple[str, int]:
    """Serve frontends at one port."""
    port = bench.plane.reserve(Protocol.TCP, LOOPBACK, 0).port
    messages: list[Listen | Join | SetEndpoints] = [Listen(LISTENER, Protocol.TCP, LOOPBACK, port, shared=True)]
    for name, (target, destinations) in served.items():
        messages += [Join(frontend(name), LISTENER, destinations), SetEndpoints(frontend(name), (target,))]
    assert await bench.plane.send(messages) == {}
    return "127.0.0.1", port


async def test_the_destination_names_the_frontend(bench: Bench, asked: list[Destination]) -> None:
    node_port = Destination(Address("0.0.0.0"), Protocol.TCP, 30080)
    async with endpoint(sends("web")) as web, endpoint(sends("shop")) as shop:
        place = await share(bench, web=(web, (to(1), to(2))), shop=(shop, (to(3), node_port)))
        for wanted, said in ((to(1), "web"), (to(3), "shop"), (to(2), "web"), (to(77, 30080), "shop")):
            asked[:] = [wanted]
            assert await ask(place) == said
        counters = await bench.plane.counters()
        assert {str(name.service_port): it.accepted for name, it in counters.items()} == {
            "default/web": 2,
            "default/shop": 2,
        }
        assert await bench.plane.send([Join(frontend("web"), LISTENER, (to(1),))]) == {}
        asked[:] = [to(2)]
        with pytest.raises(ConnectionResetError):
            await ask(place)


async def test_one_that_goes_serves_its_queue_and_others_go_on(bench: Bench, asked: list[Destination]) -> None:
    async with endpoint(sends("web")) as web, endpoint(sends("shop")) as shop:
        place = await share(bench, web=(web, (to(1),)), shop=(shop, (to(2),)))
        asked[:] = [to(1), to(2)]
        reader, writer = await asyncio.open_connection(*place)  # it may still be in the queue
        await bench.plane.send([Retire(frontend("web"))])
        assert await reader.read() == b"web"
        writer.close()
        assert await ask(place) == "shop"
        asked[:] = [to(1)]
        with pytest.raises(ConnectionResetError):
            await ask(place)
        asked.clear()  # connection tracking does not know the client
        with pytest.raises(ConnectionResetError):
            await ask(place)
        await bench.plane.retire()
        with pytest.raises(ConnectionRefusedError):
            await ask(place)


async def test_without_its_listener_a_frontend_is_not_served(bench: Bench) -> None:
    failures = await bench.plane.send([Join(frontend("web"), LISTENER, (to(1),))])
    assert failures == {frontend("web"): "cannot listen: the shared listener is not open"}


async def test_whoever_joins_before_the_listener_is_open_is_served_from_its_first_client_on(
    bench: Bench, asked: list[Destination]
) -> None:
    """As at a worker that has just started."""
    async with endpoint(sends("web")) as web:
        for name, number in (("web", 1), ("gone", 2)):
            joined = Join(frontend(name), LISTENER, (to(number),))
            assert bench.plane.engine.handle([joined, SetEndpoints(frontend(name), (web,))]) == {}
        bench.plane.engine.handle([Retire(frontend("gone"))])
        place = await share(bench)
        asked[:] = [to(1)]
        assert await ask(place) == "web"
        asked[:] = [to(2)]
        with pytest.raises(ConnectionResetError):
            await ask(place)


async def test_all_queued_clients_are_served_at_the_end(bench: Bench, asked: list[Destination]) -> None:
    async with endpoint(sends("web")) as web, endpoint(sends("shop")) as shop:
        place = await share(bench, web=(web, (to(1),)), shop=(shop, (to(2),)))
        asked[:] = [to(2)]
        with contextlib.ExitStack() as queue:
            clients = [queue.enter_context(socket.create_connection(place)) for _ in range(2)]
            steps = bench.plane.engine.retire()  # nothing has run since that could accept them
            next(steps)
            late = queue.enter_context(socket.socket())
            assert late.connect_ex(place) != 0
            for _ in steps:
                pass
            for client in clients:
                client.setblocking(False)
                assert await asyncio.get_running_loop().sock_recv(client, 9) == b"shop"


async def test_a_client_for_whom_there_is_no_memory_is_closed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    left = [MemoryError]

    def read(fd: int) -> bytes:
        if left:
            raise left.pop()
        return key_of(to(1))

    monkeypatch.setattr(shared_listener, "reader", lambda family: read)
    async with endpoint(sends("web")) as web:
        place = await share(bench, web=(web, (to(1),)))
        reader, writer = await asyncio.open_connection(*place)
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
        assert await ask(place) == "web"


async def test_a_flooded_frontend_leaves_its_neighbor_its_part(bench: Bench, asked: list[Destination]) -> None:
    budget, name = bench.plane.engine._context.budget, frontend("web")
    async with endpoint(echo) as web, endpoint(sends("shop")) as shop:
        place = await share(bench, web=(web, (to(1),)), shop=(shop, (to(2),)))
        budget.limit = budget.used + 60
        asked[:] = [to(1)]
        with contextlib.ExitStack() as flood:
            for _ in range(60):
                client = flood.enter_context(socket.socket())
                client.setblocking(False)
                client.connect_ex(place)
            await eventually(lambda: bench.plane.engine.counters()[name].accepted == 60)
            asked[:] = [to(2)]
            assert await ask(place) == "shop"
            refused = bench.plane.engine.counters()[name].unable
            assert 0 < refused < 60
        await eventually(lambda: bench.plane.engine.counters()[name].active == 0)
