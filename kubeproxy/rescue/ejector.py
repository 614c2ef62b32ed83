"""What the guardian asks for: the endpoints' states, and the rules that follow from them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol as Interface

from kubeproxy.model import Destination, Protocol, Target
from kubeproxy.netfilter.routing.route_watch import Prefix
from kubeproxy.rescue.fair_turns import Tenants


class Ejector(Interface):
    """The endpoints' states, and the rules that follow from them."""

    def knows(self, protocol: Protocol, target: Target) -> bool:
        """Whether a Service has this endpoint; others are left alone."""

    def translates(self, destination: Destination) -> bool:
        """Whether our rules lead this destination to endpoints; what others translate is left alone."""

    def is_ejected(self, protocol: Protocol, target: Target) -> bool:
        """Whether the rules leave it out."""

    async def failed(self, protocol: Protocol, target: Target, reason: str) -> None:
        """Eject an endpoint; returns when the rules leave it out."""

    async def answered(self, protocol: Protocol, target: Target) -> None:
        """A dial has reached an ejected endpoint: bring it back."""

    def unanswered(self, protocol: Protocol, target: Target) -> None:
        """A dial has not reached an ejected endpoint."""

    def tenants(self, protocol: Protocol, target: Target) -> Tenants:
        """The namespaces of the Services that have an endpoint."""

    def due(self) -> Sequence[tuple[Protocol, Target, Tenants]]:
        """The ejected endpoints to dial now with their tenants, the longest due first; each is due until it is
        dialed."""

    def dialed(self, protocol: Protocol, target: Target) -> None:
        """An endpoint that was due is being dialed."""

    def endpoints_in(self, prefixes: Collection[Prefix]) -> list[tuple[Protocol, Target]]:
        """The endpoints of the kernel path with these addresses."""
