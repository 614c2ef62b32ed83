"""Drain requests, with which a rollout asks every node's proxy to drain or use endpoints of a Service.

They are stored in an annotation of the Service, as JSON:

    {"generation": 1763827200123, "requests": [
        {"owner": "rolling-update/web-1", "pod": "web-1-x8k2p", "uid": "6f1c1c9e-2f0e-4c43-9c62-0d0f8f1d7a55",
         "addresses": ["10.244.1.7"], "want": "drain", "since": 1763827200123, "until": 1763827290}]}

A request names its pod, because another pod may soon have the same address. Unknown fields are ignored. `drain_report`
has the answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kubeproxy.model.address import Address
from kubeproxy.model.json_values import addresses_in, number_in, object_in, parsed, shown, to_text, whole_in, word_in

REQUESTS: Final = "kubeproxy/drain-requests"
"""The annotation of a Service with the requests."""
MAX_REQUESTS: Final = 1000
"""The largest number of requests of one Service. Each has about 200 bytes, and the API limits an object's annotations
to 256 KiB."""
MAX_ADDRESSES: Final = 2
"""The largest number of addresses in a request: one of each family."""
MAX_AHEAD_S: Final = 600.0
"""A request only counts in the last ten minutes before its `until`, so no request lasts longer. Rollouts use two
minutes, and renew their requests."""


class Want(StrEnum):
    """What a request asks a proxy to do with a pod."""

    DRAIN = "drain"
    """Send the pod no new connections, and count its open connections."""
    USE = "use"
    """Report when the pod is an endpoint that may get connections."""
    READY = "ready"
    """Use the pod as if it were ready, and report as for `USE`. Its containers are ready, and only its readiness gate
    is closed until the proxies use it."""
    COUNT = "count"
    """Only count the open connections to the pod."""


@dataclass(frozen=True, slots=True)
class DrainRequest:
    """A request about one pod."""

    owner: str
    """The name of the rollout that has made the request."""
    pod: str
    addresses: tuple[Address, ...]
    want: Want
    since: int
    """The generation in which the request was added. A node has carried out the request if its report has this
    generation or a later one."""
    until: float
    """The time at which the request expires, in Unix seconds. A killed client's request thus does not stay forever."""
    uid: str = ""
    """The pod's UID, or empty if the request is about any pod with these addresses."""

    def is_about(self, pod: str) -> bool:
        """Return whether the request is about an endpoint that has one of its addresses. `pod` is the endpoint's
        `Endpoint.pod`, which matters only if the request has a UID."""
        return not self.uid or not pod or pod in (self.uid, self.pod)


@dataclass(frozen=True, slots=True)
class DrainRequests:
    """The requests of one Service."""

    generation: int
    """A number that grows with every change. It is the time in Unix milliseconds, so that it grows even if the
    annotation was removed in between."""
    requests: tuple[DrainRequest, ...] = ()

    def active(self, now: float) -> tuple[DrainRequest, ...]:
        """Return the requests that are in effect at `now`, in Unix seconds."""
        return tuple(request for request in self.requests if now < request.until <= now + MAX_AHEAD_S)

    def addresses(self, now: float, *wants: Want) -> frozenset[Address]:
        """Return the addresses of the requests that are in effect and have one of these wants."""
        return frozenset(a for request in self.active(now) if request.want in wants for a in request.addresses)

    def followed(self, now: float) -> int:
        """Return the newest generation whose requests are all in effect, or have expired."""
        ahead = (request.since - 1 for request in self.requests if request.until > now + MAX_AHEAD_S)
        return max(0, min((self.generation, *ahead)))

    def next_change(self, now: float) -> float | None:
        """Return the next time at which a request takes effect or expires, in Unix seconds, or None."""
        changes = (at for request in self.requests for at in (request.until - MAX_AHEAD_S, request.until) if at > now)
        return min(changes, default=None)


def encode_requests(requests: DrainRequests) -> str:
    """Encode requests for the annotation."""
    return to_text(
        {
            "generation": requests.generation,
            "requests": [
                {
                    "owner": request.owner,
                    "pod": request.pod,
                    **({"uid": request.uid} if request.uid else {}),
                    "addresses": list(request.addresses),
                    "want": request.want.value,
                    "since": request.since,
                    "until": round(request.until, 3),
                }
                for request in requests.requests
            ],
        }
    )


def decode_requests(text: str) -> DrainRequests:
    """Decode the requests in an annotation. Raise ValueError, with a message for the user, if the text is invalid."""
    root = object_in(parsed(text), "")
    listed = root.get("requests", [])
    if not isinstance(listed, list):
        raise ValueError(f"requests: found {shown(listed)}; allowed is a list")
    if len(listed) > MAX_REQUESTS:
        raise ValueError(f"requests: found {len(listed)}; allowed are at most {MAX_REQUESTS}")
    return DrainRequests(
        generation=whole_in(root.get("generation"), "generation"),
        requests=tuple(_request(each, f"requests[{index}]") for index, each in enumerate(listed)),
    )


def _request(value: object, where: str) -> DrainRequest:
    entry = object_in(value, where)
    want, addresses = entry.get("want"), entry.get("addresses")
    if isinstance(addresses, list) and len(addresses) > MAX_ADDRESSES:
        raise ValueError(f"{where}.addresses: found {len(addresses)}; allowed are at most {MAX_ADDRESSES}")
    if want not in list(Want):
        raise ValueError(f"{where}.want: found {shown(want)}; allowed are {', '.join(Want)}")
    return DrainRequest(
        owner=word_in(entry.get("owner"), f"{where}.owner"),
        pod=word_in(entry.get("pod"), f"{where}.pod"),
        addresses=tuple(addresses_in(addresses, f"{where}.addresses")),
        want=Want(want),
        since=whole_in(entry.get("since"), f"{where}.since"),
        until=number_in(entry.get("until"), f"{where}.until"),
        uid=word_in(entry["uid"], f"{where}.uid") if "uid" in entry else "",
    )
