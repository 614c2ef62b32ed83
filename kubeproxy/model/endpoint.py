"""EndpointSlices with the endpoints of a Service. Legacy Endpoints objects are converted to the same values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from kubeproxy.model.address import Address, Family
from kubeproxy.model.service import Protocol, ServiceName


class SliceName(NamedTuple):
    """The identity of an EndpointSlice. Each subset and family of a legacy Endpoints object becomes a slice, whose name
    has a suffix that is invalid in the API."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class EndpointPort:
    """A port of all endpoints of a slice. It serves the service port of the same name."""

    name: str
    protocol: Protocol
    port: int


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint: its address, conditions and location. Absent conditions have been replaced by the API's defaults:
    ready and serving true, terminating false."""

    address: Address
    ready: bool = True
    serving: bool = True
    terminating: bool = False
    node: str = ""
    zone: str = ""
    zone_hints: frozenset[str] = frozenset()
    node_hints: frozenset[str] = frozenset()
    pod: str = ""
    """The UID of the endpoint's pod, or the pod's name if the UID is missing, or empty if there is no pod.

    It is a single string to save memory, because there may be a hundred thousand endpoints.
    """
    weight: int = 1
    """The endpoint's relative share of new connections, from 1 to `MAX_WEIGHT`."""
    draining: bool = False
    """Whether a rollout has requested to drain the endpoint, so that it gets no new connections (see
    `drain_request`)."""
    aside: bool = False
    """Whether an operator has disabled the endpoint by a command. Like a draining endpoint, it gets no new
    connections."""


@dataclass(frozen=True, slots=True)
class EndpointSlice:
    """A group of endpoints of one Service, all of one family and with the same ports."""

    name: SliceName
    service: ServiceName
    family: Family
    ports: tuple[EndpointPort, ...]
    endpoints: tuple[Endpoint, ...]
    trigger_time: str = ""
    """The annotation endpoints.kubernetes.io/last-change-trigger-time (RFC 3339), from which the programming latency is
    measured."""
