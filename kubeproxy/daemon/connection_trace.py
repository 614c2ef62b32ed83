"""Traces a connection that does not exist yet, first through the rules in force and then through the data plane.

`kubeproxy.netfilter.packet_simulation` decides, and the tests compare it with real kernels. This module puts the
decision into words.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

import structlog

from kubeproxy.daemon.kernel_path_trace import forwarding
from kubeproxy.dataplane.interface import BalancePreview, Counters, DataPlane
from kubeproxy.dataplane.sockets.routes import Way, way_to
from kubeproxy.model import (
    NODE_PORTS,
    Address,
    Destination,
    Frontend,
    Origin,
    Scheduler,
    Scope,
    Service,
    Target,
    Traffic,
    Verdict,
    family_of,
)
from kubeproxy.model.errors import KernelError
from kubeproxy.model.maglev import place_of, table_of
from kubeproxy.model.rescue import RescueState
from kubeproxy.model.snapshot import FrontendState as Standing
from kubeproxy.model.snapshot import Snapshot
from kubeproxy.netfilter.cidr import contains, is_loopback
from kubeproxy.netfilter.nftables.affinity_lookup import Bond, bond_of
from kubeproxy.netfilter.packet_simulation import Fate, Trace, Why, trace
from kubeproxy.netfilter.ruleset import RuleSet, Spread
from kubeproxy.observability.status import build
from kubeproxy.observability.status import text as status_text
from kubeproxy.observability.status.document import FrontendStatus
from kubeproxy.observability.status.trace_report import Outcome, TraceReport, TraceRequest, WorkerPreview, describe
from kubeproxy.proxier.node import NodeFacts
from kubeproxy.proxier.proxier import Proxier

log = structlog.get_logger(__name__)

_OUTCOMES = {
    Fate.PASSED: Outcome.PASSED,
    Fate.PROXIED: Outcome.PROXIED,
    Fate.FORWARDED: Outcome.FORWARDED,
    Fate.REFUSED: Outcome.REFUSED,
    Fate.DROPPED: Outcome.DROPPED,
}
NEIGHBOURS = 5
"""How many other ports of an address a trace names if the port is not served."""


@dataclass(frozen=True, slots=True)
class Client:
    """The client, as netfilter sees it."""

    address: Address | None
    """The client's address, or None if the client is this node and its address is not known."""
    is_this_node: bool
    is_pod: bool

    @property
    def words(self) -> str:
        """Return the client in words: ``this node``, ``a pod`` or ``another host``."""
        return "this node" if self.is_this_node else "a pod" if self.is_pod else "another host"

    @property
    def hook(self) -> str:
        """Return the first hook that the client's packet meets."""
        return "output" if self.is_this_node else "prerouting"


def client_of(
    asked: TraceRequest, rules: RuleSet, facts: NodeFacts, find_way: Callable[[Address], Way | None]
) -> Client:
    """Return the client that a request is about. It is this node if the request names no address.

    A packet of this node comes from the destination address if that address is the node's own, and otherwise from its
    landing address.
    """
    if asked.source is None:
        here = asked.to.address if facts.is_own(asked.to.address) else rules.landing.get(family_of(asked.to.address))
        return Client(here, True, False)
    own = facts.is_own(asked.source)
    is_pod = not own and contains(rules.internal_sources, asked.source)
    # The trace does not know the interface on which the packet arrives, but pods of other nodes are behind a gateway.
    if is_pod and rules.uplinks and (way := find_way(asked.source)) is not None:
        is_pod = way.direct
    return Client(asked.source, own, is_pod)


def decide(asked: TraceRequest, client: Client, rules: RuleSet, facts: NodeFacts) -> Trace:
    """Return what the kernel does with the first packet."""
    return trace(
        rules,
        asked.to,
        source=client.address,
        from_this_host=client.is_this_node,
        for_this_host=facts.is_own(asked.to.address),
        by_uplink=not client.is_pod,
    )


class Tracer:
    """Traces connections in a running daemon, and changes nothing."""

    def __init__(
        self,
        *,
        proxier: Proxier,
        data_plane: DataPlane,
        facts: Callable[[], NodeFacts],
        rescue: Callable[[], RescueState | None] = lambda: None,
        find_bond: Callable[[Address, Spread], Awaitable[Bond | None]] = bond_of,
        find_way: Callable[[Address], Way | None] = way_to,
    ) -> None:
        """`find_bond` asks the kernel which endpoint session affinity has for a client of the kernel path. `find_way`
        asks it how it reaches an address."""
        self._find_way = find_way
        self._proxier = proxier
        self._rescue = rescue
        self._find_bond = find_bond
        self._data_plane = data_plane
        self._facts = facts

    async def __call__(self, asked: TraceRequest) -> TraceReport:
        """Trace this connection as it would go now."""
        snapshot, facts = self._proxier.view.snapshot(), self._facts()
        in_force = self._proxier.kernel.in_force
        rules = in_force or RuleSet()
        client = client_of(asked, rules, facts, self._find_way)
        met = decide(asked, client, rules, facts)
        standing = _standing(snapshot, asked.to, met)
        frontend = None if standing is None else standing.frontend
        service = None if frontend is None else self._proxier.view.service(frontend.name.service_port.service)
        outlooks: Sequence[BalancePreview] = ()
        listener: FrontendStatus | None = None
        if standing is not None and frontend is not None:
            if met.fate is Fate.PROXIED:
                outlooks = await self._data_plane.previews(
                    frontend.name, client.address or asked.to.address, asked.source_port
                )
            listener = await self._listener(standing)
        steps = list(_steps(asked, client, rules, met, frontend, service, snapshot, in_force is not None))
        if met.fate is Fate.PROXIED and frontend is not None:
            if standing is not None and standing.data_path_reason not in ("", status_text.NOT_ASKED):
                steps.append(f"it takes the userspace path: {standing.data_path_reason}")
            steps += _dialing(frontend, outlooks, asked)
        elif met.spread is not None:
            shown = {} if listener is None else {endpoint.address: endpoint for endpoint in listener.endpoints}
            steps += forwarding(
                met.spread,
                met,
                rules,
                shown,
                await self._bond(client, met.spread),
                client=client.address,
                client_port=asked.source_port,
            )
        return TraceReport(
            to=str(Target(asked.to.address, asked.to.port)),
            protocol=asked.to.protocol,
            source=client.address or "an address of its own",
            client=client.words,
            hook=client.hook,
            outcome=_OUTCOMES[met.fate],
            reason=_because(asked, met, frontend, rules, snapshot, self._troubled(snapshot)),
            steps=tuple(steps),
            service=None if frontend is None else str(frontend.name.service_port),
            frontend=listener,
            previews=tuple(
                WorkerPreview(one.worker, tuple(map(str, one.order)), None if one.bound is None else str(one.bound))
                for one in outlooks
            ),
        )

    async def _bond(self, client: Client, spread: Spread) -> Bond | None:
        if client.address is None:
            return None
        try:
            return await self._find_bond(client.address, spread)
        except KernelError as error:
            log.info("cannot look up affinity", reason=str(error))
            return None

    def _troubled(self, snapshot: Snapshot) -> list[Service]:
        """Return the Services with problems."""
        services = (self._proxier.view.service(name) for name in snapshot.problems)
        return [service for service in services if service is not None]

    async def _listener(self, standing: Standing) -> FrontendStatus:
        name = standing.frontend.name
        counters, ejected = await self._data_plane.counters(), await self._data_plane.ejected()
        open_by_endpoint = await self._data_plane.open_by_endpoint()
        candidates = self._proxier.view.candidates(name)
        draining = {target.address for target, endpoint in candidates.items() if endpoint.draining}
        return build.frontend(
            standing,
            counters=counters.get(name) or Counters(),
            ejected=ejected.get(name, ()),
            candidates=self._proxier.view.candidates,
            open_by_endpoint=open_by_endpoint.get(name, {}),
            open_to=await self._data_plane.open_to(draining) if draining else {},
            rescue=self._rescue(),
            kernel_flows=None,
            now=asyncio.get_running_loop().time(),
        )


def _standing(snapshot: Snapshot, to: Destination, met: Trace) -> Standing | None:
    """Return the frontend that the packet is for, even if the packet is dropped because of its source address."""
    for frontend in snapshot.frontends:
        if met.matched is not None:
            destination, origin = met.matched
            if frontend.frontend.destinations.get(destination) is not origin:
                continue
        if met.spread is not None and met.matched is not None:
            if str(frontend.frontend.name.service_port) == met.spread.service_port:
                return frontend
            continue
        if met.proxy_port is not None:
            if frontend.proxy_port == met.proxy_port and frontend.frontend.protocol is to.protocol:
                return frontend
        elif met.why is Why.SOURCE_RANGE and to in frontend.frontend.destinations:
            return frontend
    return None


def _steps(
    asked: TraceRequest,
    client: Client,
    rules: RuleSet,
    met: Trace,
    frontend: Frontend | None,
    service: Service | None,
    snapshot: Snapshot,
    any_in_force: bool,
) -> Iterator[str]:
    if not any_in_force:
        yield "no rules are in force yet: the daemon starts, or could not reach the packet filter"
    elif snapshot.failing is not None:
        yield f"the rules are those of the last success; since then: {snapshot.failing}"
    elif snapshot.pending_since is not None:
        yield "a change is on its way that these rules do not have yet"
    if snapshot.netfilter == "none":
        yield "netfilter is none: nothing leads packets to the proxy ports; what follows is what the rules would do"
    seen = "it is this node itself" if client.is_this_node else f"the client is {client.words}"
    yield f"{seen}: its packet meets the hook {client.hook}"
    if client.is_pod:
        yield "its address is in clusterCIDR: it counts as inside the cluster"
    if asked.to in rules.allowed_sources:
        ranges = ", ".join(sorted(rules.allowed_sources[asked.to]))
        verb = "is in none of" if met.why is Why.SOURCE_RANGE else "is admitted by"
        yield f"{client.address or 'the client'} {verb} the source ranges {ranges}"
    if met.spread is not None and met.matched is not None:
        yield f"{describe(asked.to)} is {_kind(met.matched.destination, service)} of {met.spread.service_port}"
        if frontend is not None and (policy := _policy(frontend, met)):
            yield policy
        return
    if met.proxy_port is None or met.matched is None:
        if met.why is Why.NO_RULE:
            yield f"no rule takes {describe(asked.to)}"
        elif met.why is Why.GUARD:
            yield f"{describe(asked.to)} is a proxy port, asked directly"
        return
    owner = "a removed Service" if frontend is None else str(frontend.name.service_port)
    kind = _kind(met.matched.destination, service)
    yield f"{describe(asked.to)} is {kind} of {owner}; it is redirected to proxy port {met.proxy_port}"
    if frontend is not None and (policy := _policy(frontend, met)):
        yield policy


def _kind(matched: Destination, service: Service | None) -> str:
    if matched.address in NODE_PORTS.values():
        return f"node port {matched.port}"
    if service is not None:
        if matched.address in service.cluster_ips:
            return "a cluster IP"
        if matched.address in service.load_balancer_ips:
            return "a load balancer address"
        if matched.address in service.external_ips:
            return "an external IP"
    return "an address"


def _policy(frontend: Frontend, met: Trace) -> str:
    if met.matched is not None and met.matched.origin is Origin.NODE:
        return "this node and its pods may use any endpoint, whatever externalTrafficPolicy says"
    match frontend.name.scope:
        case Scope.LOCAL:
            return "internalTrafficPolicy is Local: only endpoints on this node answer"
        case Scope.EXTERNAL:
            return "externalTrafficPolicy is Local: only endpoints on this node answer"
        case _:
            return ""


def _dialing(frontend: Frontend, outlooks: Sequence[BalancePreview], asked: TraceRequest) -> Iterator[str]:
    weights = " by weight" if frontend.balancing.weights else ""
    yield f"{_count(frontend)}, {_CHOICE[frontend.balancing.scheduler]}{weights}"
    yield from _place(frontend, asked)
    if frontend.affinity_timeout_s is None:
        return
    bound = sorted({str(one.bound) for one in outlooks if one.bound is not None})
    bond = f"it is bound to {', '.join(bound)}" if bound else "it is bound to none yet"
    yield f"the client stays with its endpoint for {frontend.affinity_timeout_s} s (affinity by address); {bond}"


_CHOICE = {
    Scheduler.ROUND_ROBIN: "in turn; each worker has a turn of its own, and the kernel chooses the worker",
    Scheduler.RANDOM: "drawn at random for each client; another draw follows these",
    Scheduler.LEAST_CONNECTIONS: "the one with the fewest open connections over all workers, in turn among equals",
    Scheduler.SOURCE_HASH: "by a hash of the client's address, the same at every node",
    Scheduler.MAGLEV: "by a hash of the client's address and port, the same at every node",
}


def _place(frontend: Frontend, asked: TraceRequest) -> Iterator[str]:
    """Return which endpoint a client has under a hash, and why."""
    balancing = frontend.balancing
    if not balancing.scheduler.hashes or not frontend.endpoints:
        return
    by_port = balancing.scheduler is Scheduler.MAGLEV
    if asked.source is None or (by_port and not asked.source_port):
        yield f"  which one, is decided by {'--from IP:PORT' if by_port else '--from IP'}, which is not given"
        return
    table = table_of(frontend.endpoints, balancing)
    address = ipaddress.ip_address(asked.source).packed
    place = place_of(address, asked.source_port if by_port else None, seed=balancing.seed, size=len(table))
    client = Target(asked.source, asked.source_port) if by_port else asked.source
    yield f"  {client} has place {place} of the {len(table)} in the table, which is that of {table[place]}"


def _asks_for(service: Service, to: Destination, rules: RuleSet) -> bool:
    """Return whether a destination would belong to a Service if all of that Service were served."""
    ports = [port for port in service.ports if port.protocol is to.protocol]
    if to.address in (*service.cluster_ips, *service.external_ips, *service.load_balancer_ips):
        return any(port.port == to.port for port in ports)
    return to.address in rules.node_addresses and any(port.node_port == to.port for port in ports)


def _count(frontend: Frontend) -> str:
    count = len(frontend.endpoints)
    return f"{count} endpoint{'' if count == 1 else 's'}"


def _because(
    asked: TraceRequest,
    met: Trace,
    frontend: Frontend | None,
    rules: RuleSet,
    snapshot: Snapshot,
    services_degraded: Sequence[Service],
) -> str:
    name = "" if frontend is None else str(frontend.name.service_port)
    match met.why:
        case Why.SOURCE_RANGE:
            return f"loadBalancerSourceRanges of {name or 'its Service'} do not admit this client"
        case Why.GUARD:
            return "a proxy port takes only what was redirected to it"
        case Why.NO_RULE:
            return _missing(asked.to, rules, snapshot, services_degraded)
    if met.fate in (Fate.PROXIED, Fate.FORWARDED):
        return f"{name} has {_count(frontend)}" if frontend is not None else "its Service is just being removed"
    if frontend is not None and frontend.endpoints:  # A refusal stands in place of its listener.
        if is_loopback(asked.to.address):
            return f"{name} has {_count(frontend)}, but no packet from a loopback address leaves this host"
        standing = next((it for it in snapshot.frontends if it.frontend.name == frontend.name), None)
        reason = "its rules are not in force yet" if standing is None else standing.data_path_reason
        return f"{name} has {_count(frontend)}, but the kernel cannot lead its clients: {reason}"
    no_endpoint = "no endpoint on this node" if frontend and frontend.when_empty is Verdict.DROP else "no endpoints"
    return f"{name} has {no_endpoint}"


def _missing(to: Destination, rules: RuleSet, snapshot: Snapshot, services_degraded: Sequence[Service]) -> str:
    """Return why no rule matches the packet, with the nearest rule."""
    for frontend in snapshot.frontends:
        if to in frontend.frontend.destinations:
            service = frontend.frontend.name.service_port
            problems = snapshot.problems.get(service.service, ())
            return f"it belongs to {service}, but " + ("; ".join(problems) or "the rules do not have it yet")
    for denied in services_degraded:
        if _asks_for(denied, to, rules):
            return f"it belongs to {denied.name}, but " + "; ".join(snapshot.problems[denied.name])
    if Traffic(to._replace(address=NODE_PORTS[family_of(to.address)])) in rules.redirects:
        return f"{to.port} is a node port, but {to.address} is no address of this node that takes node ports"
    served = sorted({served for served, _ in rules.redirects if served.address == to.address})
    if served:
        shown = ", ".join(f"{key.port}/{key.protocol}" for key in served[:NEIGHBOURS])
        more = f" and {len(served) - NEIGHBOURS} more" if len(served) > NEIGHBOURS else ""
        return f"{to.address} is a service address, but serves only {shown}{more}"
    return "no Service has this address; the kernel routes the packet as if this proxy were not there"
