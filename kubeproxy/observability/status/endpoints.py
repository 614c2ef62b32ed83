"""Builds the status of a frontend's endpoints, each with its state (`Standing`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from kubeproxy.dataplane.interface import EjectedEndpoint
from kubeproxy.model import Address, Endpoint, Frontend, Protocol, Target
from kubeproxy.model.rescue import Ejection, RescueState
from kubeproxy.observability.status.document import EndpointStatus, Standing


class Ejected(NamedTuple):
    """The ejection of an endpoint as one value, whether workers or the rescue ejected it."""

    reason: str
    failures: int
    retry_in_s: float
    for_s: float
    workers: tuple[int, ...]
    noticed_by: str


def ejected_endpoints(
    protocol: Protocol,
    endpoints: Iterable[Target],
    by_workers: Sequence[EjectedEndpoint],
    rescue: RescueState | None,
    now: float,
) -> Mapping[Target, Ejected]:
    """Return the ejected endpoints of a frontend. If the rescue and workers have ejected the same endpoint, the
    rescue's ejection is returned, because the rescue informs the workers."""
    by_target: dict[Target, list[EjectedEndpoint]] = {}
    for one in by_workers:
        by_target.setdefault(one.target, []).append(one)
    result = {target: _by_workers(ejected) for target, ejected in by_target.items()}
    if rescue is not None and rescue.ejected:
        for target in endpoints:
            if (ejection := rescue.ejected.get((protocol, target))) is not None:
                result[target] = _by_rescue(ejection, result.get(target), now)
    return result


def _by_workers(ejected: Sequence[EjectedEndpoint]) -> Ejected:
    worst = max(ejected, key=lambda one: one.retry_in_s)
    return Ejected(
        worst.reason,
        max(one.failures for one in ejected),
        worst.retry_in_s,
        max(one.for_s for one in ejected),
        tuple(sorted({one.worker for one in ejected})),
        "worker",
    )


def _by_rescue(ejection: Ejection, also: Ejected | None, now: float) -> Ejected:
    return Ejected(
        ejection.reason,
        ejection.failures,
        max(0.0, ejection.until - now),
        now - ejection.since,
        () if also is None else also.workers,
        ejection.noticed_by,
    )


def endpoint_statuses(
    frontend: Frontend,
    candidates: Mapping[Target, Endpoint],
    ejected: Mapping[Target, Ejected],
    open_by_endpoint: Mapping[Target, int],
    open_to: Mapping[Address, int],
) -> tuple[EndpointStatus, ...]:
    """Return the status of the frontend's endpoints, ejected ones first, and then of the other endpoints of its service
    port."""
    total = sum(map(frontend.balancing.weight_of, range(len(frontend.endpoints))))
    used = [
        replace(
            _used(target, candidates.get(target), ejected.get(target), target in frontend.preserve),
            open=open_by_endpoint.get(target, 0),
            weight=frontend.balancing.weight_of(number),
            share=round(frontend.balancing.weight_of(number) / total, 4),
        )
        for number, target in enumerate(frontend.endpoints)
    ]
    used.sort(key=lambda endpoint: _FIRST.get(endpoint.standing, 9))
    named = {endpoint.address for endpoint in used}
    others = [
        replace(_unused(target, endpoint), open=open_by_endpoint.get(target, 0))
        for target, endpoint in sorted(candidates.items())
        if str(target) not in named
    ]
    addresses = {str(target): target.address for target in (*frontend.endpoints, *candidates)}
    return tuple(
        replace(it, open=open_to.get(addresses[it.address], 0)) if it.standing is Standing.DRAINING else it
        for it in (*used, *others)
    )


_FIRST: Final = {
    standing: place
    for place, standing in enumerate(
        (Standing.EJECTED, Standing.PROBING, Standing.TERMINATING, Standing.DRAINING, Standing.READY)
    )
}


def _used(target: Target, endpoint: Endpoint | None, ejected: Ejected | None, preserved: bool) -> EndpointStatus:
    node, zone = (endpoint.node, endpoint.zone) if endpoint is not None else ("", "")
    if ejected is not None:
        return EndpointStatus(
            address=str(target),
            standing=Standing.EJECTED if ejected.retry_in_s > 0 else Standing.PROBING,
            used=True,
            reason=ejected.reason,
            failures=ejected.failures,
            retry_in_s=round(ejected.retry_in_s, 1),
            ejected_for_s=round(ejected.for_s, 1),
            workers=ejected.workers,
            noticed_by=ejected.noticed_by,
            node=node,
            zone=zone,
            preserved=preserved,
        )
    terminating = endpoint is not None and endpoint.terminating and not endpoint.ready
    standing = Standing.TERMINATING if terminating else Standing.READY
    by_hand = endpoint is not None and endpoint.aside
    if endpoint is not None and (endpoint.draining or by_hand):
        standing = Standing.DRAINING
    return EndpointStatus(
        address=str(target),
        standing=standing,
        used=True,
        node=node,
        zone=zone,
        by_hand=by_hand,
        preserved=preserved,
    )


def _unused(target: Target, endpoint: Endpoint) -> EndpointStatus:
    if endpoint.draining or endpoint.aside:
        return EndpointStatus(
            address=str(target),
            standing=Standing.DRAINING,
            used=False,
            node=endpoint.node,
            zone=endpoint.zone,
            by_hand=endpoint.aside,
        )
    if endpoint.ready:
        standing = Standing.ELSEWHERE
    else:
        standing = Standing.TERMINATING if endpoint.terminating else Standing.UNREADY
    return EndpointStatus(address=str(target), standing=standing, used=False, node=endpoint.node, zone=endpoint.zone)
