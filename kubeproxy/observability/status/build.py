"""Builds the `Status` from an `Observation` and a `Query`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import structs

from kubeproxy.dataplane.interface import Counters, EjectedEndpoint
from kubeproxy.model import NODE_PORTS, Destination, Endpoint, Target
from kubeproxy.model.version import __version__
from kubeproxy.observability.protocols import FrontendView
from kubeproxy.observability.status.document import (
    EndpointStatus,
    FrontendStatus,
    NamedCounters,
    NetfilterStatus,
    RecentWarning,
    ServiceStatus,
    SourceStatus,
    Standing,
    Status,
    Totals,
)
from kubeproxy.observability.status.index import Index, Query, Row, frontends_of
from kubeproxy.observability.status.observation import Candidates, Observation
from kubeproxy.observability.status.traffic_history import History
from kubeproxy.observability.status.wording import redact

PROBLEMS_SHOWN: Final = 20
"""Faults of manifests shown one by one."""


def status(
    index: Index,
    query: Query,
    *,
    matched: int,
    history: History,
    recent_warnings: Sequence[RecentWarning],
    interval_s: float,
) -> Status:
    """The status without Services; `service` builds those one by one."""
    observation = index.observation
    problems = tuple(_problems_of_daemon(observation))
    return Status(
        version=__version__,
        node=observation.node,
        pid=observation.pid,
        now=observation.wall,
        began=observation.began,
        healthy=not problems,
        problems=problems,
        draining=observation.health.draining,
        netfilter=_netfilter(observation),
        sources=tuple(_sources(observation)),
        workers=tuple(observation.worker_status),
        restarts=observation.restarts,
        totals=Totals(
            services=len(index.rows),
            by_state=index.by_state,
            ejected_endpoints=index.ejected_endpoints,
            traffic=index.traffic,
            rates=history.rates(None),
            trend=history.trend(None),
        ),
        recent_warnings=tuple(recent_warnings),
        interval_s=interval_s,
        matched=matched,
        offset=query.offset,
        services=(),
    )


def service(
    row: Row, observation: Observation, *, port: str, history: History, candidates: Candidates
) -> ServiceStatus:
    """One Service; `port` selects one service port, empty: all."""
    return ServiceStatus(
        namespace=row.name.namespace,
        name=row.name.name,
        state=row.state,
        source=observation.proxier.owners.get(row.name, ""),
        problems=tuple(observation.proxier.problems.get(row.name, ())),
        traffic=row.traffic,
        rates=history.rates(row.name),
        trend=history.trend(row.name),
        frontends=tuple(
            frontend(
                view,
                counters=observation.counters.get(view.frontend.name) or Counters(),
                ejected=observation.ejected.get(view.frontend.name, ()),
                candidates=candidates,
            )
            for view in frontends_of(row, port)
        ),
    )


def frontend(
    view: FrontendView, *, counters: Counters, ejected: Sequence[EjectedEndpoint], candidates: Candidates
) -> FrontendStatus:
    """One frontend with all endpoints of its service port."""
    wanted = view.frontend
    name = wanted.name
    return FrontendStatus(
        port=name.service_port.port,
        protocol=wanted.protocol,
        family=int(name.family),
        scope=name.scope,
        proxy_port=view.proxy_port,
        addresses=tuple(map(destination_text, sorted(wanted.destinations))),
        own_addresses=tuple(map(destination_text, sorted(wanted.own_destinations))),
        source_ranges=tuple(sorted(wanted.source_ranges)),
        affinity_s=wanted.affinity_timeout_s,
        when_empty=wanted.when_empty,
        counters=NamedCounters(**structs.asdict(counters)),
        endpoints=endpoints(wanted.endpoints, candidates(name), ejected, preserved=wanted.preserve),
    )


def destination_text(destination: Destination) -> str:
    """``10.96.0.1:80``, ``node port 30080``."""
    if destination.address in NODE_PORTS.values():
        return f"node port {destination.port}"
    return str(Target(destination.address, destination.port))


def endpoints(
    chosen: Iterable[Target],
    candidates: Mapping[Target, Endpoint],
    ejected: Sequence[EjectedEndpoint],
    *,
    preserved: frozenset[Target],
) -> tuple[EndpointStatus, ...]:
    """The chosen endpoints, ejected ones first; then the others of the service port."""
    by_target: dict[Target, list[EjectedEndpoint]] = {}
    for one in ejected:
        by_target.setdefault(one.target, []).append(one)
    used = [_used(target, candidates.get(target), by_target.get(target), target in preserved) for target in chosen]
    used.sort(key=lambda endpoint: _FIRST.get(endpoint.standing, 9))
    named = {endpoint.address for endpoint in used}
    others = [_unused(target, endpoint) for target, endpoint in sorted(candidates.items()) if str(target) not in named]
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
    terminating = endpoint is not None and endpoint.terminating and not endpoint.ready
    standing = Standing.TERMINATING if terminating else Standing.READY
    return EndpointStatus(address=str(target), standing=standing, used=True, node=node, zone=zone, preserved=preserved)


def _unused(target: Target, endpoint: Endpoint) -> EndpointStatus:
    if endpoint.ready:
        standing = Standing.ELSEWHERE
    else:
        standing = Standing.TERMINATING if endpoint.terminating else Standing.UNREADY
    return EndpointStatus(address=str(target), standing=standing, used=False, node=endpoint.node, zone=endpoint.zone)


def _problems_of_daemon(observation: Observation) -> Iterator[str]:
    health = observation.health
    if observation.problem:
        yield f"data plane: {observation.problem}"
    if observation.proxier.failing:
        yield redact(observation.proxier.failing)
    if health.draining:
        yield "draining: the process ends when its connections have"
    elif not health.on_time:
        yield "a change has waited for longer than twice the sync period"
    elif health.last_updated is None and not observation.proxier.failing:
        yield "starting: the first sync is not complete"
    if health.exhausted:
        yield health.exhausted
    if not health.node_exists:
        yield (
            f"the cluster has no Node {observation.node}, so load balancers send no clients here;"
            " if the Node has another name, set --hostname-override"
        )
    elif not health.node_eligible:
        yield "the node is being deleted or will be; load balancers send no clients here"


def _netfilter(observation: Observation) -> NetfilterStatus:
    proxier = observation.proxier

    def ago(moment: float | None) -> float | None:
        return None if moment is None else round(max(0.0, observation.now - moment), 3)

    return NetfilterStatus(
        adapter=proxier.netfilter,
        failing=None if proxier.failing is None else redact(proxier.failing),
        failures=proxier.failures,
        programmed_ago_s=ago(proxier.programmed_at),
        pending_s=ago(proxier.pending_since),
        changes_pending=proxier.service_changes_pending + proxier.endpoint_changes_pending,
    )


def _sources(observation: Observation) -> Iterator[SourceStatus]:
    shown = set()
    for watch in observation.watches:
        shown.add("kubernetes")
        failures = tuple(f"{cause}: failed {times} times" for cause, times in sorted(watch.failures.items()) if times)
        listed = watch.lists > 0
        if watch.left_out:
            failures = (f"{watch.left_out} objects left out because of the memory limit", *failures)
        yield SourceStatus(
            f"kubernetes {watch.resource}",
            listed,
            round(watch.behind_s, 1),
            watch.last_event,
            watch.faulty,
            failures,
            watch.left_out,
        )
    if observation.manifests is not None:
        shown.add("manifests")
        problems = observation.manifests.problems
        yield SourceStatus(
            "manifests",
            observation.manifests.loaded,
            0.0,
            observation.manifests.last_change or None,
            sum(not problem.skipped for problem in problems),
            tuple(redact(str(problem)) for problem in problems[:PROBLEMS_SHOWN]),
        )
    for name, listed in observation.proxier.sources.items():
        if name not in shown:
            yield SourceStatus(name, listed, 0.0, None, 0)
