"""A frontend: one listener's worth of a service port. What the control plane's decisions amount to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from kubeproxy.model.address import Address, Family
from kubeproxy.model.service import Protocol, ServicePortName


class Scope(StrEnum):
    """Whose traffic a frontend takes, when the two have to be told apart."""

    CLUSTER = "cluster"
    """Traffic under the Cluster policy; for most service ports the only frontend."""
    LOCAL = "local"
    """Traffic under the Local policy: only this node's endpoints answer."""


class Verdict(StrEnum):
    """What becomes of a client when a frontend has no endpoint."""

    REFUSE = "refuse"
    DROP = "drop"


class FrontendName(NamedTuple):
    """A frontend's identity, and with it the identity of its listener and proxy port."""

    service_port: ServicePortName
    family: Family
    scope: Scope = Scope.CLUSTER

    def __str__(self) -> str:
        scope = "" if self.scope is Scope.CLUSTER else f" ({self.scope})"
        return f"{self.service_port} {self.family}{scope}"


class Destination(NamedTuple):
    """Where clients send to: a service address, before the redirect."""

    address: Address
    protocol: Protocol
    port: int


class Target(NamedTuple):
    """Where an endpoint listens: what is dialed."""

    address: Address
    port: int

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


@dataclass(frozen=True, slots=True)
class Frontend:
    """What one listener takes in (destinations) and hands out (endpoints)."""

    name: FrontendName
    protocol: Protocol
    destinations: frozenset[Destination]
    endpoints: tuple[Target, ...] = ()
    """Sorted and without duplicates, so that equal sets are equal values."""
    affinity_timeout_s: int | None = None
    when_empty: Verdict = Verdict.REFUSE
