"""Applies the drain requests of a Service to its endpoints, and reports which of them are in effect. Endpoints that an
operator has taken out, or whose pod runs its preStop hook, are drained in the same way.

A draining endpoint is treated as terminating but still serving, like a pod that is being deleted. It gets new
connections only if no other endpoint is ready (under a Local policy, no other endpoint on this node). kube-proxy does
the same with terminating pods, because refusing clients would not help the rollout.

A request applies to the endpoint of one pod. But connections are counted by address, so those to a later pod with the
same address are included. Counting too many only makes a rollout wait until its timeout.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from kubeproxy.model import Address, Endpoint, EndpointSlice, Frontend, Target
from kubeproxy.model.drain_report import DrainState, ServiceReport
from kubeproxy.model.drain_request import DrainRequests, Want
from kubeproxy.proxier.local_pods import Leaving


def drained(slices: Iterable[EndpointSlice], requests: DrainRequests, now: float) -> tuple[EndpointSlice, ...]:
    """Return the slices as the requests want them: endpoints to be drained are marked as draining. Endpoints of pods
    whose readiness gate waits for the proxies are marked as ready. `now` is in Unix seconds."""
    slices = tuple(slices)
    drains, gated = _pods_to(Want.DRAIN, requests, now), _pods_to(Want.READY, requests, now)
    # Topology hints are used only if all ready endpoints have some, and an endpoint gets its hints only when it is
    # ready.
    by_zone = bool(gated) and any(each.zone_hints for it in slices for each in it.endpoints)
    by_node = bool(gated) and any(each.node_hints for it in slices for each in it.endpoints)

    def after(endpoint: Endpoint) -> Endpoint:
        if _is_meant(endpoint, drains):
            return _drained(endpoint)
        if _is_meant(endpoint, gated) and not endpoint.terminating and not endpoint.ready:
            return replace(
                endpoint,
                ready=True,
                serving=True,
                zone_hints=endpoint.zone_hints or frozenset({endpoint.zone} if by_zone and endpoint.zone else ()),
                node_hints=endpoint.node_hints or frozenset({endpoint.node} if by_node and endpoint.node else ()),
            )
        return endpoint

    found = []
    for it in slices:
        endpoints = tuple(map(after, it.endpoints))
        found.append(it if endpoints == it.endpoints else replace(it, endpoints=endpoints))
    return tuple(found)


def _is_meant(endpoint: Endpoint, pods: Mapping[Address, frozenset[str] | None]) -> bool:
    if endpoint.address not in pods:
        return False
    known = pods[endpoint.address]
    return known is None or not endpoint.pod or endpoint.pod in known


def _pods_to(want: Want, requests: DrainRequests, now: float) -> dict[Address, frozenset[str] | None]:
    """Return the names and UIDs of the pods in requests of one kind, by address. The value None means any pod with this
    address. With this mapping each endpoint takes one look-up, however many requests name its address."""
    pods: dict[Address, set[str]] = {}
    whichever: dict[Address, None] = {}
    for request in requests.active(now):
        if request.want is not want:
            continue
        for address in request.addresses:
            if request.uid:
                pods.setdefault(address, set()).update((request.uid, request.pod))
            else:
                whichever[address] = None
    return {**{address: frozenset(names) for address, names in pods.items()}, **whichever}


def set_aside(slices: tuple[EndpointSlice, ...], targets: frozenset[Target]) -> tuple[EndpointSlice, ...]:
    """Return the slices, in which endpoints that an operator has taken out get clients only if there is no other
    endpoint. An endpoint is taken out with all ports of its slice."""
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


def without_leaving(slices: tuple[EndpointSlice, ...], leaving: frozenset[Leaving]) -> tuple[EndpointSlice, ...]:
    """Return the slices with the endpoints of pods that run their preStop hook marked as draining."""
    if not leaving:
        return slices
    addresses = {it.address for it in leaving}

    def after(endpoint: Endpoint) -> Endpoint:
        return _drained(endpoint) if Leaving(endpoint.address, endpoint.pod) in leaving else endpoint

    return tuple(
        it
        if addresses.isdisjoint(endpoint.address for endpoint in it.endpoints)
        else replace(it, endpoints=tuple(map(after, it.endpoints)))
        for it in slices
    )


def _drained(endpoint: Endpoint) -> Endpoint:
    return replace(_serving_last(endpoint), draining=True)


def _serving_last(endpoint: Endpoint) -> Endpoint:
    return replace(
        endpoint,
        ready=False,
        # A ready endpoint serves, even if `serving` is not set. Older API servers do not set it.
        serving=endpoint.serving or endpoint.ready,
        terminating=True,
    )


def drain_state(
    requests: DrainRequests, now: float, *, slices: Iterable[EndpointSlice], frontends: Iterable[Frontend]
) -> DrainState:
    """Return the state of one Service's requests, from the slices and frontends that are in effect."""
    endpoints = [endpoint for it in slices for endpoint in it.endpoints]
    draining = frozenset(endpoint.address for endpoint in endpoints if endpoint.draining)
    chosen = {target.address for frontend in frontends for target in frontend.endpoints} if draining else set()
    return DrainState(
        report=ServiceReport(
            generation=requests.followed(now),
            unused=_unused(requests, now, endpoints),
            kept=draining.intersection(chosen),
        ),
        counted=requests.addresses(now, Want.DRAIN, Want.COUNT),
        draining=draining,
    )


def _unused(requests: DrainRequests, now: float, endpoints: Iterable[Endpoint]) -> frozenset[Address]:
    """Return the addresses that requests want to be used, but at which this proxy has no ready endpoint yet.

    If several requests name an address, only the newest counts, because the others are about pods that no longer exist.
    """
    to_use = sorted((it for it in requests.active(now) if it.want in (Want.USE, Want.READY)), key=lambda it: it.since)
    newest = {address: request for request in to_use for address in request.addresses}
    used = {
        endpoint.address
        for endpoint in endpoints
        if endpoint.ready and endpoint.address in newest and newest[endpoint.address].is_about(endpoint.pod)
    }
    return frozenset(newest.keys() - used)
