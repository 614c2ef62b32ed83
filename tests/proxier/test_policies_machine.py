"""The proxier under policies, node ports and changing facts, against a computation from scratch.

Services with every kind of address come, change and go; the node changes its name, zone and addresses; other processes
take ports; the kernel refuses. At every rest, no client is led to a node port that is not held. And once the failures
end and time has passed, rules and claims are those of the Services as they are, whatever happened on the way.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from kubeproxy.model import (
    NODE_PORTS,
    Address,
    Destination,
    Endpoint,
    Family,
    Frontend,
    FrontendName,
    Origin,
    Protocol,
    Scope,
    Service,
    ServiceName,
    ServicePort,
    Traffic,
    TrafficPolicy,
    family_of,
)
from kubeproxy.netfilter.ruleset import ProxyPort
from kubeproxy.proxier import NodeFacts, Preserve
from kubeproxy.proxier.data_path_choice import DataPathPolicy, Wanted
from kubeproxy.proxier.frontends import resolve
from tests.proxier.builders import endpoint_slice
from tests.proxier.fake_node import SOURCE, Node
from tests.proxier.state_machine import NodeMachine

NAMES = [ServiceName("default", text) for text in ("a", "b")]
OWN, OTHER = Address("192.0.2.1"), Address("192.0.2.2")
PORTS = (80, 30080)
ENDPOINTS = [Address("10.0.0.1"), Address("10.0.0.2"), Address("fd01::1")]


def some(*addresses: str) -> st.SearchStrategy[tuple[Address, ...]]:
    return st.lists(st.sampled_from([Address(a) for a in addresses]), max_size=2, unique=True).map(tuple)


services = st.builds(
    Service,
    st.sampled_from(NAMES),
    some("10.96.0.1", "fd00::1"),
    st.lists(
        st.builds(
            ServicePort,
            st.sampled_from(["x", "y"]),
            st.sampled_from([Protocol.TCP, Protocol.UDP]),
            st.sampled_from(PORTS),
            st.sampled_from([0, 30080, 30081]),
        ),
        min_size=1,
        max_size=2,
        unique_by=(lambda port: port.name, lambda port: (port.protocol, port.port)),
    ).map(tuple),
    internal_policy=st.sampled_from(TrafficPolicy),
    external_policy=st.sampled_from(TrafficPolicy),
    external_ips=some(OWN, OTHER, "198.51.100.1", "2001:db8::1"),
    load_balancer_ips=some(OTHER, "203.0.113.1", "2001:db8::2"),
    load_balancer_source_ranges=st.sampled_from([(), ("192.0.2.0/24",), ("192.0.2.0/24", "2001:db8::/32")]),
    health_check_node_port=st.sampled_from([0, 32000]),
)
endpoints = st.lists(
    st.builds(
        Endpoint,
        st.sampled_from(ENDPOINTS),
        ready=st.booleans(),
        node=st.sampled_from(["us", "them"]),
        zone_hints=st.sampled_from([frozenset(), frozenset({"z1"})]),
    ),
    max_size=3,
    unique_by=lambda endpoint: endpoint.address,
)


class PoliciesMachine(NodeMachine):
    def __init__(self) -> None:
        self.facts = NodeFacts(name="us", zone="z1", own_addresses=frozenset({OWN}))
        super().__init__(Node(facts=self.facts, families=tuple(Family), protocols=(Protocol.TCP, Protocol.UDP)))
        self.services: dict[ServiceName, Service] = {}
        self.endpoints: dict[ServiceName, list[Endpoint]] = {}

    @initialize(preserve=st.sampled_from(Preserve), path=st.sampled_from([Wanted.USERSPACE, Wanted.KERNEL]))
    def choose_preserved_addresses_and_path(self, preserve: Preserve, path: Wanted) -> None:
        self.node.list_nothing()
        self.start()
        self.facts = replace(self.facts, preserve=preserve, forwarding=frozenset(Family))
        self.node.use(facts=self.facts, data_path=DataPathPolicy(path))

    @rule(service=services)
    def put_service(self, service: Service) -> None:
        self.services[service.name] = service
        self.node.tracker.put_service(SOURCE, service)
        self.wait(self.node.rest())

    @rule(name=st.sampled_from(NAMES))
    def remove_service(self, name: ServiceName) -> None:
        self.services.pop(name, None)
        self.node.tracker.remove_service(SOURCE, name)
        self.wait(self.node.rest())

    @rule(name=st.sampled_from(NAMES), found=endpoints)
    def put_endpoints(self, name: ServiceName, found: list[Endpoint]) -> None:
        self.endpoints[name] = found
        for one in self.slices(name):
            self.node.tracker.put_slice(SOURCE, one)
        self.wait(self.node.rest())

    def slices(self, name: ServiceName) -> list[Any]:
        return [
            replace(
                endpoint_slice(
                    str(name),
                    tuple(e for e in self.endpoints.get(name, ()) if family_of(e.address) is family),
                    "x:8080 y:8081 y:8082/UDP",
                    called=f"{name.name}-{family.value}",
                ),
                family=family,
            )
            for family in Family
        ]

    @rule(
        name=st.sampled_from(["us", "them", ""]),
        zone=st.sampled_from(["z1", ""]),
        own=st.frozensets(st.sampled_from([OWN, OTHER])),
    )
    def the_node_changes(self, name: str, zone: str, own: frozenset[Address]) -> None:
        self.facts = replace(self.facts, name=name, zone=zone, node_addresses=own, own_addresses=own)
        self.node.use(facts=self.facts)
        self.wait(self.node.rest())

    @rule(protocol=st.sampled_from([Protocol.TCP, Protocol.UDP]), port=st.sampled_from([80, 30080, 30081]))
    def others_take_a_port(self, protocol: Protocol, port: int) -> None:
        if all((protocol, port) != (held[0], held[2]) for held in self.node.reserver.held):
            self.node.reserver.taken ^= {(protocol, port)}

    @rule(times=st.integers(1, 3))
    def kernel_refuses(self, times: int) -> None:
        self.node.netfilter.fail(times=times)

    @rule()
    def data_plane_breaks(self) -> None:
        self.node.data_plane.broken = "no worker answers"

    @rule(by_s=st.sampled_from([0.3, 1.0, 31.0]))
    def time_passes(self, by_s: float) -> None:
        self.wait(self.node.pass_time(by_s))

    # What must hold.

    def claimed(self, service: Service, destination: Destination) -> bool:
        own = destination.address in self.facts.own_addresses and destination.address not in service.cluster_ips
        return own or destination.address in NODE_PORTS.values()

    @rule()
    def all_comes_right(self) -> None:
        self.node.netfilter.failures.clear()
        self.node.data_plane.broken = None
        for _ in range(4):
            self.wait(self.node.pass_time(40.0))
        wanted: dict[FrontendName, Frontend] = {}
        claims: set[Destination] = set()
        unavailable: dict[Destination, set[ServiceName]] = {}
        owners = self.node_port_owners()
        for service in self.services.values():
            for frontend in resolve(service, self.slices(service.name), self.facts).frontends:
                wanted[frontend.name] = frontend
                for destination in frontend.destinations:
                    if not self.claimed(service, destination):
                        continue
                    taken = (destination.protocol, destination.port) in self.node.reserver.taken
                    place = (destination.protocol, family_of(destination.address), destination.port)
                    alien = destination.address not in NODE_PORTS.values() and owners.get(
                        place, set()
                    ) - self.claimants(destination)
                    if taken or alien:
                        unavailable.setdefault(destination, set()).add(service.name)
                    else:
                        claims.add(destination)
        self.rules_are_right(wanted, unavailable)
        self.claims_are_right(claims)
        for destination, names in unavailable.items():
            for name in names:
                assert any(str(destination.port) in text for text in self.node.diary.problems[name])
        assert self.node.diary.health == {
            name: found
            for name, service in self.services.items()
            if (found := resolve(service, self.slices(name), self.facts).health)
        }
        assert self.node.proxier.view.snapshot().pending_since is None

    def node_port_owners(self) -> dict[tuple[Protocol, Family, int], set[ServiceName]]:
        """The Services that have a node port."""
        owners: dict[tuple[Protocol, Family, int], set[ServiceName]] = {}
        for service in self.services.values():
            for frontend in resolve(service, self.slices(service.name), self.facts).frontends:
                for it in frontend.destinations:
                    if it.address in NODE_PORTS.values():
                        owners.setdefault((it.protocol, family_of(it.address), it.port), set()).add(service.name)
        return owners

    def claimants(self, destination: Destination) -> set[ServiceName]:
        """The Services that claim a port of this node."""
        return {
            service.name
            for service in self.services.values()
            if self.claimed(service, destination)
            and any(
                destination in frontend.destinations
                for frontend in resolve(service, self.slices(service.name), self.facts).frontends
            )
        }

    def rules_are_right(
        self, wanted: dict[FrontendName, Frontend], unavailable: dict[Destination, set[ServiceName]]
    ) -> None:
        kernel, listening = self.node.netfilter.kernel, self.node.data_plane.listening
        assert listening.keys() == wanted.keys()
        assert kernel == self.node.proxier._state.rules.ruleset(), "as if all rules had been given to it at once"
        ports = {ProxyPort(listen.protocol, listen.port): name for name, listen in listening.items()}
        assert kernel.proxy_ports == ports.keys()
        for name, frontend in wanted.items():
            sent = self.node.data_plane.endpoints[name]
            assert (sent.endpoints, sent.preserve) == (frontend.endpoints, frontend.preserve)
        for (destination, origin), port in kernel.redirects.items():
            name = ports[ProxyPort(destination.protocol, port)]
            assert wanted[name].destinations[destination] is origin
        for destination in {d for f in wanted.values() for d in f.destinations}:
            found = {
                ports[ProxyPort(destination.protocol, kernel.redirects[traffic])].service_port
                for traffic in (Traffic(destination, origin) for origin in Origin)
                if traffic in kernel.redirects
            }
            assert len(found) == (0 if destination in unavailable else 1)
            for holder in found:
                holders = [f for f in wanted.values() if f.name.service_port == holder]
                assert (Traffic(destination, Origin.NODE) in kernel.redirects) == any(
                    f.destinations.get(destination) is Origin.NODE for f in holders
                )
                ranges = {f.source_ranges for f in holders if destination in f.ranged}
                assert kernel.allowed_sources.get(destination, frozenset()) == (ranges or {frozenset()}).pop()
        external = any(name.scope is Scope.EXTERNAL for name in wanted)
        preserving = {Preserve.NEVER: False, Preserve.EXTERNAL_LOCAL: external, Preserve.LOCAL: bool(wanted)}
        # The way back stays without such frontends: running connections may need it.
        assert kernel.transparent >= preserving[self.facts.preserve]
        assert self.facts.preserve is not Preserve.NEVER or not kernel.transparent

    def claims_are_right(self, claims: set[Destination]) -> None:
        wildcards = {d for d in claims if d.address in NODE_PORTS.values()}
        covered = {d for d in claims - wildcards if d._replace(address=NODE_PORTS[family_of(d.address)]) in wildcards}
        proxy_ports = {(listen.protocol, listen.port) for listen in self.node.data_plane.listening.values()}
        held = {
            Destination(address, protocol, port)
            for protocol, address, port in self.node.reserver.held
            if (protocol, port) not in proxy_ports
        }
        assert held == claims - covered

    @invariant()
    def no_client_is_led_to_a_node_port_that_is_not_held(self) -> None:
        for destination, _ in self.node.netfilter.kernel.redirects:
            if destination.address in NODE_PORTS.values():
                assert (destination.protocol, destination.address, destination.port) in self.node.reserver.held

    @invariant()
    def no_client_is_misdirected(self) -> None:
        kernel, data_plane = self.node.netfilter.kernel, self.node.data_plane
        standing = {ProxyPort(listen.protocol, listen.port): name for name, listen in data_plane.listening.items()}
        for (destination, _), port in kernel.redirects.items():
            proxy_port = ProxyPort(destination.protocol, port)
            empty = not data_plane.endpoints[standing[proxy_port]].endpoints
            assert not empty or proxy_port in kernel.refused | kernel.dropped

    @invariant()
    def no_endpoint_is_dialed_as_a_client_before_its_answers_find_back(self) -> None:
        kernel, data_plane = self.node.netfilter.kernel, self.node.data_plane
        if not kernel.transparent:
            reached = {ProxyPort(d.protocol, port) for (d, _), port in kernel.redirects.items()}
            for name, sent in data_plane.endpoints.items():
                listen = data_plane.listening[name]
                empty = kernel.refused | kernel.dropped
                if sent.preserve and ProxyPort(listen.protocol, listen.port) in reached - empty:
                    raise AssertionError(f"{name} dials as its clients, and the kernel does not lead the answers back")


PoliciesMachine.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestPoliciesMachine = PoliciesMachine.TestCase
