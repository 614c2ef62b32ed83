"""The drain requests of a rollout: to which Services they belong, and how they are merged with those of other rollouts.

Several rollouts may ask about one Service at once, so each changes only its own requests. A request that a rollout does
not repeat stays until it expires, because while a deleted pod leaves the EndpointSlices, no proxy may take it for a
ready one.
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
"""For how long a request is valid, if the client that wrote it is killed."""
RENEW_S: Final = 60.0
"""A request with less time left is renewed. So a rollout that only waits writes at most once a minute."""


@dataclass(frozen=True, slots=True)
class Wish:
    """The wish of a rollout about one pod."""

    pod: str
    uid: str
    addresses: tuple[Address, ...]
    want: Want

    def is_stated_by(self, request: DrainRequest) -> bool:
        """Return whether a request already states this wish."""
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
    """Return the addresses of a pod in the families of a Service. A pod on the host's network has none, because other
    pods have the same address, including the pod that replaces it. With `shared` this does not matter."""
    if pod.spec.host_network and not shared:
        return ()
    families = {family_of(Address(ip)) for ip in service.spec.cluster_ips or [service.spec.cluster_ip]}
    found = (parse_address(pod_ip.ip) for pod_ip in pod.status.pod_ips if pod_ip.ip)
    return tuple(address for address in found if family_of(address) in families)


def name_of(service: Service) -> ServiceName:
    """Return the name of a Service as reports have it."""
    return ServiceName(service.metadata.namespace, service.metadata.name)


def requests_of(service: Service) -> DrainRequests:
    """Return the requests that a Service has. Requests that cannot be read are left out, and the next write replaces
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
    """Return the requests with these wishes of an owner, or `current` itself if nothing has to be written.

    This owner's requests for the pods `withdrawn` end at once. If there is no room, requests that this owner does not
    repeat end, too. Raise ValueError if even that leaves too many.
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
        # The pods of this rollout's oldest requests have left the EndpointSlices long ago.
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
    """Return whether the owner wants something else of the same pod by now."""
    return any(wish.pod == request.pod for wish in wishes)


def _new(owner: str, wish: Wish, generation: int, now: float) -> DrainRequest:
    until = round(now + LIFETIME_S, 3)
    return DrainRequest(owner, wish.pod, wish.addresses, wish.want, generation, until, wish.uid)


def _renewed(request: DrainRequest, now: float) -> DrainRequest:
    if RENEW_S <= request.until - now <= MAX_AHEAD_S:
        return request
    return replace(request, until=round(now + LIFETIME_S, 3))


def _content(request: DrainRequest) -> DrainRequest:
    """Return a request without its end, because a node has nothing to report about a renewal."""
    return replace(request, until=0.0)
