"""Frontends beyond the number that have a proxy port of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from kubeproxy.dataplane.messages import Join, Listen, Message
from kubeproxy.model import Address, Family, FrontendName, Protocol, Service, ServicePort, ServicePortName
from kubeproxy.netfilter.packet_simulation import Fate, trace
from kubeproxy.proxier.data_path_choice import USERSPACE_ONLY, DataPathPolicy, Wanted
from kubeproxy.proxier.node import NodeFacts
from kubeproxy.proxier.port_allocator import PortRange
from kubeproxy.proxier.port_system_calls import PortSystemCalls
from kubeproxy.proxier.settings import ProxierSettings
from kubeproxy.proxier.state import ProxierState
from kubeproxy.proxier.tracker import NOTHING, Change, View
from tests.proxier.builders import destination, endpoint_slice, frontend_name, name
from tests.support.doubles.data_plane import FakePortReserver

SETTINGS = ProxierSettings(protocols=frozenset({Protocol.TCP}), facts=NodeFacts(), own_ports=1)


def _opened(messages: Sequence[Message]) -> set[FrontendName]:
    return {it.frontend for it in messages if isinstance(it, (Listen, Join))}


class Shared:
    """A proxier's state with one port for one frontend, and what it has told the data plane."""

    def __init__(self, settings: ProxierSettings = SETTINGS) -> None:
        self.reserver = FakePortReserver()
        self.protocol = next(iter(settings.protocols))
        self.state = ProxierState(PortSystemCalls(self.reserver), settings)
        self.sent: list[Message] = []
        self.known: dict[str, View] = {}
        self.refuse: dict[FrontendName, str] = {}
        """What the data plane fails at, each with its error."""
        self.put("first", "10.96.0.9")

    def put(
        self, text: str, address: str, *, endpoints: str = "10.3.0.1", port: int = 80, node_port: int = 0, **fields: Any
    ) -> None:
        """Define a Service, and carry out what follows from it."""
        ports = (ServicePort("http", self.protocol, port, node_port),)
        service = Service(name(text), (Address(address),), ports, **fields)
        slices = (endpoint_slice(text, endpoints, f"http:8080/{self.protocol}"),) if endpoints else ()
        now = View(service, slices, "kubernetes")
        self.state.absorb([Change(service.name, self.known.get(text, NOTHING), now)])
        self.known[text] = now
        self.settle()

    def remove(self, text: str) -> None:
        self.state.absorb([Change(name(text), self.known.pop(text), NOTHING)])
        self.settle()

    def settle(self, failures: Mapping[FrontendName, str] | None = None) -> None:
        """Make the moves, with a kernel that never refuses, and a data plane that refuses these."""
        failures = {**(failures or {}), **self.refuse}
        for _ in range(20):
            while (step := self.state.next_step(256)) is not None:
                self.sent += step.messages
                self.state.done(step, {key: it for key, it in failures.items() if key in _opened(step.messages)})
            self.state.rules.ruleset()  # the kernel takes it
            self.state.applied(self.state.rules.generation)
            if self.state.settled:
                return
        raise AssertionError("it finds no rest")

    def port(self, where: str) -> int | None:
        """The proxy port to which the rules lead a client."""
        return trace(self.state.rules.ruleset(), destination(where)).proxy_port

    def fate(self, where: str) -> Fate:
        return trace(self.state.rules.ruleset(), destination(where)).fate

    def joins(self, text: str) -> list[set[str]]:
        """The addresses with which a frontend has joined, each time."""
        joins = [it for it in self.sent if isinstance(it, Join) and it.frontend == frontend_name(text)]
        return [{str(to.address) for to in it.destinations} for it in joins]


@pytest.fixture
def shared() -> Shared:
    return Shared()


def test_beyond_the_number_they_share_one_port(shared: Shared) -> None:
    shared.put("a", "10.96.0.1")
    shared.put("b", "10.96.0.2")
    assert shared.port("10.96.0.1:80") == shared.port("10.96.0.2:80") != shared.port("10.96.0.9:80")
    assert [it.shared for it in shared.sent if isinstance(it, Listen)] == [False, True, True, True]
    assert shared.joins("b") == [{"10.96.0.2"}]
    shared.remove("a")
    assert shared.fate("10.96.0.1:80") is not Fate.PROXIED
    assert shared.fate("10.96.0.2:80") is Fate.PROXIED
    shared.state.close()
    assert not shared.reserver.held


def test_one_without_endpoints_refuses_and_its_neighbor_does_not(shared: Shared) -> None:
    shared.put("a", "10.96.0.1")
    shared.put("b", "10.96.0.2", endpoints="")
    assert shared.fate("10.96.0.1:80") is Fate.PROXIED
    assert shared.fate("10.96.0.2:80") is Fate.REFUSED
    shared.put("b", "10.96.0.2")
    shared.put("a", "10.96.0.1", endpoints="")
    assert shared.fate("10.96.0.1:80") is Fate.REFUSED
    assert shared.fate("10.96.0.2:80") is Fate.PROXIED
    assert not shared.state.rules.ruleset().refused & {
        it for it in shared.state.rules.ruleset().proxy_ports if it.port == shared.port("10.96.0.2:80")
    }


def test_an_address_that_two_claim_leads_to_two_ports(shared: Shared) -> None:
    shared.put("a", "10.96.0.1", external_ips=(Address("198.51.100.1"),), created=2)
    shared.put("b", "10.96.0.2", external_ips=(Address("198.51.100.1"),), created=1)
    assert shared.port("10.96.0.1:80") != shared.port("10.96.0.2:80") == shared.port("198.51.100.1:80")
    shared.remove("b")
    assert shared.port("198.51.100.1:80") == shared.port("10.96.0.1:80")


@pytest.mark.parametrize("node_port_first", [True, False])
def test_a_node_port_shares_no_port_with_an_address_of_its_number(shared: Shared, node_port_first: bool) -> None:
    """A worker would take a client of the address for one of the node port, when the address is gone."""
    if node_port_first:
        shared.put("a", "10.96.0.1", port=30080, node_port=30080)
    shared.put("b", "10.96.0.2", port=30080)
    shared.put("a", "10.96.0.1", port=30080, node_port=30080)  # its own address may have the number
    shared.put("c", "10.96.0.3", port=30081)
    assert shared.port("10.96.0.1:30080") not in (None, shared.port("10.96.0.2:30080"))
    assert shared.port("10.96.0.3:30081") in (shared.port("10.96.0.1:30080"), shared.port("10.96.0.2:30080"))
    shared.put("c", "10.96.0.3", port=30081, node_port=30082)
    shared.put("d", "10.96.0.4", port=30082)
    assert shared.port("10.96.0.4:30082") not in (None, shared.port("10.96.0.3:30081"))
    shared.remove("b")
    shared.remove("d")
    shared.put("e", "10.96.0.5", node_port=30083)
    assert len([it for it in shared.sent if isinstance(it, Listen)]) == 5  # one of its own, two shared, two that refuse


def test_an_address_is_known_before_the_rules_lead_there_and_forgotten_after(shared: Shared) -> None:
    shared.put("a", "10.96.0.1", external_ips=(Address("198.51.100.1"),))
    shared.put("a", "10.96.0.1", external_ips=(Address("198.51.100.2"),))
    assert shared.joins("a") == [
        {"10.96.0.1", "198.51.100.1"},
        {"10.96.0.1", "198.51.100.1", "198.51.100.2"},
        {"10.96.0.1", "198.51.100.2"},
    ]
    port = shared.port("10.96.0.1:80")
    shared.put("b", "10.96.0.2", external_ips=(Address("198.51.100.1"),))
    assert shared.port("198.51.100.1:80") == port  # it is free again


def test_affinity_takes_a_port_whose_clients_keep_to_a_worker(shared: Shared) -> None:
    shared.put("a", "10.96.0.1")
    before = shared.port("10.96.0.1:80")
    shared.put("a", "10.96.0.1", affinity_timeout_s=60)
    assert shared.port("10.96.0.1:80") not in (None, before)
    assert [it.pinned for it in shared.sent if isinstance(it, Listen)] == [False, False, False, False, True]


def test_what_the_data_plane_cannot_open_shares_at_the_next_attempt() -> None:
    shared = Shared()
    shared.remove("first")
    before = len(shared.sent)
    service = Service(name("big"), (Address("10.96.0.3"),), (ServicePort("http", Protocol.TCP, 80),))
    shared.state.absorb(
        [Change(service.name, NOTHING, View(service, (endpoint_slice("big", "10.3.0.1"),), "kubernetes"))]
    )
    shared.settle({frontend_name("big"): "all descriptors are in use"})
    assert len([it for it in shared.sent[before:] if isinstance(it, Listen)]) == 1  # and no hot loop
    assert shared.state.unavailable == {frontend_name("big")}
    shared.state.retry()
    shared.settle()
    assert not shared.state.unavailable
    assert shared.joins("big") == [{"10.96.0.3"}]
    shared.refuse[frontend_name("gone")] = "all descriptors are in use"
    shared.put("gone", "10.96.0.4")
    shared.remove("gone")
    shared.refuse.clear()
    before = len(shared.sent)
    shared.put("gone", "10.96.0.4")  # another Service of the name
    assert [it.shared for it in shared.sent[before:] if isinstance(it, Listen)] == [False]


def test_a_frontend_whose_clients_could_not_be_refused_is_tried_again(shared: Shared) -> None:
    refusing = FrontendName(ServicePortName("", "shared", "1"), Family.IPV4)
    shared.refuse[refusing] = "all descriptors are in use"
    shared.put("a", "10.96.0.1")
    assert shared.state.unavailable == {frontend_name("a")}
    shared.refuse.clear()
    shared.state.retry()
    shared.settle()
    assert not shared.state.unavailable
    assert [it.frontend for it in shared.sent if isinstance(it, Listen)].count(refusing) == 2
    shared.put("a", "10.96.0.1", endpoints="")
    assert shared.fate("10.96.0.1:80") is Fate.REFUSED


def test_a_new_data_path_keeps_the_port_and_those_that_refuse(shared: Shared) -> None:
    shared.put("a", "10.96.0.1")
    before = shared.port("10.96.0.1:80")
    strict = replace(SETTINGS, data_path=replace(SETTINGS.data_path, fallback=False))
    for settings, fate in ((strict, Fate.REFUSED), (SETTINGS, Fate.PROXIED)):
        shared.state.use(settings)
        shared.settle()
        assert shared.fate("10.96.0.1:80") is fate
        assert before not in {it.port for it in shared.state.rules.ruleset().refused}
    assert shared.port("10.96.0.1:80") == before


def test_an_update_that_the_data_plane_has_not_got_is_sent_again(shared: Shared) -> None:
    shared.put("a", "10.96.0.1")
    view = shared.known["a"]
    assert view.service is not None
    now = replace(view, service=replace(view.service, external_ips=(Address("198.51.100.1"),)))
    shared.state.absorb([Change(name("a"), view, now)])
    assert shared.state.next_step(256) is not None  # the data plane breaks, and takes nothing
    shared.settle()
    assert shared.joins("a")[-1] == {"10.96.0.1", "198.51.100.1"}


def test_where_no_more_ports_are_one_of_its_own_is_enough() -> None:
    """Sharing takes two ports more, to refuse and to drop."""
    state = ProxierState(
        PortSystemCalls(reserver := FakePortReserver()), replace(SETTINGS, port_range=PortRange(20_000, 20_002))
    )
    for text, address in (("a", "10.96.0.1"), ("b", "10.96.0.2")):
        service = Service(name(text), (Address(address),), (ServicePort("http", Protocol.TCP, 80),))
        state.absorb([Change(service.name, NOTHING, View(service, (), "kubernetes"))])
        while (step := state.next_step(256)) is not None:
            state.done(step, {})
    assert not state.unavailable
    assert len(reserver.held) == 2
    state.close()


def test_udp_ports_beyond_their_number_are_served_by_the_kernel_alone() -> None:
    kernel = replace(
        SETTINGS,
        protocols=frozenset({Protocol.UDP}),
        facts=NodeFacts(forwarding=frozenset(Family)),
        own_ports=0,
        data_path=DataPathPolicy(Wanted.KERNEL),
    )
    shared = Shared(kernel)
    rules = shared.state.rules
    shared.put("a", "10.96.0.1", external_ips=(Address("198.51.100.1"),))
    shared.put("b", "10.96.0.2", external_ips=(Address("198.51.100.1"),))  # nobody has to tell the two apart
    assert not [it for it in shared.sent if isinstance(it, Join)]
    assert [it.protocol for it in shared.sent if isinstance(it, Listen)] == [Protocol.UDP, Protocol.UDP]
    for where in ("10.96.0.1:80/UDP", "10.96.0.2:80/UDP", "198.51.100.1:80/UDP"):
        assert shared.fate(where) is Fate.FORWARDED
    assert not {*shared.state.unavailable, *rules.refused}
    shared.state.use(replace(kernel, data_path=USERSPACE_ONLY))
    shared.settle()
    assert shared.fate("10.96.0.2:80/UDP") is Fate.REFUSED
    assert "room for 0 UDP service ports in user space" in rules.refused[frontend_name("b")]
    shared.put("c", "10.96.0.3")
    assert "or use the kernel path" in shared.state.listeners.faults[frontend_name("c")]
    shared.state.use(kernel)
    shared.state.retry()
    shared.settle()
    assert shared.fate("10.96.0.3:80/UDP") is shared.fate("10.96.0.1:80/UDP") is Fate.FORWARDED
    shared.remove("a")
    assert shared.fate("10.96.0.1:80/UDP") is Fate.PASSED
    assert not {*shared.state.unavailable, *rules.refused}
    shared.state.close()
    assert not shared.reserver.held


def test_a_udp_port_that_the_kernel_alone_serves_gets_a_listener_when_one_closes() -> None:
    """First one that the kernel cannot serve; and no client is sent past it meanwhile."""
    settings = replace(
        SETTINGS,
        protocols=frozenset({Protocol.UDP}),
        facts=NodeFacts(forwarding=frozenset(Family)),
        data_path=DataPathPolicy(Wanted.KERNEL),
    )
    shared = Shared(settings)
    shared.put("second", "10.96.0.8")
    shared.put("a", "10.96.0.1")
    shared.put("b", "10.96.0.2", endpoints="127.0.0.1")
    shared.put("c", "10.96.0.3")
    a, c = frontend_name("a"), frontend_name("c")
    refusing = shared.state.rules.proxy_port_of(a, 0)
    assert shared.fate("10.96.0.1:80/UDP") is Fate.FORWARDED
    assert shared.fate("10.96.0.2:80/UDP") is Fate.REFUSED
    shared.remove("first")
    assert shared.fate("10.96.0.2:80/UDP") is Fate.PROXIED
    assert frontend_name("b") not in shared.state.rules.refused
    assert shared.state.rules.proxy_port_of(a, 0) == refusing
    shared.refuse[a] = "all descriptors are in use"
    shared.remove("second")
    assert shared.state.rules.proxy_port_of(a, 0) == refusing, "as before"
    assert shared.fate("10.96.0.1:80/UDP") is Fate.FORWARDED
    assert not shared.state.unavailable
    shared.refuse.clear()
    shared.remove("b")
    assert shared.state.rules.proxy_port_of(c, 0) != refusing, "each in turn"
    shared.remove("a")
    shared.put("d", "10.96.0.4")
    shared.put("e", "10.96.0.5")
    shared.state.use(replace(settings, data_path=USERSPACE_ONLY))
    shared.settle()
    assert shared.fate("10.96.0.4:80/UDP") is Fate.PROXIED
    assert shared.fate("10.96.0.5:80/UDP") is Fate.REFUSED
    shared.remove("c")
    assert shared.fate("10.96.0.5:80/UDP") is Fate.PROXIED
    shared.state.close()
    assert not shared.reserver.held
