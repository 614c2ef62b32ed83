"""Endpoints of a Service: EndpointSlices, and legacy Endpoints objects in the same shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from kubeproxy.model.address import Address, Family
from kubeproxy.model.service import Protocol, ServiceName


class SliceName(NamedTuple):
    """An EndpointSlice's identity. Every subset and family of a legacy Endpoints object becomes a slice whose name has
    a suffix that no API object can have."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class EndpointPort:
    """A port on which every endpoint of a slice listens. It serves the service port of the same name."""

    name: str
    protocol: Protocol
    port: int


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One backend address with its conditions and place. Absent conditions already have the values that the API
    demands: ready and serving true, terminating false."""

    address: Address
    ready: bool = True
    serving: bool = True
    terminating: bool = False
    node: str = ""
    zone: str = ""
    zone_hints: frozenset[str] = frozenset()
    node_hints: frozenset[str] = frozenset()
    pod: str = ""
    """The UID of the endpoint's pod, or the pod's name if no UID is given. It is empty if no pod is known.

    It is one text, because a hundred thousand endpoints may have one each.
    """
    weight: int = 1
    """The endpoint's share compared with the others, from 1 to `MAX_WEIGHT`."""
    draining: bool = False
    """Whether a rollout has asked that the endpoint gets no new connections (see `kubeproxy.model.drain_request`)."""
    aside: bool = False
    """Whether a person has taken the endpoint out by hand. Like a draining one, it then gets no new connections."""


@dataclass(frozen=True, slots=True)
class EndpointSlice:
    """Part of the endpoints of one Service, all of one family and with the same ports."""

    name: SliceName
    service: ServiceName
    family: Family
    ports: tuple[EndpointPort, ...]
    endpoints: tuple[Endpoint, ...]
    trigger_time: str = ""
    """The annotation endpoints.kubernetes.io/last-change-trigger-time (RFC 3339), from which the programming latency is
    measured."""
