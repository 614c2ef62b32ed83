"""What was seen and what is asked for -> the `Status`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Final

from kubeproxy.dataplane.interface import Counters, EjectedEndpoint
from kubeproxy.model import NODE_PORTS, Destination, Endpoint, Target
from kubeproxy.model.version import __version__
from kubeproxy.observability.status.document import (
    EndpointStatus,
    FrontendStatus,
    Incident,
    NetfilterStatus,
    ServiceStatus,
    SourceStatus,
    Standing,
    Status,
    StatusCounters,
    Totals,
)
from kubeproxy.observability.status.history import History
from kubeproxy.observability.status.index import Index, Query, Row, frontends_of
from kubeproxy.observability.status.observation import Candidates, Observation
from kubeproxy.observability.status.wording import discreet
from kubeproxy.observability.views import FrontendView

REMARKS: Final = 20
"""Faults of manifests told one by one."""
_COUNTED: Final = tuple(field.name for field in fields(StatusCounters))


def status(
    index: Index, query: Query, *, matched: int, history: History, recent_warnings: Sequence[Incident], every_s: float
) -> Status:
    """All but the Services, which `service` tells of one by one."""
    sight = index.sight
    complaints = tuple(_complaints(sight))
    return Status(
        version=__version__,
        node=sight.node,
        pid=sight.pid,
        now=sight.wall,
        began=sight.began,
        healthy=not complaints,
        complaints=complaints,
        draining=sight.health.draining,
        netfilter=_netfilter(sight),
        sources=tuple(_sources(sight)),
        workers=tuple(sight.worker_status),
        restarts=sight.restarts,
        totals=Totals(
            services=len(index.rows),
            by_state=index.by_state,
            ejected_endpoints=index.ejected_endpoints,
            traffic=index.traffic,
            rates=history.rates(None),
            trend=history.trend(None),
        ),
        recent_warnings=tuple(recent_warnings),
        every_s=every_s,
        matched=matched,
        offset=query.offset,
        services=(),
    )


def service(row: Row, sight: Observation, *, port: str, history: History, candidates: Candidates) -> ServiceStatus:
    """One Service; `port`: of this service port only (empty: of all)."""
    return ServiceStatus(
        namespace=row.name.namespace,
        name=row.name.name,
        state=row.state,
        source=sight.proxier.owners.get(row.name, ""),
        problems=tuple(sight.proxier.problems.get(row.name, ())),
        traffic=row.traffic,
        rates=history.rates(row.name),
        trend=history.trend(row.name),
        frontends=tuple(
            frontend(
                view,
                counters=sight.counters.get(view.frontend.name) or Counters(),
                ejected=sight.ejected.get(view.frontend.name, ()),
                candidates=candidates,
            )
            for view in frontends_of(row, port)
        ),
    )


def frontend(
    view: FrontendView, *, counters: Counters, ejected: Sequence[EjectedEndpoint], candidates: Candidates
) -> FrontendStatus:
    """One frontend, with everybody who listens for its service port."""
    wanted = view.frontend
    name = wanted.name
    return FrontendStatus(
        port=name.service_port.port,
        protocol=wanted.protocol,
        family=int(name.family),
        scope=name.scope,
        proxy_port=view.proxy_port,
        addresses=tuple(map(words_of, sorted(wanted.destinations))),
        own_addresses=tuple(map(words_of, sorted(wanted.own_destinations))),
        source_ranges=tuple(sorted(wanted.source_ranges)),
        affinity_s=wanted.affinity_timeout_s,
        when_empty=wanted.when_empty,
        counters=StatusCounters(**{field: getattr(counters, field) for field in _COUNTED}),
        endpoints=endpoints(wanted.endpoints, candidates(name), ejected, preserved=wanted.preserve),
    )


def words_of(destination: Destination) -> str:
    """``10.96.0.1:80``, ``node port 30080``."""
    if destination.address in NODE_PORTS.values():
        return f"node port {destination.port}"
    return str(Target(destination.address, destination.port))


def endpoints(
    chosen: Iterable[Target],
    everybody: Mapping[Target, Endpoint],
    ejected: Sequence[EjectedEndpoint],
    *,
    preserved: frozenset[Target],
) -> tuple[EndpointStatus, ...]:
    """Those who are chosen, the ill ones first; then those who are not, and why."""
    by_target: dict[Target, list[EjectedEndpoint]] = {}
    for one in ejected:
        by_target.setdefault(one.target, []).append(one)
    used = [_used(target, everybody.get(target), by_target.get(target), target in preserved) for target in chosen]
    used.sort(key=lambda endpoint: _FIRST.get(endpoint.standing, 9))
    named = {endpoint.address for endpoint in used}
    others = [_unused(target, endpoint) for target, endpoint in sorted(everybody.items()) if str(target) not in named]
    return (*used, *others)


_FIRST: Final = {Standing.EJECTED: 0, Standing.PROBING: 1, Standing.TERMINATING: 2, Standing.READY: 3}


def _used(
    target: Target, endpoint: Endpoint | None, ejected: list[EjectedEndpoint] | None, preserved: bool
) -> EndpointStatus:
    node, zone = (endpoint.node, endpoint.zone) if endpoint is not None else ("", "")
    if ejected:
        worst = max(ejected, key=lambda one: one.retry_in_s)
        return EndpointStatus(
            address=str(target),
            standing=Standing.EJECTED if worst.retry_in_s > 0 else Standing.PROBING,
            used=True,
            reason=worst.reason,
            failures=max(one.failures for one in ejected),
            retry_in_s=round(worst.retry_in_s, 1),
            workers=tuple(sorted({one.worker for one in ejected})),
            node=node,
            zone=zone,
            preserved=preserved,
        )
    leaving = endpoint is not None and endpoint.terminating and not endpoint.ready
    standing = Standing.TERMINATING if leaving else Standing.READY
    return EndpointStatus(address=str(target), standing=standing, used=True, node=node, zone=zone, preserved=preserved)


def _unused(target: Target, endpoint: Endpoint) -> EndpointStatus:
    if endpoint.ready:
        standing = Standing.ELSEWHERE
    else:
        standing = Standing.TERMINATING if endpoint.terminating else Standing.UNREADY
    return EndpointStatus(address=str(target), standing=standing, used=False, node=endpoint.node, zone=endpoint.zone)


def _complaints(sight: Observation) -> Iterator[str]:
    health = sight.health
    if sight.problem:
        yield f"data plane: {sight.problem}"
    if sight.proxier.failing:
        yield discreet(sight.proxier.failing)
    if health.draining:
        yield "draining: the process is about to end"
    elif not health.on_time:
        yield "a change has waited for longer than twice the sync period"
    elif health.last_updated is None and not sight.proxier.failing:
        yield "starting: not everything is in effect for the first time"
    if health.exhausted:
        yield health.exhausted
    if not health.node_exists:
        yield (
            f"the cluster has no Node {sight.node}, so load balancers are told to go elsewhere; if the node is known by"
            " another name, give it by --hostname-override"
        )
    elif not health.node_eligible:
        yield "the node is being deleted, or about to be; load balancers are told to go elsewhere"


def _netfilter(sight: Observation) -> NetfilterStatus:
    proxier = sight.proxier

    def ago(moment: float | None) -> float | None:
        return None if moment is None else round(max(0.0, sight.now - moment), 3)

    return NetfilterStatus(
        adapter=proxier.netfilter,
        failing=None if proxier.failing is None else discreet(proxier.failing),
        failures=proxier.failures,
        programmed_ago_s=ago(proxier.programmed_at),
        pending_s=ago(proxier.pending_since),
        changes_pending=proxier.service_changes_pending + proxier.endpoint_changes_pending,
    )


def _sources(sight: Observation) -> Iterator[SourceStatus]:
    told = set()
    for watch in sight.watches:
        told.add("kubernetes")
        failures = tuple(f"{cause}: failed {times} times" for cause, times in sorted(watch.failures.items()) if times)
        listed = watch.lists > 0
        if watch.left_out:
            failures = (f"{watch.left_out} objects are left out: too many to keep", *failures)
        yield SourceStatus(
            f"kubernetes {watch.resource}",
            listed,
            round(watch.behind_s, 1),
            watch.last_event,
            watch.faulty,
            failures,
            watch.left_out,
        )
    if sight.manifests is not None:
        told.add("manifests")
        problems = sight.manifests.problems
        yield SourceStatus(
            "manifests",
            sight.manifests.loaded,
            0.0,
            sight.manifests.last_change or None,
            sum(not problem.skipped for problem in problems),
            tuple(discreet(str(problem)) for problem in problems[:REMARKS]),
        )
    for name, listed in sight.proxier.sources.items():
        if name not in told:
            yield SourceStatus(name, listed, 0.0, None, 0)
