"""Applies the drain requests of a Service to its endpoints, and reports what is in effect of them. Pure.

An endpoint that is to drain counts as one that terminates and still serves, as a pod does that is being deleted: it
gets no new connection, unless no other endpoint is ready (under a Local policy: none on this node). Then it goes on, as
with kube-proxy: refusing a client helps no rollout.

A request applies to the endpoint of its pod. Connections are counted by address all the same: those to a pod that is
gone and those to its successor look alike, and to count too many only makes a rollout wait until its time-out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from kubeproxy.model import Address, Endpoint, EndpointSlice, Frontend, Target
from kubeproxy.model.drain import DrainRequest, DrainRequests, Want
from kubeproxy.model.drain_report import DrainState, ServiceReport


def drained(slices: Iterable[EndpointSlice], requests: DrainRequests, now: float) -> tuple[EndpointSlice, ...]:
    """The slices with the endpoints that are to drain as ones that do; `now` in Unix seconds."""
    asked: dict[Address, list[DrainRequest]] = {}
    for request in requests.active(now):
        if request.want is Want.DRAIN:
            for address in request.addresses:
                asked.setdefault(address, []).append(request)

    def drains(endpoint: Endpoint) -> bool:
        return any(request.is_about(endpoint.pod) for request in asked.get(endpoint.address, ()))

    return tuple(
        replace(it, endpoints=tuple(_drained(e) if drains(e) else e for e in it.endpoints))
        if any(drains(e) for e in it.endpoints)
        else it
        for it in slices
    )


def set_aside(slices: tuple[EndpointSlice, ...], targets: frozenset[Target]) -> tuple[EndpointSlice, ...]:
    """Return the slices with the endpoints that a person has taken out as ones that serve only for lack of others.

    An endpoint is taken out with all ports of its slice."""
    if not targets:
        return slices

    def after(it: EndpointSlice) -> EndpointSlice:
        ports = {port.port for port in it.ports}
        taken = {target.address for target in targets if target.port in ports}
        if taken.isdisjoint(endpoint.address for endpoint in it.endpoints):
            return it
        endpoints = (replace(_serving_last(one), aside=True) if one.address in taken else one for one in it.endpoints)
        return replace(it, endpoints=tuple(endpoints))

    return tuple(map(after, slices))


def _drained(endpoint: Endpoint) -> Endpoint:
    return replace(_serving_last(endpoint), draining=True)


def _serving_last(endpoint: Endpoint) -> Endpoint:
    return replace(
        endpoint,
        ready=False,
        # A ready endpoint serves, whatever its condition `serving`, which older servers do not set.
        serving=endpoint.serving or endpoint.ready,
        terminating=True,
    )


def drain_state(
    requests: DrainRequests, now: float, *, slices: Iterable[EndpointSlice], frontends: Iterable[Frontend]
) -> DrainState:
    """The state of one Service's requests, from the slices and frontends that are in effect."""
    endpoints = [endpoint for it in slices for endpoint in it.endpoints]
    draining = frozenset(endpoint.address for endpoint in endpoints if endpoint.draining)
    chosen = {target.address for frontend in frontends for target in frontend.endpoints} if draining else set()
    return DrainState(
        report=ServiceReport(
            generation=requests.generation,
            unused=_unused(requests, now, endpoints),
            kept=draining.intersection(chosen),
        ),
        counted=requests.addresses(now, Want.DRAIN, Want.COUNT),
        draining=draining,
        spread_s=requests.spread_s,
    )


def _unused(requests: DrainRequests, now: float, endpoints: Iterable[Endpoint]) -> frozenset[Address]:
    """The addresses of pods to be used that are no ready endpoints. Of several requests about an address the newest
    decides: the older ones are about pods that are gone."""
    to_use = sorted((it for it in requests.active(now) if it.want is Want.USE), key=lambda it: it.since)
    newest = {address: request for request in to_use for address in request.addresses}
    used = {
        endpoint.address
        for endpoint in endpoints
        if endpoint.ready and endpoint.address in newest and newest[endpoint.address].is_about(endpoint.pod)
    }
    return frozenset(newest.keys() - used)
