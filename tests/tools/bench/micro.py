"""The pure parts by themselves, at the size of a large cluster: `make micro`.

Not collected by `make test`; test_micro.py keeps it alive.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from ipaddress import ip_network
from types import SimpleNamespace
from typing import Any, TypeVar

import msgspec
from pytest_benchmark.fixture import BenchmarkFixture

from kubeproxy.dataplane.balancing.affinity import AT_ONCE, freshest, merged, pieces
from kubeproxy.dataplane.balancing.balancer import Balancer
from kubeproxy.dataplane.messages import Binding
from kubeproxy.dataplane.workers.takeover_messages import FROM_ORPHANS, Bindings, decode, encode
from kubeproxy.kubernetes import api_types
from kubeproxy.kubernetes.client.decode import parse_event, parse_page
from kubeproxy.model import (
    Address,
    Balancing,
    Destination,
    Family,
    FrontendName,
    Protocol,
    Scheduler,
    ServicePortName,
    Target,
    Traffic,
)
from kubeproxy.netfilter.nftables import transaction
from kubeproxy.netfilter.nftables.table_change import table_change
from kubeproxy.netfilter.ruleset import RuleSet, Spread
from kubeproxy.proxier.port_system_calls import PortSystemCalls
from kubeproxy.proxier.state import ProxierState
from kubeproxy.proxier.tracker import Tracker
from kubeproxy.rescue.ejector import Ejector
from kubeproxy.sources import translate
from kubeproxy.sources.manifests.documents import read
from kubeproxy.sources.manifests.objects import Terms
from tests.proxier.builders import endpoint_slice, service
from tests.support.apiserver.generate import endpoint_slice as raw_slice
from tests.support.apiserver.generate import service as raw_service
from tests.support.doubles.data_plane import FakeDataPlane, FakePortReserver
from tests.tools.bench.clusters import endpoints_of, manifest

T = TypeVar("T")

SERVICES = int(os.environ.get("MICRO_SERVICES", "10000"))
SOURCE = "kubernetes"

NOW = 1000.0
TARGETS = tuple(Target(Address(f"10.0.0.{i}"), 8080) for i in range(10))
CLIENTS = [f"10.9.{i // 250}.{i % 250}" for i in range(10_000)]
WEB = FrontendName(ServicePortName("default", "web", ""), Family.IPV4)


def thrice(benchmark: BenchmarkFixture, act: Callable[[], T]) -> T:
    """For what takes long."""
    result: T = benchmark.pedantic(act, rounds=3)  # type: ignore[no-untyped-call]
    return result


# The choice of an endpoint, once per connection.


def balancer(*, affinity_s: float | None = None, scheduler: Scheduler = Scheduler.ROUND_ROBIN) -> Balancer:
    made = Balancer(rng=random.Random(1))
    made.update(TARGETS, affinity_s, Balancing(scheduler, seed=7))
    return made


def test_pick(benchmark: BenchmarkFixture) -> None:
    chooser = balancer()
    assert benchmark(chooser.pick, "10.2.0.2", NOW) in TARGETS


def test_pick_at_random(benchmark: BenchmarkFixture) -> None:
    assert benchmark(balancer(scheduler=Scheduler.RANDOM).pick, "10.2.0.2", NOW) in TARGETS


def test_pick_the_least_connections(benchmark: BenchmarkFixture) -> None:
    assert benchmark(balancer(scheduler=Scheduler.LEAST_CONNECTIONS).pick, "10.2.0.2", NOW) in TARGETS


def test_pick_by_source_hash(benchmark: BenchmarkFixture) -> None:
    assert benchmark(balancer(scheduler=Scheduler.SOURCE_HASH).pick, "10.2.0.2", NOW) in TARGETS


def test_pick_by_maglev(benchmark: BenchmarkFixture) -> None:
    chooser = balancer(scheduler=Scheduler.MAGLEV)
    assert benchmark(lambda: chooser.pick("10.2.0.2", NOW, port=40_000)) in TARGETS


def test_pick_with_affinity(benchmark: BenchmarkFixture) -> None:
    chooser = balancer(affinity_s=10800)
    for client in CLIENTS:
        chooser.pick(client, NOW)
    assert benchmark(chooser.pick, CLIENTS[4321], NOW) in TARGETS


def test_pick_while_one_of_ten_is_aside(benchmark: BenchmarkFixture) -> None:
    chooser = balancer()
    chooser.failed(TARGETS[3], NOW, "refused")
    assert benchmark(chooser.pick, "10.2.0.2", NOW) != TARGETS[3]


# Session affinity between processes.


def test_tell_of_10_000_clients(benchmark: BenchmarkFixture) -> None:
    chooser = balancer(affinity_s=10800)
    for client in CLIENTS:
        chooser.pick(client, NOW)

    def tell() -> list[bytes]:
        known = pieces(WEB, chooser.bindings(NOW, since=0.0))
        return [encode(Bindings(piece)) for piece in freshest(known)]

    assert len(benchmark(tell)) * AT_ONCE >= len(CLIENTS)


def test_hear_of_10_000_clients(benchmark: BenchmarkFixture) -> None:
    bindings = [Binding(client, TARGETS[i % len(TARGETS)], 60.0) for i, client in enumerate(CLIENTS)]
    lines = [encode(Bindings(piece)) for piece in pieces(WEB, bindings)]

    def parse(line: bytes) -> Bindings:
        message = decode(line, FROM_ORPHANS)
        assert isinstance(message, Bindings)
        return message

    def hear() -> int:
        chooser = balancer(affinity_s=10800)
        for piece in merged(message.bound for message in map(parse, lines)):
            chooser.restore_bindings(piece.bindings, NOW)
        return chooser.affinity_entries

    assert benchmark(hear) == len(CLIENTS)


# From bytes to the model.


def encoded(kind: str, api_version: str, raw: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"kind": kind, "apiVersion": api_version, **raw})


def test_decode_one_slice_of_ten(benchmark: BenchmarkFixture) -> None:
    text = encoded("EndpointSlice", "discovery.k8s.io/v1", raw_slice(7, endpoints_of(7)))
    decode = msgspec.json.Decoder(api_types.EndpointSlice).decode
    found, faults = benchmark(lambda: translate.endpoint_slice(decode(text)))
    assert found is not None
    assert not faults


def test_decode_one_watch_line(benchmark: BenchmarkFixture) -> None:
    raw = raw_slice(7, endpoints_of(7))
    raw["metadata"]["resourceVersion"] = "77"
    line = msgspec.json.encode(
        {"type": "MODIFIED", "object": {"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", **raw}}
    )
    decode = msgspec.json.Decoder(api_types.EndpointSlice).decode

    def meaning() -> object:
        return translate.endpoint_slice(decode(parse_event(line).object))[0]

    assert benchmark(meaning) is not None


def test_decode_a_list_of_all_services(benchmark: BenchmarkFixture) -> None:
    body = encoded(
        "ServiceList",
        "v1",
        {"metadata": {"resourceVersion": "9"}, "items": [raw_service(i) for i in range(SERVICES)]},
    )
    decode = msgspec.json.Decoder(api_types.Service).decode
    found = thrice(benchmark, lambda: [translate.service(decode(item))[0] for item in parse_page(body).items])
    assert len(found) == SERVICES
    assert None not in found


def test_read_a_yaml_manifest_of_a_hundred_services(benchmark: BenchmarkFixture) -> None:
    text = manifest(range(100)).encode()
    reading = benchmark(read, text, Terms())
    assert len(reading.entries) == 200


# What one change costs among all the others.


def standing() -> tuple[ProxierState, Tracker]:
    """Everything listed, sent and in force."""
    tracker, reserver = Tracker([SOURCE]), FakePortReserver()
    state = ProxierState(PortSystemCalls(reserver))
    services = [service(f"s{i}", f"10.{100 + (i >> 16)}.{(i >> 8) & 255}.{i & 255}") for i in range(SERVICES)]
    tracker.replace_slices(SOURCE, [endpoint_slice(f"s{i}", "10.0.0.1 10.0.0.2") for i in range(SERVICES)])
    tracker.replace_services(SOURCE, services)
    settle(state, tracker)
    state.applied(state.rules.generation)
    assert len(state.listeners.existing) == SERVICES
    return state, tracker


def settle(state: ProxierState, tracker: Tracker) -> int:
    """Absorb and send what is new; how many messages it took."""
    sent = 0
    state.absorb(tracker.take(tracker.untaken))
    while (step := state.next_step(SERVICES)) is not None:
        sent += len(step.messages)
        state.done(step, {})
    return sent


def alternating(*values: Callable[[], None]) -> Callable[[], None]:
    turn = 0

    def act() -> None:
        nonlocal turn
        turn += 1
        values[turn % len(values)]()

    return act


def test_plan_of_one_change_of_endpoints(benchmark: BenchmarkFixture) -> None:
    state, tracker = standing()
    one_of_all = f"s{SERVICES // 2}"
    slices = [endpoint_slice(one_of_all, addresses) for addresses in ("10.0.0.1 10.0.0.3", "10.0.0.2 10.0.0.4")]
    change = alternating(*(lambda one=one: tracker.put_slice(SOURCE, one) for one in slices))

    def planned() -> int:
        change()
        return settle(state, tracker)

    assert benchmark(planned) == 1


def test_a_lost_route_among_250_000_endpoints(benchmark: BenchmarkFixture) -> None:
    """Every endpoint is compared with what has been lost."""
    targets = [Target(Address(f"10.{i >> 16}.{i >> 8 & 255}.{i & 255}"), 80) for i in range(250_000)]
    spreads = {}
    for i in range(0, len(targets), 50):
        destination = Destination(Address(f"10.100.{i >> 8 & 255}.{i & 255}"), Protocol.TCP, i >> 8)
        spreads[Traffic(destination)] = Spread("default/web", tuple(targets[i : i + 50]), ())
    node = SimpleNamespace(in_force=RuleSet(spreads=spreads), frontends_with=lambda *_: (WEB,))
    ejector = Ejector(node, node, FakeDataPlane())
    lost = [ip_network("10.1.2.3/32"), ip_network("10.2.7.0/24")]
    assert len(thrice(benchmark, lambda: ejector.endpoints_in(lost))) == 257


def test_a_relist_of_the_same(benchmark: BenchmarkFixture) -> None:
    _, tracker = standing()
    same = [endpoint_slice(f"s{i}", "10.0.0.1 10.0.0.2") for i in range(SERVICES)]
    thrice(benchmark, lambda: tracker.replace_slices(SOURCE, same))
    assert tracker.untaken == 0


def test_the_copy_of_the_rules(benchmark: BenchmarkFixture) -> None:
    state, _ = standing()
    assert len(benchmark(state.rules.ruleset).redirects) == SERVICES


def test_difference_of_the_rules_by_one_service(benchmark: BenchmarkFixture) -> None:
    state, tracker = standing()
    before = state.rules.ruleset()
    tracker.put_service(SOURCE, service("more", "10.200.0.1"))
    settle(state, tracker)
    after = state.rules.ruleset()
    have = transaction.Table.of(before)
    steps = benchmark(transaction.difference, have, after)
    assert 1 <= len(steps) <= 4


def test_one_service_more_and_one_less(benchmark: BenchmarkFixture) -> None:
    """From the changed object to the elements, as `difference_of_the_rules` would find them among all."""
    state, tracker = standing()
    rules = state.rules.ruleset()
    table = transaction.Table.of(rules)
    more = service("more", "10.200.0.1")
    change = alternating(  # The second comes first.
        lambda: tracker.remove_service(SOURCE, more.name),
        lambda: tracker.put_service(SOURCE, more),
    )

    def changed() -> int:
        change()
        settle(state, tracker)
        found = state.rules.take_change(rules)
        assert found is not None
        elements = table_change(table, rules, found)
        assert elements is not None
        elements.enter(table)
        rules.enter(found)
        state.applied(state.rules.generation)
        settle(state, tracker)
        return len(elements.elements)

    assert benchmark(changed) >= 2


def test_creation_of_all_rules(benchmark: BenchmarkFixture) -> None:
    state, _ = standing()
    rules: RuleSet = state.rules.ruleset()
    assert thrice(benchmark, lambda: transaction.difference(transaction.EMPTY, rules))
