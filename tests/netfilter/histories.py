"""Random histories of Services and of this node, and of what goes wrong, as values that can be played again."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from kubeproxy.model import (
    Address,
    Endpoint,
    EndpointPort,
    EndpointSlice,
    Family,
    Protocol,
    Scheduler,
    Service,
    ServiceName,
    ServicePort,
    SliceName,
    Target,
    TrafficPolicy,
    family_of,
)
from kubeproxy.model.drain_request import DrainRequest, DrainRequests, Want
from kubeproxy.netfilter.ruleset import DirectLink
from kubeproxy.proxier import NodeFacts, Periods, PortRange, Preserve, ProxierSettings, Tracker
from kubeproxy.proxier.data_path_choice import DataPathPolicy, Ejected, Wanted
from kubeproxy.proxier.local_pods import Leaving

T = TypeVar("T")
SOURCE = "kubernetes"
OWN, OTHER, OWN6 = Address("192.0.2.1"), Address("192.0.2.2"), Address("2001:db8::9")
"""Addresses of this node."""
LANDING = Address("192.0.2.9")
"""An address to which clients are redirected, and that Services may have, although this node does not know it."""
NAMES = [ServiceName("default", text) for text in "abcd"] + [ServiceName("other", text) for text in "ef"]
CLUSTER_IPS = {
    Family.IPV4: [Address(f"10.96.0.{number}") for number in range(1, 6)],
    Family.IPV6: [Address(f"fd96::{number}") for number in range(1, 4)],
}
ENDPOINTS = [
    *(Address(f"10.0.0.{number}") for number in range(1, 7)),
    *(Address(f"fd01::{number}") for number in range(1, 5)),
]
NODES = {address: ("us", "us", "them", "us", "")[number % 5] for number, address in enumerate(ENDPOINTS)}
"""The node of each endpoint."""
PROXY_PORTS, FEW_PORTS = PortRange(34000, 34063), PortRange(34000, 34004)
RANGES = [
    *[()] * 3,
    ("192.0.2.0/24",),
    ("192.0.2.0/24", "2001:db8::/32"),
    ("10.0.0.0/8", "10.1.0.0/16", "2001:db8::/32"),
]
SLOW_START_S = 10

Step = tuple[Any, ...]
"""The name of a method, without its underscore, and its arguments."""


@dataclass(frozen=True)
class Batch:
    """Changes that the proxier gets at once."""

    steps: tuple[Step, ...]
    """The changes, by methods of `World`."""
    mishap: Step = ("nothing",)
    """What goes wrong meanwhile, by a method of `Play`."""


@dataclass
class World:
    """The objects of the source, and the settings of the node."""

    settings: ProxierSettings
    services: dict[ServiceName, Service] = field(default_factory=dict)
    slices: dict[ServiceName, tuple[EndpointSlice, ...]] = field(default_factory=dict)
    ejected: Ejected = field(default_factory=dict)

    def list(self, tracker: Tracker) -> None:
        """Give a tracker all objects at once."""
        tracker.replace_services(SOURCE, [self.services[name] for name in sorted(self.services)])
        tracker.replace_slices(SOURCE, [it for name in sorted(self.slices) for it in self.slices[name]])

    def take(self, step: Step, tracker: Tracker) -> None:
        """Make a change, and tell a tracker of it."""
        kind, *arguments = step
        getattr(self, f"_{kind}")(tracker, *arguments)

    def _service(self, tracker: Tracker, service: Service) -> None:
        self.services[service.name] = service
        tracker.put_service(SOURCE, service)

    def _other(self, tracker: Tracker, name: ServiceName, fields: dict[str, Any]) -> None:
        """Change some fields of a Service."""
        if name in self.services:
            self._service(tracker, replace(self.services[name], **fields))

    def _gone(self, tracker: Tracker, name: ServiceName, with_slices: bool) -> None:
        self.services.pop(name, None)
        tracker.remove_service(SOURCE, name)
        if with_slices:
            self._slices(tracker, name, ())

    def _slices(self, tracker: Tracker, name: ServiceName, slices: tuple[EndpointSlice, ...]) -> None:
        for old in {it.name for it in self.slices.pop(name, ())} - {it.name for it in slices}:
            tracker.remove_slice(SOURCE, old)
        if slices:
            self.slices[name] = slices
        for it in slices:
            tracker.put_slice(SOURCE, it)

    def _again(self, tracker: Tracker, name: ServiceName) -> None:
        """Delete a Service and create it again."""
        if (service := self.services.get(name)) is not None:
            self._gone(tracker, name, False)
            self._service(tracker, service)

    def _renamed(self, tracker: Tracker, old: ServiceName, new: ServiceName) -> None:
        """Replace a Service by one of another name, with all its addresses and endpoints."""
        service, slices = self.services.get(old), self.slices.get(old, ())
        if service is not None and old != new:
            self._gone(tracker, old, True)
            self._service(tracker, replace(service, name=new))
            self._slices(
                tracker, new, tuple(replace(it, service=new, name=_slice_name(new, it.family)) for it in slices)
            )

    def _exchanged(self, tracker: Tracker, one: ServiceName, two: ServiceName, what: str) -> None:
        """Exchange the addresses or the node ports of two Services."""
        first, second = self.services.get(one), self.services.get(two)
        if first is None or second is None:
            return
        for service, other in ((first, second), (second, first)):
            numbers = [port.node_port for port in other.ports] + [0] * len(service.ports)
            ports = tuple(replace(port, node_port=number) for port, number in zip(service.ports, numbers, strict=False))
            addresses = {"cluster_ips": other.cluster_ips, "external_ips": other.external_ips}
            self._other(tracker, service.name, addresses if what == "addresses" else {"ports": ports})

    def _leaving(self, tracker: Tracker, addresses: Iterable[Address]) -> None:
        """Have pods run their preStop hooks. Only those of this node do so."""
        here = (it for it in addresses if NODES[it] == self.settings.facts.name)
        self.settings = replace(self.settings, leaving=frozenset(Leaving(it, f"pod-{it}") for it in here))

    def _set(self, tracker: Tracker, fields: dict[str, Any]) -> None:
        self.settings = replace(self.settings, **fields)

    def _facts(self, tracker: Tracker, fields: dict[str, Any]) -> None:
        self._set(tracker, {"facts": replace(self.settings.facts, **fields), "leaving": frozenset()})

    def _path(self, tracker: Tracker, fields: dict[str, Any]) -> None:
        self._set(tracker, {"data_path": replace(self.settings.data_path, **fields)})

    def _eject(self, tracker: Tracker, ejected: Ejected) -> None:
        self.ejected = ejected


def _slice_name(service: ServiceName, family: Family) -> SliceName:
    return SliceName(service.namespace, f"{service.name}-{family.value}")


class Maker:
    """Makes histories from random numbers."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._pick = self._random.choice

    def settings(self) -> ProxierSettings:
        """Return the settings at the start of a history."""
        pick = self._pick
        return ProxierSettings(
            facts=NodeFacts(
                name="us",
                zone="z1",
                node_addresses=frozenset({OWN, OWN6}),
                own_addresses=frozenset({OWN, OTHER, OWN6}),
                internal_sources=frozenset(pick([(), ("10.0.0.0/16",), ("10.0.0.0/16", "fd01::/64")])),
                uplinks=frozenset(pick([(), ("eth0",)])),
                direct_links=frozenset(pick([(), (DirectLink(1, "lo", "192.0.2.0/24"),)])),
                forwarding=frozenset(Family),
                preserve=pick(list(Preserve)),
            ),
            data_path=DataPathPolicy(
                pick([*[Wanted.KERNEL] * 3, Wanted.AUTO, Wanted.USERSPACE]),
                rescue=True,
                fallback=pick([True, True, False]),
                masquerade_all=pick([False, True]),
                slots=pick([1 << 20, 1 << 20, 24]),
            ),
            rescue_group=pick([None, 5]),
            landing=pick([{}, {Family.IPV4: LANDING}, {Family.IPV4: LANDING}]),
            guard_sockets=pick([True, False]),
            port_range=pick([*[PROXY_PORTS] * 4, FEW_PORTS]),
            own_ports=pick([1 << 30, 1 << 30, 3]),
            drain_hook_port=10258,
            drain_hook=pick([0, 34999]),
            drains=True,
            periods=Periods(min_sync_s=0.1, sync_s=1e9),
        )

    def batches(self, length: int) -> list[Batch]:
        """Return a history."""
        return [self._batch() for _ in range(length)]

    def _batch(self) -> Batch:
        count = self._pick([1, 1, 1, 2, 2, 3, 5, 8])
        steps = tuple(step for _ in range(count) for step in self._steps())
        return Batch(steps, self._mishap()) if self._random.random() < 0.15 else Batch(steps)

    def _some(self, values: Iterable[T], most: int) -> list[T]:
        known = list(values)
        return self._random.sample(known, self._random.randint(0, min(most, len(known))))

    def _steps(self) -> Sequence[Step]:
        pick, name = self._pick, self._pick(NAMES)
        kinds = {"service": 8, "gone": 5, "slices": 14, "other": 7, "again": 1, "renamed": 2, "exchanged": 2}
        kinds |= {"eject": 3, "leaving": 2, "setting": 1}
        match self._random.choices([*kinds], [*kinds.values()])[0]:
            case "service":
                with_slices = [("slices", name, self._slices(name))] if pick([True, False]) else []
                return [("service", self._service(name)), *with_slices]
            case "gone":
                return [("gone", name, pick([True, False]))]
            case "slices":
                return [("slices", name, self._slices(name))]
            case "other":
                return [("other", name, self._field())]
            case "again":
                return [("again", name)]
            case "renamed":
                return [("renamed", name, pick(NAMES))]
            case "exchanged":
                return [("exchanged", name, pick(NAMES), pick(["addresses", "node ports"]))]
            case "eject":
                ports = ((Protocol.TCP, 8080), (Protocol.UDP, 8082), (Protocol.TCP, 8081))
                some = self._some(ENDPOINTS, 4)
                return [("eject", {(way, Target(it, port)): pick([True, False]) for it in some for way, port in ports})]
            case "leaving":
                return [("leaving", tuple(self._some(ENDPOINTS, 3)))]
            case _:
                return [self._setting()]

    def _field(self) -> dict[str, Any]:
        pick = self._pick
        requests = (
            DrainRequest("rollout", f"pod-{it}", (it,), pick([Want.DRAIN, Want.READY]), since=1, until=1500.0)
            for it in self._some(ENDPOINTS, 2)
        )
        return pick(
            [
                {"affinity_timeout_s": pick([None, 60, 61, 10800])},
                {"scheduler": pick([None, *Scheduler])},
                {"internal_policy": pick(list(TrafficPolicy)), "external_policy": pick(list(TrafficPolicy))},
                {"load_balancer_source_ranges": pick(RANGES)},
                {"drain": pick([None, DrainRequests(1, tuple(requests))])},
                {"slow_start_s": pick([0, SLOW_START_S])},
            ]
        )

    def _setting(self) -> Step:
        pick = self._pick
        return pick(
            [
                ("facts", {"node_addresses": frozenset(pick([(OWN,), (OWN, OWN6), (OTHER,), ()]))}),
                ("facts", {"internal_sources": frozenset(pick([(), ("10.0.0.0/16",), ("fd01::/64",)]))}),
                ("facts", {"forwarding": frozenset(pick([tuple(Family), (Family.IPV4,), ()]))}),
                ("facts", {"zone": pick(["z1", "z2"])}),
                ("facts", {"name": pick(["us", "them"])}),
                ("path", {"wanted": pick([Wanted.KERNEL, Wanted.USERSPACE, Wanted.AUTO])}),
                ("path", {"rescue": pick([True, False])}),
                ("path", {"slots": pick([1 << 20, 40, 12])}),
                ("set", {"rescue_group": pick([None, 5])}),
                ("set", {"scheduler": pick(list(Scheduler))}),
                ("set", {"drain_hook": pick([0, 34999])}),
                ("set", {"aside": frozenset(Target(it, 8080) for it in self._some(ENDPOINTS, 2))}),
            ]
        )

    def _service(self, name: ServiceName) -> Service:
        pick, kind = self._pick, self._pick(["cluster", "cluster", "node", "balanced", "external"])
        names = self._random.sample("xyz", pick([1, 1, 2, 3]))
        numbers = self._random.sample([80, 53, 443, *range(FEW_PORTS.first, FEW_PORTS.last + 1)], len(names))
        node_ports = self._random.sample(range(30080, 30085), len(names))
        ports = tuple(
            ServicePort(port, pick([Protocol.TCP, Protocol.TCP, Protocol.UDP]), number, node_port)
            for port, number, node_port in zip(
                names, numbers, node_ports if kind in ("node", "balanced") else [0] * len(names), strict=True
            )
        )
        families = pick([[Family.IPV4], [Family.IPV4], [Family.IPV6], list(Family)])
        outside = [OWN, OTHER, LANDING, Address("198.51.100.1"), Address("2001:db8::1")]
        balanced = [OTHER, Address("203.0.113.1"), Address("2001:db8::2")]
        return Service(
            name,
            tuple(pick(CLUSTER_IPS[family]) for family in families),
            ports,
            affinity_timeout_s=pick([*[None] * 4, 60, 61]),
            scheduler=pick([*[None] * 6, *Scheduler]),
            internal_policy=pick([*[TrafficPolicy.CLUSTER] * 3, TrafficPolicy.LOCAL]),
            external_policy=pick(list(TrafficPolicy)),
            external_ips=tuple(self._some(outside, 2)) if kind == "external" else (),
            load_balancer_ips=tuple(self._some(balanced, 2)) if kind == "balanced" else (),
            load_balancer_source_ranges=pick(RANGES) if kind == "balanced" else (),
            health_check_node_port=pick([0, 32000]) if kind == "balanced" else 0,
            created=1 + NAMES.index(name) * 7 % 5,
        )

    def _slices(self, name: ServiceName) -> tuple[EndpointSlice, ...]:
        pick = self._pick
        ready, last, gone = (True, True, False), (False, True, True), (False, False, False)
        conditions, weights = pick([[ready], [ready, last], [last], [gone]]), pick([[1], [1], [1], [1, 2, 3]])
        hints = pick([[""], [""], ["z1", "z2"]])
        found = [
            Endpoint(
                address,
                *pick(conditions),
                node=NODES[address],
                zone_hints=frozenset(filter(None, [pick(hints)])),
                pod=f"pod-{address}",
                weight=pick(weights),
            )
            for address in self._some(ENDPOINTS, 6)
        ]
        numbers = {"x": pick([8080, 8080, 8081, 10258]), "y": 8081, "z": 8080}
        ports = [EndpointPort(port, Protocol.TCP, number) for port, number in numbers.items()]
        ports += [EndpointPort(port, Protocol.UDP, 8082) for port in numbers]
        return tuple(
            EndpointSlice(
                _slice_name(name, family),
                name,
                family,
                tuple(ports),
                tuple(it for it in found if family_of(it.address) is family),
            )
            for family in pick([list(Family), list(Family), [Family.IPV4]])
        )

    def _mishap(self) -> Step:
        pick, when = self._pick, self._pick(["before", "within", "after"])
        return pick(
            [
                ("refused", pick([0, 0, 1]), pick([1, 1, 2, 3])),
                ("unanswered", pick([0, 0, 1])),
                ("too_long", pick([0, 1])),
                ("interrupted", self._random.randint(0, 12)),
                ("restarted",),
                ("broken",),
                ("unopened", pick(NAMES)),
                (
                    "foreign",
                    when,
                    f"flush map inet kubeproxy {pick(['redirects4', 'node_ports4', 'spreads4', 'tcp_slots4'])}",
                ),
                ("foreign", when, f"flush set inet kubeproxy {pick(['guarded', 'refused', 'restricted4'])}"),
                ("foreign", when, "flush chain inet kubeproxy prerouting"),
                ("foreign", when, "delete table inet kubeproxy"),
                ("foreign", when, "add element inet kubeproxy redirects4 { 10.96.0.77 . tcp . 80 : 7777 }"),
            ]
        )
