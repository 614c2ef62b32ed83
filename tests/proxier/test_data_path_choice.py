"""The data path of frontends: which one they take, and how changes of endpoints reach the kernel."""

from __future__ import annotations

import asyncio
import ipaddress
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from kubeproxy.dataplane.balancing.balancer import Balancer
from kubeproxy.dataplane.messages import Message
from kubeproxy.model import (
    NODE_PORTS,
    Address,
    Balancing,
    Claim,
    Destination,
    Family,
    Frontend,
    FrontendName,
    Origin,
    Protocol,
    Scheduler,
    Scope,
    Target,
    Traffic,
)
from kubeproxy.model.maglev import place_of
from kubeproxy.model.snapshot import DataPath, SlotUse
from kubeproxy.netfilter.packet_simulation import Fate, trace
from kubeproxy.netfilter.ruleset import ClientHash, Masquerade, RuleChange, RuleSet
from kubeproxy.proxier.data_path_choice import USERSPACE_ONLY, DataPathPolicy, Ejected, Wanted, why_userspace
from kubeproxy.proxier.node import NodeFacts
from kubeproxy.proxier.ruleset_builder import RuleSetBuilder
from kubeproxy.proxier.settings import ProxierSettings
from kubeproxy.proxier.slow_start import SlowStarts
from tests.proxier.builders import destination, endpoint_slice, frontend_name, service, targets
from tests.proxier.fake_node import SOURCE, MakeNode, Node
from tests.support.doubles.conntrack import FakeConntrack

KERNEL = DataPathPolicy(Wanted.KERNEL)
FORWARDS = NodeFacts(forwarding=frozenset(Family))
VIP = destination("10.96.0.1:80")
EXTERNAL = destination("198.51.100.1:80")
NODE_PORT = Destination(NODE_PORTS[Family.IPV4], Protocol.TCP, 30080)
THREE = targets("10.0.0.1:8080 10.0.0.2:8080 10.0.0.3:8080")


def frontend(
    *destinations: Destination, scope: Scope = Scope.CLUSTER, endpoints: tuple[Target, ...] = THREE
) -> Frontend:
    """A frontend of the Service web."""
    return Frontend(
        name=frontend_name("web")._replace(scope=scope),
        protocol=Protocol.TCP,
        destinations=dict.fromkeys(destinations, Origin.ANYWHERE),
        endpoints=endpoints,
        claims={EXTERNAL: Claim.EXTERNAL} if EXTERNAL in destinations else {},
    )


def rules(*frontends: Frontend, policy: DataPathPolicy = KERNEL, facts: NodeFacts = FORWARDS) -> RuleSetBuilder:
    """The rules of these frontends, at proxy ports from 40001."""
    made = RuleSetBuilder()
    made.use(ProxierSettings(facts=facts, data_path=policy))
    for number, each in enumerate(frontends):
        made.put(each, 40001 + number)
    return made


@pytest.mark.parametrize(
    ("policy", "facts", "endpoints", "reason"),
    [
        (KERNEL, FORWARDS, THREE, ""),
        (DataPathPolicy(Wanted.AUTO, rescue=True), FORWARDS, THREE, ""),
        (USERSPACE_ONLY, FORWARDS, THREE, "kubeproxy.dataPath is userspace"),
        (DataPathPolicy(Wanted.AUTO), FORWARDS, THREE, "are not rescued"),
        (replace(KERNEL, refusal="iptables: no"), FORWARDS, THREE, "iptables: no"),
        (KERNEL, NodeFacts(forwarding=frozenset({Family.IPV6})), THREE, "set net.ipv4.ip_forward=1"),
        (KERNEL, FORWARDS, targets("10.0.0.1:80 127.0.0.1:80"), "endpoint 127.0.0.1:80 is a loopback address"),
        (KERNEL, FORWARDS, (), "there is no endpoint"),
        (replace(KERNEL, rescue_starts=True), FORWARDS, THREE, "the rescue of failed connections is starting"),
    ],
)
def test_a_frontend_takes_the_kernel_path_where_nothing_is_against_it(
    policy: DataPathPolicy, facts: NodeFacts, endpoints: tuple[Target, ...], reason: str
) -> None:
    web = frontend(VIP, endpoints=endpoints)
    assert reason in why_userspace(web, policy, facts)
    made = rules(web, policy=policy, facts=facts)
    spread = made.ruleset().spreads.get(Traffic(VIP))
    assert (spread is not None and spread.targets == THREE) is (reason == "")
    path, why, leading_to = made.data_path(web)
    assert (path is DataPath.KERNEL) is (reason == "") is (leading_to == THREE)
    assert reason in why


LEAST = Balancing(Scheduler.LEAST_CONNECTIONS)


def test_what_the_kernel_cannot_count_is_a_workers_unless_there_is_none() -> None:
    drawn, wanted = frontend(VIP), replace(frontend(VIP), balancing=LEAST)
    made = rules(drawn)
    assert made.data_path(drawn)[0] is DataPath.KERNEL
    made.update_endpoints(wanted)
    path, why, _ = made.data_path(wanted)
    assert (path, "least-connections" in why) == (DataPath.USERSPACE, True)
    made.update_endpoints(drawn)
    assert made.data_path(drawn)[0] is DataPath.KERNEL, "as soon as the kernel can"
    strict = rules(wanted, policy=replace(KERNEL, fallback=False))
    assert strict.data_path(wanted)[0] is DataPath.KERNEL, "a draw is better than a refusal"


def test_weights_are_numbers_of_slots() -> None:
    web = replace(frontend(VIP), balancing=Balancing(Scheduler.RANDOM, weights=(2, 4, 6)))
    made = rules(web)
    (spread,) = made.ruleset().spreads.values()
    assert Counter(spread.slots) == dict(zip(THREE, (1, 2, 3), strict=True))
    assert (spread.targets, spread.client_hash) == (THREE, None)
    made.use_ejected({(Protocol.TCP, THREE[2]): False}, [web.name])
    (spread,) = made.ruleset().spreads.values()
    assert Counter(spread.slots) == {THREE[0]: 1, THREE[1]: 2}


@pytest.mark.parametrize("scheduler", [Scheduler.SOURCE_HASH, Scheduler.MAGLEV])
def test_past_an_ejected_endpoint_the_kernel_leads_each_client_as_a_worker_does(scheduler: Scheduler) -> None:
    web = replace(frontend(VIP), balancing=Balancing(scheduler, seed=7))
    made, balancer = rules(web), Balancer(rng=random.Random(1), probes_beside=True)
    balancer.update(THREE, None, web.balancing)
    by_port = scheduler is Scheduler.MAGLEV
    for dead in ((), THREE[:1], THREE[:2]):
        made.use_ejected({(Protocol.TCP, target): False for target in dead}, [web.name])
        for target in dead:
            balancer.failed(target, 0.0, "refused")
        (spread,) = made.ruleset().spreads.values()
        assert spread.client_hash == ClientHash(by_port, 7)
        assert (len(spread.slots), set(spread.slots)) == (1021, set(THREE).difference(dead))
        for number in range(500):
            client, port = f"10.9.{number % 3}.{number % 250}", 1024 + number
            packed = ipaddress.ip_address(client).packed
            slot = place_of(packed, port if by_port else None, seed=7, size=1021)
            assert spread.slots[slot] == balancer.pick(client, 0.5, port=port)


def test_the_slots_of_a_hash_count_for_the_budget() -> None:
    many = frozenset(
        Destination(Address(f"198.51.{number // 200}.{number % 200}"), Protocol.TCP, 80) for number in range(600)
    )
    web = replace(frontend(*many), balancing=Balancing(Scheduler.MAGLEV, seed=7))
    path, why, _ = rules(web).data_path(web)
    assert (path, "612600 slots (600 addresses with 1021 each)" in why) == (DataPath.USERSPACE, True)


def test_what_had_no_slots_gets_them_when_others_are_freed() -> None:
    """As when a slow start ends, which takes several slots for each endpoint."""
    many = [Destination(Address(f"198.51.100.{number}"), Protocol.TCP, 80) for number in range(128)]
    hashed = replace(frontend(*many), balancing=Balancing(Scheduler.MAGLEV, seed=7))
    late = replace(frontend(VIP, EXTERNAL), name=frontend_name("late"), balancing=Balancing(weights=(100, 99, 98)))
    made = rules(hashed, late, policy=replace(KERNEL, slots=1 << 18))
    assert [made.data_path(it)[0] for it in (hashed, late)] == [DataPath.KERNEL, DataPath.USERSPACE]
    made.take_unbalanced(made.ruleset())
    made.update_endpoints(replace(hashed, balancing=Balancing()))
    assert made.data_path(late)[0] is DataPath.KERNEL
    assert not made.is_balanced, "the kernel learns of it"
    made.put(replace(late, balancing=Balancing(Scheduler.MAGLEV, seed=7)), 40002)
    made.put(hashed, 40001)
    assert made.data_path(hashed)[0] is DataPath.USERSPACE
    made.remove(late.name)
    assert made.data_path(hashed)[0] is DataPath.KERNEL


def test_a_slow_start_that_has_no_room_is_left_out_before_the_kernel_path_is() -> None:
    starts, web = SlowStarts(), replace(frontend(VIP), balancing=Balancing(weights=(2, 1, 1)))
    service_name = web.name.service_port.service
    starts.applied(service_name, 30, [web.keeping(THREE[:2])])
    (slow,) = starts.applied(service_name, 30, [web])
    for limit, slots in ((8, {THREE[0]: 2, THREE[1]: 1, THREE[2]: 1}), (62, {THREE[0]: 20, THREE[1]: 10, THREE[2]: 1})):
        made = rules(slow, policy=replace(KERNEL, slots=limit))
        assert made.data_path(slow)[:2] == (DataPath.KERNEL, "")
        (spread,) = made.ruleset().spreads.values()
        assert Counter(spread.slots) == slots
        assert made.slots == SlotUse(sum(slots.values()), limit)
    made = rules(slow, policy=replace(KERNEL, slots=7))
    assert made.data_path(slow)[0] is DataPath.USERSPACE
    assert made.data_path(slow)[1].startswith("4 slots")
    less = slow.keeping(THREE[1:])
    assert (less.balancing.weights, less.settled) == ((10, 1), Balancing(weights=(1, 1)))


def test_without_a_fallback_what_the_kernel_cannot_lead_is_refused() -> None:
    """And only that, with a reason; a Service without endpoints has none that would be new."""
    strict = replace(KERNEL, fallback=False)
    loopback = replace(frontend(EXTERNAL, endpoints=targets("127.0.0.1:80")), name=frontend_name("loopback"))
    empty = replace(frontend(NODE_PORT, endpoints=()), name=frontend_name("empty"))
    made = rules(frontend(VIP), loopback, empty, policy=strict)
    fates = [trace(made.ruleset(), each).fate for each in (VIP, EXTERNAL)]
    assert fates == [Fate.FORWARDED, Fate.REFUSED]
    assert {port.port for port in made.ruleset().refused} == {40001, 40002, 40003}
    assert list(made.refused) == [loopback.name]
    assert "is a loopback address" in made.refused[loopback.name]
    assert [made.data_path(each)[0] for each in (frontend(VIP), loopback, empty)] == [
        DataPath.KERNEL,
        DataPath.REFUSED,
        DataPath.REFUSED,
    ]
    all_refuse: Ejected = {(Protocol.TCP, target): False for target in THREE}
    made.use_ejected(all_refuse, [frontend_name("web")])
    assert trace(made.ruleset(), VIP).fate is Fate.REFUSED, "as the endpoints would"
    made.use_ejected({**all_refuse, (Protocol.TCP, THREE[0]): True}, [frontend_name("web")])
    assert trace(made.ruleset(), VIP).fate is Fate.FORWARDED, "a silent one may be silent to this node alone"
    made.put(replace(loopback, endpoints=THREE), 40002)
    assert not made.refused
    assert trace(made.ruleset(), EXTERNAL).fate is Fate.FORWARDED
    made.put(loopback, 40002)
    made.remove(loopback.name)
    assert not made.refused


def test_without_a_kernel_path_the_rules_are_as_ever() -> None:
    ruleset = rules(frontend(VIP, NODE_PORT), policy=USERSPACE_ONLY).ruleset()
    assert (ruleset.spreads, ruleset.masquerades, ruleset.hairpins) == ({}, {}, set())


@pytest.mark.parametrize(
    ("masquerade_all", "sources", "expected"),
    [
        (False, (), {NODE_PORT: Masquerade.ALWAYS, EXTERNAL: Masquerade.ALWAYS}),
        (False, ("fd00::/8",), {NODE_PORT: Masquerade.ALWAYS, EXTERNAL: Masquerade.ALWAYS}),
        (
            False,
            ("10.3.0.0/16",),
            {VIP: Masquerade.OUTSIDE, NODE_PORT: Masquerade.ALWAYS, EXTERNAL: Masquerade.ALWAYS},
        ),
        (True, (), dict.fromkeys((VIP, NODE_PORT, EXTERNAL), Masquerade.ALWAYS)),
    ],
)
def test_masquerading_is_kube_proxys(
    masquerade_all: bool, sources: tuple[str, ...], expected: dict[Destination, Masquerade]
) -> None:
    facts = replace(FORWARDS, internal_sources=frozenset(sources))
    made = rules(frontend(VIP, NODE_PORT, EXTERNAL), policy=replace(KERNEL, masquerade_all=masquerade_all), facts=facts)
    assert made.ruleset().masquerades == expected
    # The same, if the settings come later.
    later = rules(frontend(VIP, NODE_PORT, EXTERNAL))
    later.use(ProxierSettings(facts=facts, data_path=replace(KERNEL, masquerade_all=masquerade_all)))
    assert later.ruleset() == made.ruleset()


def test_under_the_local_policy_outside_clients_keep_their_address() -> None:
    own = replace(frontend(VIP), destinations={VIP: Origin.ANYWHERE, EXTERNAL: Origin.NODE})
    outside = frontend(EXTERNAL, scope=Scope.EXTERNAL, endpoints=THREE[:1])
    ruleset = rules(own, outside).ruleset()
    assert ruleset.spreads[Traffic(EXTERNAL)].targets == THREE[:1]
    assert ruleset.spreads[Traffic(EXTERNAL, Origin.NODE)].targets == THREE
    assert ruleset.masquerades == {EXTERNAL: Masquerade.NODE}


def test_only_endpoints_near_here_are_hairpins_and_only_on_the_kernel_path() -> None:
    web = replace(frontend(VIP), neighbors=THREE[:2])
    made = rules(web)
    near = {target.address for target in THREE[:2]}
    assert made.ruleset().hairpins == near
    other = replace(frontend(EXTERNAL), name=frontend_name("shop"), neighbors=THREE[:1])
    made.put(other, 40009)
    made.remove(web.name)
    assert made.ruleset().hairpins == {THREE[0].address}
    made.use(ProxierSettings(facts=FORWARDS))
    assert made.ruleset().hairpins == frozenset()


def test_another_endpoint_on_this_node_costs_no_new_rules() -> None:
    web = replace(frontend(VIP, endpoints=THREE[:2]), neighbors=THREE[:2])
    made = rules(web, replace(frontend(EXTERNAL), name=frontend_name("shop"), neighbors=THREE[1:2]))
    in_force, generation = made.ruleset(), made.generation
    made.update_endpoints(replace(web, endpoints=THREE[1:], neighbors=THREE[2:]))
    change = made.take_unbalanced(in_force)
    assert change.hairpins == {THREE[0].address: False, THREE[2].address: True}
    in_force.enter(change)
    made.put(replace(web, endpoints=THREE[1:], neighbors=THREE[2:]), 40001)
    assert made.generation == generation
    assert made.is_balanced
    assert made.ruleset() == in_force
    made.remove(web.name)
    assert made.ruleset().hairpins == {THREE[1].address}


def test_an_ejected_endpoint_costs_no_new_rules() -> None:
    web = frontend(VIP, NODE_PORT)
    made = rules(web)
    in_force, generation = made.ruleset(), made.generation
    made.use_ejected({(Protocol.TCP, THREE[0]): False}, [web.name])
    change = made.take_unbalanced(in_force)
    assert change.spreads.keys() == {Traffic(VIP), Traffic(NODE_PORT)}
    spread = change.spreads[Traffic(VIP)]
    assert spread is not None
    assert (spread.targets, spread.endpoints) == (THREE[1:], THREE)
    assert made.generation == generation
    assert made.is_balanced
    made.use_ejected(_all_ejected(), [web.name])
    assert made.data_path(web) == (DataPath.USERSPACE, "all endpoints are ejected", ())
    made.use_ejected({(Protocol.UDP, target): False for target in THREE}, [web.name])
    assert made.data_path(web)[0] is DataPath.KERNEL


def test_an_endpoint_that_only_serves_flows_that_exist_is_an_endpoint_of_the_spread() -> None:
    web = frontend(VIP)
    made = rules(web)
    in_force = made.ruleset()
    made.update_endpoints(replace(web, endpoints=THREE[1:], staying=THREE[:1]))
    spread = made.take_unbalanced(in_force).spreads[Traffic(VIP)]
    assert spread is not None
    assert (spread.targets, set(spread.endpoints)) == (THREE[1:], set(THREE))


def test_silence_alone_never_leads_to_user_space() -> None:
    """Silent endpoints are left out while there are others. Without others they stay, and those that refuse go."""
    web = frontend(VIP)
    made = rules(web)
    first, second, third = ((Protocol.TCP, target) for target in THREE)
    made.use_ejected({first: True, second: False}, [web.name])
    assert made.data_path(web) == (DataPath.KERNEL, "", THREE[2:])
    made.use_ejected({first: True, second: False, third: True}, [web.name])
    assert made.data_path(web) == (DataPath.KERNEL, "", (THREE[0], THREE[2]))
    made.use_ejected({first: True, second: False, third: False}, [web.name])
    assert made.data_path(web) == (DataPath.KERNEL, "", THREE[:1])


def test_too_many_slots_stay_in_user_space() -> None:
    many = targets(" ".join(f"10.1.{number // 250}.{number % 250}:80" for number in range(4000)))
    wide = frontend(*(destination(f"192.0.2.{number}:80") for number in range(100)), endpoints=many)
    made = rules(wide, policy=replace(KERNEL, slots=400_000))
    assert made.slots.complaint == (
        "frontends without slots of the kernel path: 1; 0 of 400000 slots are in use, and a namespace may have half of"
        " what the others leave; raise kubeproxy.slotMemoryMib"
    )
    assert made.data_path(wide)[:2] == (
        DataPath.USERSPACE,
        "400000 slots (100 addresses with 4000 each) are more than namespace default may have besides its 0;"
        " raise kubeproxy.slotMemoryMib",
    )
    assert not any(each.targets for each in made.ruleset().spreads.values())
    made.put(replace(wide, endpoints=THREE), 40001)
    assert made.data_path(wide)[0] is DataPath.KERNEL
    now = made.slots
    assert now == SlotUse(300, 400_000)
    assert now.complaint is None
    made.put(wide, 40001)
    made.use(ProxierSettings(facts=FORWARDS, data_path=replace(KERNEL, slots=800_000)))
    assert made.slots == SlotUse(400_000, 800_000), "a larger limit counts at once"


def _all_ejected() -> Ejected:
    return {(Protocol.TCP, target): False for target in THREE}


def test_a_new_destination_waits_for_its_redirect() -> None:
    made = rules(frontend(VIP))
    in_force = made.ruleset()
    made.put(frontend(VIP, NODE_PORT), 40001)
    assert not made.take_unbalanced(in_force).spreads
    assert made.ruleset().spreads.keys() == {Traffic(VIP), Traffic(NODE_PORT)}


def test_running_flows_are_known_after_the_path_has_changed() -> None:
    made = rules(frontend(VIP))
    made.use(ProxierSettings(facts=FORWARDS))
    spread = made.ruleset().spreads[Traffic(VIP)]
    assert (spread.targets, spread.endpoints) == ((), THREE)


@pytest.fixture
def make_node(make_node: MakeNode) -> MakeNode:
    """Nodes with the kernel path."""

    def make(**settings: object) -> Node:
        node = make_node(**settings)
        node.use(facts=FORWARDS)
        node.use(data_path=KERNEL)
        return node

    return make


async def serving(node: Node, ports: str = "http:80") -> Node:
    """Wait until the node serves ``web`` with three endpoints."""
    node.start()
    node.tracker.replace_services(SOURCE, [service("web", ports=ports)])
    node.tracker.replace_slices(SOURCE, [endpoint_slice("web", "10.0.0.1 10.0.0.2 10.0.0.3", _target(ports))])
    await node.rest()
    return node


def _target(ports: str) -> str:
    return ports.replace(":80", ":8080")


def led_to(node: Node, to: Destination = VIP) -> tuple[Target, ...]:
    """The endpoints to which the kernel leads."""
    found = node.netfilter.trace(to)
    assert found.spread is not None, found
    assert found.fate is Fate.FORWARDED
    return found.spread.targets


class TestRebalancing:
    """Changes of endpoints among fakes."""

    async def test_a_change_of_endpoints_does_not_wait_for_the_period(self, make_node: MakeNode) -> None:
        node = await serving(make_node())
        assert led_to(node) == THREE
        for _ in range(10):  # more than the transactions that need not wait
            node.tracker.put_slice(SOURCE, endpoint_slice("web", "10.0.0.1"))
            await node.rest()
            assert led_to(node) == THREE[:1]
            node.tracker.put_slice(SOURCE, endpoint_slice("web", "10.0.0.1 10.0.0.2 10.0.0.3"))
            await node.rest()
            assert led_to(node) == THREE
        assert node.netfilter.rebalanced >= 20

    async def test_services_come_and_go_as_changes_of_the_rules_in_force(self, make_node: MakeNode) -> None:
        node = await serving(make_node())
        rules, applied = node.proxier.kernel.in_force, len(node.netfilter.history)
        for name, address in (("shop", "10.96.0.7"), ("api", "10.96.0.8")):
            node.tracker.put_slice(SOURCE, endpoint_slice(name, "10.0.0.1"))
            node.tracker.put_service(SOURCE, service(name, address))
            await node.settle()
            assert led_to(node, destination(f"{address}:80")) == THREE[:1]
        node.tracker.remove_service(SOURCE, service("shop").name)
        await node.settle()
        assert node.netfilter.trace(destination("10.96.0.7:80")).fate is Fate.PASSED
        assert node.netfilter.services_changed == len(node.netfilter.history) - applied == 3
        assert node.proxier.kernel.in_force is rules

    async def test_a_refused_change_of_services_is_repeated_with_all_rules(self, make_node: MakeNode) -> None:
        node = await serving(make_node())
        node.netfilter.fail(times=1)
        node.tracker.put_service(SOURCE, service("shop", "10.96.0.7"))
        node.tracker.put_slice(SOURCE, endpoint_slice("shop", "10.0.0.1"))
        await node.settle()
        assert led_to(node, destination("10.96.0.7:80")) == THREE[:1]
        assert not node.netfilter.services_changed

    async def test_a_change_does_not_wait_for_the_data_plane(
        self, make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        node = await serving(make_node())
        send, free = node.data_plane.send, asyncio.Event()

        async def slow(messages: Sequence[Message]) -> Mapping[FrontendName, str]:
            await free.wait()
            return await send(messages)

        monkeypatch.setattr(node.data_plane, "send", slow)
        node.tracker.put_slice(SOURCE, endpoint_slice("web", "10.0.0.1 10.0.0.4"))
        async with asyncio.timeout(10):
            while led_to(node) == THREE:
                await asyncio.sleep(0)
        assert led_to(node) == targets("10.0.0.1:8080 10.0.0.4:8080")
        assert node.data_plane.endpoints[frontend_name("web")].endpoints == THREE
        free.set()
        await node.rest()
        assert node.data_plane.endpoints[frontend_name("web")].endpoints == led_to(node)

    async def test_a_change_is_not_lost_if_the_proxier_is_cancelled_meanwhile(
        self, make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        node, begun = await serving(make_node()), asyncio.Event()

        async def endless(change: RuleChange) -> bool:
            begun.set()
            return await asyncio.Future[bool]()

        with monkeypatch.context() as patched:
            patched.setattr(node.netfilter, "change", endless)
            node.tracker.put_slice(SOURCE, endpoint_slice("web", "10.0.0.1"))
            await begun.wait()
            await node.interrupt()
        await node.settle()
        assert led_to(node) == THREE[:1]

    async def test_a_data_plane_that_takes_nothing_does_not_keep_the_kernel_from_it(self, make_node: MakeNode) -> None:
        node = await serving(make_node())
        node.data_plane.broken = "no worker answers"
        node.tracker.put_slice(SOURCE, endpoint_slice("web", "10.0.0.1"))
        await node.rest()
        assert led_to(node) == THREE[:1]

    async def test_the_periodic_sync_gives_the_adapter_the_rules_that_it_knows(
        self, make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """So that it need not compare ten thousand Services."""
        node = await serving(make_node())
        given: list[RuleSet] = []
        apply = node.netfilter.apply

        async def recorded(wanted: RuleSet, *, verify: bool) -> bool:
            given.append(wanted)
            return await apply(wanted, verify=verify)

        monkeypatch.setattr(node.netfilter, "apply", recorded)
        node.tracker.put_slice(SOURCE, endpoint_slice("web", "10.0.0.1"))
        await node.rest()
        for _ in range(2):
            await node.pass_time(31.0)
        assert len(given) == 2
        assert given[0] is given[1]
        assert given[0] == node.netfilter.kernel
        node.tracker.put_slice(SOURCE, endpoint_slice("web", ""))
        await node.pass_time(31.0)
        assert given[-1] is given[0], "a change of Services is entered in them"
        assert given[-1].refused == node.netfilter.kernel.refused != set()
        node.use(landing={Family.IPV4: Address("10.2.0.1")})
        await node.pass_time(31.0)
        assert given[-1] is not given[0]

    async def test_ejected_endpoints_get_no_clients_and_come_back(self, make_node: MakeNode) -> None:
        node = await serving(make_node())
        applied = len(node.netfilter.history)
        await node.proxier.eject({(Protocol.TCP, THREE[1]): False})
        assert led_to(node) == (THREE[0], THREE[2])
        await node.proxier.eject(_all_ejected())
        assert node.netfilter.trace(VIP).fate is Fate.PROXIED
        (shown,) = node.proxier.view.snapshot().frontends
        assert (shown.data_path, shown.data_path_reason) == (DataPath.USERSPACE, "all endpoints are ejected")
        node.proxier.set_ejected({})
        await node.rest()
        assert led_to(node) == THREE
        assert len(node.netfilter.history) == applied
        (shown,) = node.proxier.view.snapshot().frontends
        assert (shown.data_path, shown.targets) == (DataPath.KERNEL, THREE)

    async def test_what_the_kernel_refuses_is_tried_again_as_a_whole(self, make_node: MakeNode) -> None:
        node = await serving(make_node())
        node.netfilter.fail()
        await node.proxier.eject({(Protocol.TCP, THREE[1]): False})
        assert led_to(node) == THREE
        await node.pass_time(31.0)
        assert led_to(node) == (THREE[0], THREE[2])
        assert node.proxier.view.snapshot().failing is None

    async def test_no_endpoint_is_refused_and_one_more_is_led_to(self, make_node: MakeNode) -> None:
        node = await serving(make_node())
        node.tracker.put_slice(SOURCE, endpoint_slice("web", ""))
        await node.pass_time(1.0)
        assert node.netfilter.trace(VIP).fate is Fate.REFUSED
        node.tracker.put_slice(SOURCE, endpoint_slice("web", "10.0.0.2"))
        await node.pass_time(1.0)
        assert led_to(node) == THREE[1:2]

    async def test_the_path_changes_while_it_serves(self, make_node: MakeNode) -> None:
        node = await serving(make_node())
        node.use(data_path=USERSPACE_ONLY)
        await node.pass_time(1.0)
        assert node.netfilter.trace(VIP).fate is Fate.PROXIED
        node.use(data_path=KERNEL)
        await node.pass_time(1.0)
        assert led_to(node) == THREE
        node.use(facts=NodeFacts())
        await node.pass_time(1.0)
        assert node.netfilter.trace(VIP).fate is Fate.PROXIED
        (shown,) = node.proxier.view.snapshot().frontends
        assert "net.ipv4.ip_forward" in shown.data_path_reason

    async def test_udp_flows_to_a_removed_endpoint_are_deleted(self, make_node: MakeNode) -> None:
        conntrack = FakeConntrack()
        node = await serving(make_node(conntrack=conntrack, protocols=(Protocol.UDP,)), ports="dns:80/UDP")
        asked = len(conntrack.calls)
        node.tracker.put_slice(SOURCE, endpoint_slice("web", "10.0.0.1", "dns:8080/UDP"))
        await node.rest()
        before, now = conntrack.calls[asked]
        to = Traffic(VIP._replace(protocol=Protocol.UDP))
        assert before is not None
        assert before.spreads[to].endpoints == THREE
        assert now.spreads[to].endpoints == THREE[:1]
