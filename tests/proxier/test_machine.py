"""The proxier against a naive model that keeps no state but the last objects of the sources.

Sources talk at random, the kernel and the data plane refuse at random, ports run out. At every rest the promises that
hold always are checked; and once the failures end and time has passed, everything must be as if it had been computed
from scratch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NoReturn

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from kubeproxy.model import (
    Address,
    Destination,
    Endpoint,
    EndpointPort,
    EndpointSlice,
    Family,
    Frontend,
    FrontendName,
    Origin,
    Protocol,
    Service,
    ServiceName,
    ServicePort,
    ServicePortName,
    SliceName,
    Target,
    Traffic,
)
from kubeproxy.netfilter.ruleset import ProxyPort
from kubeproxy.proxier import PortRange
from kubeproxy.proxier.port_allocator import NoPortError
from tests.proxier.fake_node import Node
from tests.proxier.state_machine import NodeMachine

SOURCES = ("kubernetes", "manifests")
PORTS = PortRange(30000, 30003)
NAMES = [ServiceName("default", text) for text in ("a", "b")]
IPS = [Address("10.96.0.1"), Address("10.96.0.2"), Address("fd00::1")]
ENDPOINTS = {Family.IPV4: [Address("10.0.0.1"), Address("10.0.0.2")], Family.IPV6: [Address("fd01::1")]}

service_ports = st.lists(
    st.builds(
        ServicePort,
        st.sampled_from(["x", "y"]),
        st.sampled_from([Protocol.TCP, Protocol.TCP, Protocol.UDP, Protocol.SCTP]),
        st.sampled_from([80, 81]),
    ),
    min_size=1,
    max_size=2,
    unique_by=(lambda port: port.name, lambda port: port.port),
).map(tuple)
services = st.builds(
    Service,
    st.sampled_from(NAMES),
    st.lists(st.sampled_from(IPS), min_size=1, max_size=2, unique=True).map(tuple),
    service_ports,
    affinity_timeout_s=st.sampled_from([None, 60]),
)


@st.composite
def endpoint_slices(draw: st.DrawFn) -> EndpointSlice:
    """One of two slices of one of the Services."""
    service, family = draw(st.sampled_from(NAMES)), draw(st.sampled_from(Family))
    conditions = st.sampled_from([(True, True, False), (False, True, True), (False, False, False)])
    endpoints = tuple(
        Endpoint(address, *draw(conditions)) for address in draw(st.sets(st.sampled_from(ENDPOINTS[family])))
    )
    ports = tuple(
        EndpointPort(port, protocol, draw(st.sampled_from([8080, 8081])))
        for port, protocol in [("x", Protocol.TCP), ("y", Protocol.TCP), ("y", Protocol.UDP)]
    )
    return EndpointSlice(SliceName("default", draw(st.sampled_from(["s", "t"]))), service, family, ports, endpoints)


@dataclass
class Objects:
    """The objects of a source."""

    services: dict[ServiceName, Service] = field(default_factory=dict)
    slices: dict[SliceName, EndpointSlice] = field(default_factory=dict)
    complete: bool = False


class Model:
    """Everything computed from scratch at each call."""

    def __init__(self) -> None:
        self.objects = {source: Objects() for source in SOURCES}
        self.claims: dict[ServiceName, list[str]] = {name: [] for name in NAMES}

    def note(self) -> None:
        """The owners may have changed."""
        for name, claims in self.claims.items():
            claiming = [s for s, objects in self.objects.items() if objects.complete and name in objects.services]
            claims[:] = [s for s in claims if s in claiming] + [s for s in claiming if s not in claims]

    def frontends(self) -> dict[FrontendName, Frontend]:
        """The wanted frontends."""
        return {f.name: f for name in NAMES for f in self._frontends_of(name) if f.protocol is not Protocol.SCTP}

    def _frontends_of(self, name: ServiceName) -> list[Frontend]:
        if not self.claims[name]:
            return []
        objects = self.objects[self.claims[name][0]]
        service = objects.services[name]
        found = []
        for port in service.ports:
            for family in Family:
                ips = [ip for ip in service.cluster_ips if (":" in ip) == (family is Family.IPV6)]
                if not ips:
                    continue
                ready, leaving = set(), set()
                for endpoint_slice in objects.slices.values():
                    if (endpoint_slice.service, endpoint_slice.family) != (name, family):
                        continue
                    for endpoint_port in endpoint_slice.ports:
                        if (endpoint_port.name, endpoint_port.protocol) != (port.name, port.protocol):
                            continue
                        for endpoint in endpoint_slice.endpoints:
                            target = Target(endpoint.address, endpoint_port.port)
                            if endpoint.ready:
                                ready.add(target)
                            elif endpoint.serving and endpoint.terminating:
                                leaving.add(target)
                found.append(
                    Frontend(
                        FrontendName(ServicePortName(*name, port.name), family),
                        port.protocol,
                        {Destination(ip, port.protocol, port.port): Origin.ANYWHERE for ip in ips},
                        endpoints=tuple(sorted(ready or leaving)),
                        affinity_timeout_s=service.affinity_timeout_s,
                    )
                )
        return found


def no_shared_port(frontend: Frontend, address: Address) -> NoReturn:
    """In place of `SharedPorts.of`: which frontends share after which refusals is no part of the model. A shared port
    also takes those that refuse, and so most of the few ports here. See test_shared_ports.py."""
    raise NoPortError(f"no port for {frontend.name} at {address}")


class ProxierMachine(NodeMachine):
    """Gives the same objects to a Node and to the Model."""

    def __init__(self) -> None:
        node = Node(
            sources=SOURCES,
            port_range=PORTS,
            families=tuple(Family),
            protocols=(Protocol.TCP, Protocol.UDP),
        )
        node.proxier._state.listeners._shared_ports.of = no_shared_port  # type: ignore[method-assign]
        super().__init__(node)
        self.model = Model()
        self.stood: dict[FrontendName, tuple[Protocol, int]] = {}

    def rested(self) -> None:
        self.model.note()
        self.wait(self.node.rest())

    # Calls of the sources.

    @rule(source=st.sampled_from(SOURCES), service=services)
    def put_service(self, source: str, service: Service) -> None:
        self.model.objects[source].services[service.name] = service
        self.node.tracker.put_service(source, service)
        self.rested()

    @rule(source=st.sampled_from(SOURCES), name=st.sampled_from(NAMES))
    def remove_service(self, source: str, name: ServiceName) -> None:
        self.model.objects[source].services.pop(name, None)
        self.node.tracker.remove_service(source, name)
        self.rested()

    @rule(source=st.sampled_from(SOURCES), name=st.sampled_from(NAMES))
    def touch_service(self, source: str, name: ServiceName) -> None:
        """Deleted and created again before the next round."""
        service = self.model.objects[source].services.get(name)
        if service is not None and self.model.claims[name] in ([], [source]):
            self.node.tracker.remove_service(source, name)
            self.node.tracker.put_service(source, service)
            self.rested()

    @rule(source=st.sampled_from(SOURCES), endpoint_slice=endpoint_slices())
    def put_slice(self, source: str, endpoint_slice: EndpointSlice) -> None:
        self.model.objects[source].slices[endpoint_slice.name] = endpoint_slice
        self.node.tracker.put_slice(source, endpoint_slice)
        self.rested()

    @rule(source=st.sampled_from(SOURCES), name=st.sampled_from(["s", "t"]))
    def remove_slice(self, source: str, name: str) -> None:
        slice_name = SliceName("default", name)
        self.model.objects[source].slices.pop(slice_name, None)
        self.node.tracker.remove_slice(source, slice_name)
        self.rested()

    @initialize(source=st.sampled_from(SOURCES), both=st.booleans())
    def list_at_start(self, source: str, both: bool) -> None:
        self.start()
        for one in SOURCES if both else (source,):
            self.relist(one, [], [])

    @rule(
        source=st.sampled_from(SOURCES),
        listed=st.lists(services, max_size=3, unique_by=lambda service: service.name),
        slices=st.lists(endpoint_slices(), max_size=2, unique_by=lambda endpoint_slice: endpoint_slice.name),
    )
    def relist(self, source: str, listed: list[Service], slices: list[EndpointSlice]) -> None:
        objects = self.model.objects[source]
        objects.services = {service.name: service for service in listed}
        objects.slices = {endpoint_slice.name: endpoint_slice for endpoint_slice in slices}
        self.model.note()
        self.node.tracker.replace_services(source, listed)
        self.node.tracker.replace_slices(source, slices)
        objects.complete = True
        self.rested()

    # What goes wrong.

    @rule(times=st.integers(1, 3))
    def kernel_refuses(self, times: int) -> None:
        self.node.netfilter.fail(times=times)

    @rule()
    def rules_are_flushed(self) -> None:
        self.node.netfilter.lose()

    @rule()
    def data_plane_breaks(self) -> None:
        self.node.data_plane.broken = "no worker answers"

    @rule(name=st.sampled_from(NAMES), port=st.sampled_from(["x", "y"]), family=st.sampled_from(Family))
    def data_plane_refuses(self, name: ServiceName, port: str, family: Family) -> None:
        frontend = FrontendName(ServicePortName(*name, port), family)
        if self.node.data_plane.refuse.pop(frontend, None) is None:
            self.node.data_plane.refuse[frontend] = "not today"

    @rule(protocol=st.sampled_from([Protocol.TCP, Protocol.UDP]), port=st.integers(PORTS.first, PORTS.last))
    def others_take_a_port(self, protocol: Protocol, port: int) -> None:
        if all((protocol, port) != (held[0], held[2]) for held in self.node.reserver.held):
            self.node.reserver.taken.symmetric_difference_update({(protocol, port)})

    @rule(address=st.sampled_from([Address("192.0.2.1"), Address("192.0.2.2")]))
    def the_node_moves(self, address: Address) -> None:
        self.node.use(landing={Family.IPV4: address}, bind={})
        self.rested()

    @rule(by_s=st.sampled_from([0.3, 1.0, 5.0, 31.0]))
    def time_passes(self, by_s: float) -> None:
        self.wait(self.node.pass_time(by_s))

    # What must hold.

    @rule()
    def all_comes_right(self) -> None:
        """After the end of failures and some time, everything is as computed from scratch."""
        self.node.netfilter.failures.clear()
        self.node.data_plane.broken = None
        self.node.data_plane.refuse.clear()
        for _ in range(4):
            self.wait(self.node.pass_time(40.0))
        wanted = self.model.frontends()
        data_plane, kernel = self.node.data_plane, self.node.netfilter.kernel
        standing = data_plane.listening
        for protocol in (Protocol.TCP, Protocol.UDP):
            free = PORTS.last + 1 - PORTS.first - sum(taken[0] is protocol for taken in self.node.reserver.taken)
            asked = [frontend for frontend in wanted.values() if frontend.protocol is protocol]
            assert sum(listen.protocol is protocol for listen in standing.values()) == min(free, len(asked))
        without = wanted.keys() - standing.keys()
        problems = self.node.diary.problems
        assert all(any(str(n) in text for text in problems[n.service_port.service]) for n in without)

        claims: dict[Destination, set[int]] = {}
        for name, listen in standing.items():
            sent = data_plane.endpoints[name]
            assert listen.protocol is wanted[name].protocol
            assert (sent.endpoints, sent.affinity_timeout_s) == (
                wanted[name].endpoints,
                wanted[name].affinity_timeout_s,
            )
            for destination in wanted[name].destinations:
                claims.setdefault(destination, set()).add(listen.port)
        assert kernel.redirects.keys() == {Traffic(destination) for destination in claims}
        assert all(port in claims[destination] for (destination, _), port in kernel.redirects.items())
        ports = {name: ProxyPort(listen.protocol, listen.port) for name, listen in standing.items()}
        assert kernel.proxy_ports == set(ports.values())
        assert kernel.refused == {port for name, port in ports.items() if not wanted[name].endpoints}
        assert self.node.proxier.view.snapshot().pending_since is None

    @invariant()
    def no_client_is_misdirected(self) -> None:
        """Every redirect leads to a listener that has endpoints, or that the rules refuse."""
        kernel, data_plane = self.node.netfilter.kernel, self.node.data_plane
        standing = {ProxyPort(listen.protocol, listen.port): name for name, listen in data_plane.listening.items()}
        for (destination, _), port in kernel.redirects.items():
            proxy_port = ProxyPort(destination.protocol, port)
            assert proxy_port in standing
            assert data_plane.endpoints[standing[proxy_port]].endpoints or proxy_port in kernel.refused

    @invariant()
    def every_port_has_one_owner(self) -> None:
        held = [(protocol, port) for protocol, _, port in self.node.reserver.held]
        assert len(held) == len(set(held))
        listening = {(listen.protocol, listen.port) for listen in self.node.data_plane.listening.values()}
        assert listening <= set(held)

    @invariant()
    def listeners_stand_still(self) -> None:
        """A listener that is wanted keeps its port."""
        wanted = self.model.frontends()
        now = {name: (listen.protocol, listen.port) for name, listen in self.node.data_plane.listening.items()}
        for name, (protocol, port) in self.stood.items():
            if name in wanted and wanted[name].protocol is protocol:
                assert now[name] == (protocol, port)
        self.stood = {n: stood for n, stood in now.items() if n in wanted and wanted[n].protocol is stood[0]}


ProxierMachine.TestCase.settings = settings(
    max_examples=50,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestProxierMachine = ProxierMachine.TestCase
