"""Explains a trace in words: what happens to the packet step by step, and why."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence

from kubeproxy.daemon.trace_client import Client
from kubeproxy.dataplane.interface import BalancePreview
from kubeproxy.model import (
    NODE_PORTS,
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
from kubeproxy.model.maglev import place_of, table_of
from kubeproxy.model.snapshot import Snapshot
from kubeproxy.netfilter.cidr import is_loopback
from kubeproxy.netfilter.packet_simulation import Fate, Trace, Why
from kubeproxy.netfilter.ruleset import RuleSet
from kubeproxy.observability.status.trace_report import TraceRequest, describe

_NEIGHBOURS = 5
"""If a port is not served, how many other ports of the same address to name."""
_CHOICE = {
    Scheduler.ROUND_ROBIN: "in turn; each worker has a turn of its own, and the kernel chooses the worker",
    Scheduler.RANDOM: "drawn at random for each client; another draw follows these",
    Scheduler.LEAST_CONNECTIONS: "the one with the fewest open connections over all workers, in turn among equals",
    Scheduler.SOURCE_HASH: "by a hash of the client's address, the same at every node",
    Scheduler.MAGLEV: "by a hash of the client's address and port, the same at every node",
}
"""How each scheduler chooses an endpoint, in words."""


def steps(
    asked: TraceRequest,
    client: Client,
    rules: RuleSet,
    met: Trace,
    frontend: Frontend | None,
    service: Service | None,
    snapshot: Snapshot,
    any_in_force: bool,
) -> Iterator[str]:
    """Yield the steps of the packet up to the choice of an endpoint, one line each."""
    if not any_in_force:
        yield "no rules are in force yet: the daemon starts, or could not reach the packet filter"
    elif snapshot.failing is not None:
        yield f"the rules are those of the last success; since then: {snapshot.failing}"
    elif snapshot.pending_since is not None:
        yield "a change is on its way that these rules do not have yet"
    if snapshot.netfilter == "none":
        yield "netfilter is none: nothing redirects packets to the proxy ports; what follows is what the rules would do"
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


def dialing(frontend: Frontend, outlooks: Sequence[BalancePreview], asked: TraceRequest) -> Iterator[str]:
    """Yield how the userspace path chooses among the endpoints, and which ones it would dial for this client."""
    weights = " by weight" if frontend.balancing.weights else ""
    yield f"{_count(frontend)}, {_CHOICE[frontend.balancing.scheduler]}{weights}"
    yield from _place(frontend, asked)
    if frontend.affinity_timeout_s is None:
        return
    bound = sorted({str(one.bound) for one in outlooks if one.bound is not None})
    bond = f"it is bound to {', '.join(bound)}" if bound else "it is bound to none yet"
    yield f"the client stays with its endpoint for {frontend.affinity_timeout_s} s (affinity by address); {bond}"


def reason(
    asked: TraceRequest,
    met: Trace,
    frontend: Frontend | None,
    rules: RuleSet,
    snapshot: Snapshot,
    services_degraded: Sequence[Service],
) -> str:
    """Return the reason for the outcome, in one sentence."""
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
    if frontend is not None and frontend.endpoints:  # The frontend has a refusal in the rules instead of a listener.
        if is_loopback(asked.to.address):
            return f"{name} has {_count(frontend)}, but no packet from a loopback address leaves this host"
        standing = next((it for it in snapshot.frontends if it.frontend.name == frontend.name), None)
        why = "its rules are not in force yet" if standing is None else standing.data_path_reason
        return f"{name} has {_count(frontend)}, but the kernel cannot forward its clients: {why}"
    no_endpoint = "no endpoint on this node" if frontend and frontend.when_empty is Verdict.DROP else "no endpoints"
    return f"{name} has {no_endpoint}"


def _missing(to: Destination, rules: RuleSet, snapshot: Snapshot, services_degraded: Sequence[Service]) -> str:
    """Return why no rule matches the packet, and which rule comes closest."""
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
        shown = ", ".join(f"{key.port}/{key.protocol}" for key in served[:_NEIGHBOURS])
        more = f" and {len(served) - _NEIGHBOURS} more" if len(served) > _NEIGHBOURS else ""
        return f"{to.address} is a service address, but serves only {shown}{more}"
    return "no Service has this address; the kernel routes the packet as if this proxy were not there"


def _asks_for(service: Service, to: Destination, rules: RuleSet) -> bool:
    """Return whether a destination would belong to this Service if everything in the Service were served."""
    ports = [port for port in service.ports if port.protocol is to.protocol]
    if to.address in (*service.cluster_ips, *service.external_ips, *service.load_balancer_ips):
        return any(port.port == to.port for port in ports)
    return to.address in rules.node_addresses and any(port.node_port == to.port for port in ports)


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


def _place(frontend: Frontend, asked: TraceRequest) -> Iterator[str]:
    """Yield which endpoint a hash selects for a client, and why."""
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


def _count(frontend: Frontend) -> str:
    count = len(frontend.endpoints)
    return f"{count} endpoint{'' if count == 1 else 's'}"
