"""The drain requests of a rollout: chooses the Services that they are stored on, and merges them with other rollouts'
requests.

Several rollouts may have requests on one Service, so each changes only its own requests. A request that a rollout does
not repeat stays until it expires. While a deleted pod is still in the EndpointSlices, the request keeps proxies from
sending the pod connections.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog

from kubeproxy.controllers.api_types import Pod, Service
from kubeproxy.model import Address, ServiceName, family_of, parse_address
from kubeproxy.model.drain_request import MAX_AHEAD_S, MAX_REQUESTS, DrainRequest, DrainRequests, Want, decode_requests

log = structlog.get_logger(__name__)

LIFETIME_S: Final = 120.0
"""How long a request is valid. It bounds the effect of a client that is killed."""
RENEW_S: Final = 60.0
"""A request that expires in less than this time is renewed. So a rollout that only waits writes at most once a
minute."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a rollout wants the proxies to do with one pod."""

    pod: str
    uid: str
    addresses: tuple[Address, ...]
    want: Want

    def is_stated_by(self, request: DrainRequest) -> bool:
        """Return whether a request already has the content of this wish."""
        mine, its = (self.pod, self.uid, self.want), (request.pod, request.uid, request.want)
        return mine == its and self.addresses == request.addresses


def selects(service: Service, pod: Pod) -> bool:
    """Return whether proxies send connections for a Service to a pod."""
    spec, labels = service.spec, pod.metadata.labels
    if not spec.selector or spec.type == "ExternalName" or spec.cluster_ip in ("", "None"):
        return False
    return all(labels.get(key) == value for key, value in spec.selector.items())


def is_node_local(service: Service) -> bool:
    """Return whether only the proxy of a pod's own node sends connections for a Service to the pod."""
    spec = service.spec
    return spec.internal_traffic_policy == "Local" and spec.type in ("", "ClusterIP") and not spec.external_ips


def addresses_for(service: Service, pod: Pod, *, shared: bool = False) -> tuple[Address, ...]:
    """Return a pod's addresses of a Service's address families. Return none for a pod on the host's network, unless
    `shared` is true, because other pods on the node, and the pod's successor, have the same address."""
    if pod.spec.host_network and not shared:
        return ()
    families = {family_of(Address(ip)) for ip in service.spec.cluster_ips or [service.spec.cluster_ip]}
    found = (parse_address(pod_ip.ip) for pod_ip in pod.status.pod_ips if pod_ip.ip)
    return tuple(address for address in found if family_of(address) in families)


def name_of(service: Service) -> ServiceName:
    """Return the name by which reports refer to a Service."""
    return ServiceName(service.metadata.namespace, service.metadata.name)


def requests_of(service: Service) -> DrainRequests:
    """Return the requests that are stored on a Service. If they cannot be decoded, return none; the next write replaces
    them."""
    text = service.metadata.annotations.drain_requests
    if not text:
        return DrainRequests(0)
    try:
        return decode_requests(text)
    except ValueError as error:
        log.info("drain requests replaced", service=str(name_of(service)), error=str(error))
        return DrainRequests(0)


def merged(
    current: DrainRequests,
    owner: str,
    wishes: Sequence[Wish],
    *,
    withdrawn: Collection[str] = (),
    now: float,
) -> DrainRequests:
    """Return the Service's requests after an owner's wishes are merged into them, or `current` itself if nothing
    changes.

    This owner's requests for the pods `withdrawn` are removed. If there are more than `MAX_REQUESTS`, requests that
    this owner does not repeat are removed, too. Raise ValueError if there are still more.
    """
    wanted = {(wish.pod, wish.want): wish for wish in wishes}
    taken = {address for wish in wishes for address in wish.addresses}
    kept: list[DrainRequest] = []
    known: dict[tuple[str, Want], DrainRequest] = {}
    lasting = [request for request in current.requests if request.until > now]
    for request in lasting:
        if request.owner != owner:
            kept.append(request)
        elif (wish := wanted.get((request.pod, request.want))) is not None and wish.is_stated_by(request):
            known[request.pod, request.want] = request
        elif request.pod not in withdrawn and taken.isdisjoint(request.addresses) and not _superseded(request, wishes):
            kept.append(request)
    if (surplus := len(kept) + len(wanted) - MAX_REQUESTS) > 0:
        # The requests that expire first are removed first, because their pods have probably left the EndpointSlices.
        past = sorted((request for request in kept if request.owner == owner), key=lambda request: request.until)
        dropped = frozenset(past[:surplus])
        kept = [request for request in kept if request not in dropped]
    generation = max(round(now * 1000), current.generation + 1)
    asked = [
        _renewed(known[key], now) if key in known else _new(owner, wish, generation, now)
        for key, wish in wanted.items()
    ]
    found = (*kept, *asked)
    if len(found) > MAX_REQUESTS:
        raise ValueError(f"found {len(found)} drain requests for one Service; allowed are at most {MAX_REQUESTS}")
    if set(found) == set(current.requests):
        return current
    changed = {_content(request) for request in found} != {_content(request) for request in lasting}
    return DrainRequests(generation if changed else current.generation, found)


def _superseded(request: DrainRequest, wishes: Iterable[Wish]) -> bool:
    """Return whether one of the owner's wishes replaces this request about the same pod."""
    return any(wish.pod == request.pod for wish in wishes)


def _new(owner: str, wish: Wish, generation: int, now: float) -> DrainRequest:
    until = round(now + LIFETIME_S, 3)
    return DrainRequest(owner, wish.pod, wish.addresses, wish.want, generation, until, wish.uid)


def _renewed(request: DrainRequest, now: float) -> DrainRequest:
    if RENEW_S <= request.until - now <= MAX_AHEAD_S:
        return request
    return replace(request, until=round(now + LIFETIME_S, 3))


def _content(request: DrainRequest) -> DrainRequest:
    """Return a request without its expiry, because a renewal needs no new report from the nodes."""
    return replace(request, until=0.0)
