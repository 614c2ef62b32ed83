"""Waits for the end of a pod's connections: what ends them, who stays out meanwhile, and what all of them cost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping

import pytest

from kubeproxy.daemon import pod_drains
from kubeproxy.daemon.pod_drains import End, PodDrains, _Pod
from kubeproxy.model import Address, Endpoint, EndpointPort, EndpointSlice, Family, Protocol, ServiceName
from kubeproxy.model.endpoint import SliceName
from kubeproxy.model.errors import KernelError
from kubeproxy.netfilter.conntrack.connections_to import Seen
from kubeproxy.proxier.local_pods import Leaving, LocalPods
from kubeproxy.proxier.node import NodeFacts

POD, SIX, OTHER = Address("10.244.1.7"), Address("fd00:244::7"), Address("10.244.1.8")
NODE = NodeFacts(name="node-a", own_addresses=frozenset({Address("10.2.0.1")}))
WEB = ServiceName("default", "web")
IDLE = Seen(0, recent=False)


def endpoint(address: Address, pod: str = "uid-7", node: str = "node-a", *, terminating: bool = False) -> Endpoint:
    return Endpoint(address, node=node, pod=pod, terminating=terminating, ready=not terminating)


def slices(service: ServiceName, *endpoints: Endpoint) -> list[EndpointSlice]:
    ports = (EndpointPort("http", Protocol.TCP, 8080),)
    name = SliceName(service.namespace, f"{service.name}-1")
    return [EndpointSlice(name, service, Family.IPV4, ports, (each,)) for each in endpoints]


class Node:
    """A node with pods, its table of connections, and what its proxier is told."""

    def __init__(self) -> None:
        self.pods = LocalPods()
        self.table: dict[Address, Seen] = {}
        self.fails = False
        self.readings: list[frozenset[Address]] = []
        self.leaving: list[frozenset[Leaving]] = []
        self.drains = PodDrains(self.pods, self.leaving.append, read=self.read)

    def read(self, addresses: Collection[Address]) -> Mapping[Address, Seen]:
        self.readings.append(frozenset(addresses))
        if self.fails:
            raise KernelError("the table is away")
        return {address: self.table.get(address, IDLE) for address in addresses}

    async def told(self, *expected: Leaving) -> None:
        async with asyncio.timeout(10):
            while not self.leaving or self.leaving[-1] != frozenset(expected):
                await asyncio.sleep(0.005)

    async def read_again(self) -> None:
        before = len(self.readings)
        async with asyncio.timeout(10):
            while len(self.readings) < before + 2:  # one may be under way
                await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOOK_S", "SETTLE_S", "GATHER_S", "UNDO_S"):
        monkeypatch.setattr(pod_drains, name, 0.02)


def play(scenario: Callable[[Node], Awaitable[None]]) -> None:
    async def play() -> None:
        node = Node()
        running = asyncio.ensure_future(node.drains.run())
        try:
            await scenario(node)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(play())


@pytest.mark.parametrize(
    ("seen", "in_service", "news_at", "read_at", "expected"),
    [
        (None, True, 0.0, 99.0, False),
        (Seen(1, recent=False), True, 0.0, 99.0, False),
        (IDLE, True, None, 15.9, False),  # other nodes cannot know yet
        (IDLE, True, None, 16.0, True),  # news that never come are not waited for
        (IDLE, True, 10.0, 11.9, False),
        (IDLE, True, 10.0, 12.0, True),
        (Seen(0, recent=True), True, 10.0, 12.0, False),  # clients still come
        (Seen(0, recent=True), True, 10.0, 19.9, False),
        (Seen(0, recent=True), True, 10.0, 20.0, True),  # without end, as a load balancer's checks
        (IDLE, False, 10.0, 10.0, True),  # no node knows the pod as an endpoint
        (Seen(1, recent=False), False, 10.0, 99.0, False),
    ],
)
def test_when_a_pod_may_end(
    seen: Seen | None, in_service: bool, news_at: float | None, read_at: float, expected: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pod_drains, "SETTLE_S", 2.0)
        pod = _Pod("uid", in_service, 9.0, news_at, seen=seen, read_at=read_at)
        assert pod.may_end(9.0) is expected


def test_a_pod_leaves_for_long_only_if_it_terminates() -> None:
    pod = _Pod("uid", in_service=True, asked_at=10.0)
    pod.note(14.0, terminates=False)
    assert [pod.leaves(now) for now in (14.9, 15.0)] == [True, False]
    pod.note(16.0, terminates=True)
    pod.note(17.0, terminates=True)
    assert (pod.leaves(99.0), pod.news_at) == (True, 16.0)


def test_calls_again_and_again_about_a_pod_that_stays_have_it_drain_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # As a probe of another pod makes them, whose `host` is this pod's address.
    monkeypatch.setattr(pod_drains, "NEWS_S", 0.5)

    async def scenario(it: Node) -> None:
        it.pods.put(WEB, slices(WEB, endpoint(POD), endpoint(OTHER, "uid-8")), NODE)
        it.table[POD] = Seen(1, recent=False)
        waiting = asyncio.ensure_future(it.drains.wait(POD, 60))
        await it.told(Leaving(POD, "uid-7"))
        await it.told()
        assert not waiting.done()
        for _ in range(3):
            assert (await it.drains.wait(POD, 0.1)).end is End.TIMEOUT
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await asyncio.sleep(0.2)  # longer than pods that terminate are remembered
        assert (await it.drains.wait(POD, 0.1)).end is End.TIMEOUT
        assert it.leaving == [frozenset({Leaving(POD, "uid-7")}), frozenset()]
        it.pods.put(WEB, slices(WEB, endpoint(POD, terminating=True)), NODE)
        again = asyncio.ensure_future(it.drains.wait(POD, 60))
        await it.told(Leaving(POD, "uid-7"))
        again.cancel()

    play(scenario)


def test_who_asks_by_hand_has_a_pod_drain_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_drains, "NEWS_S", 0.05)

    async def scenario(it: Node) -> None:
        it.pods.put(WEB, slices(WEB, endpoint(POD)), NODE)
        it.table[POD] = Seen(1, recent=False)
        assert (await it.drains.wait(POD, 0.5, by_hand=True)).end is End.TIMEOUT
        assert it.leaving == [frozenset({Leaving(POD, "uid-7")})]
        await it.told()

    play(scenario)


def test_a_pod_waits_for_its_connections_and_gets_no_new_ones() -> None:
    async def scenario(it: Node) -> None:
        it.pods.put(WEB, slices(WEB, endpoint(POD), endpoint(OTHER, "uid-8")), NODE)
        it.table[POD] = Seen(2, recent=False)
        waiting = asyncio.ensure_future(it.drains.wait(POD, 60))
        await it.told(Leaving(POD, "uid-7"))
        it.pods.put(WEB, slices(WEB, endpoint(POD, terminating=True), endpoint(OTHER, "uid-8")), NODE)
        await it.read_again()
        assert not waiting.done()
        it.table[POD] = IDLE
        outcome = await asyncio.wait_for(waiting, 10)
        assert (outcome.end, outcome.open) == (End.IDLE, 0)
        assert outcome.text.startswith("no connection is left after ")
        await it.told()  # and new ones again, as it asks no more

    play(scenario)


def test_the_time_is_over() -> None:
    async def scenario(it: Node) -> None:
        it.pods.put(WEB, slices(WEB, endpoint(POD, terminating=True)), NODE)
        it.table[POD] = Seen(3, recent=False)
        outcome = await it.drains.wait(POD, 0.5)
        assert (outcome.end, outcome.open, outcome.left_s) == (End.TIMEOUT, 3, 0.0)
        assert outcome.text.endswith("; open connections: 3")

    play(scenario)


def test_connections_by_the_other_family_count_although_kubelet_asks_at_one_address() -> None:
    async def scenario(it: Node) -> None:
        it.pods.put(WEB, slices(WEB, endpoint(POD, terminating=True), endpoint(SIX, terminating=True)), NODE)
        it.table[SIX] = Seen(1, recent=False)
        outcome = await it.drains.wait(POD, 0.5)
        assert (outcome.end, outcome.open) == (End.TIMEOUT, 1)
        waiting = asyncio.ensure_future(it.drains.wait(POD, 60))
        await it.read_again()
        it.pods.put(WEB, (), NODE)  # the slices forget the pod, and its connections go on
        await it.read_again()
        assert it.readings[-1] == frozenset({POD, SIX})
        it.table.clear()
        assert (await asyncio.wait_for(waiting, 10)).end is End.IDLE

    play(scenario)


def test_a_table_that_cannot_be_read_lets_no_pod_end_early() -> None:
    async def scenario(it: Node) -> None:
        it.fails = True
        outcome = await it.drains.wait(POD, 0.3)
        assert (outcome.end, outcome.open) == (End.TIMEOUT, None)
        it.fails = False
        assert (await it.drains.wait(POD, 60)).end is End.IDLE

    play(scenario)


def test_all_pods_share_a_reading() -> None:
    async def scenario(it: Node) -> None:
        pods = [Address(f"10.244.2.{number}") for number in range(110)]
        it.pods.put(WEB, slices(WEB, *(endpoint(pod, f"uid-{pod}", terminating=True) for pod in pods)), NODE)
        it.table = dict.fromkeys(pods, Seen(1, recent=False))
        waiting = [asyncio.ensure_future(it.drains.wait(pod, 60)) for pod in pods]
        await it.told(*(Leaving(pod, f"uid-{pod}") for pod in pods))
        assert len(it.leaving) == 1
        await it.read_again()
        assert it.readings[-1] == frozenset(pods)
        it.table.clear()
        assert {outcome.end for outcome in await asyncio.gather(*waiting)} == {End.IDLE}

    play(scenario)


@pytest.mark.parametrize(("limit", "of"), [("MOST", OTHER), ("MOST_OF_POD", POD)])
def test_too_many_calls_are_refused(limit: str, of: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_drains, limit, 1)

    async def scenario(it: Node) -> None:
        it.table[POD] = Seen(1, recent=False)
        waiting = asyncio.ensure_future(it.drains.wait(POD, 60))
        await it.read_again()
        assert (await it.drains.wait(of, 60)).end is End.CROWD
        await it.drains.end()
        outcome = await waiting
        assert outcome.end is End.MOVED
        assert 0 < outcome.left_s <= 60

    play(scenario)
