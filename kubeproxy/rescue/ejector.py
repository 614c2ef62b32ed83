"""What the guardian asks for: the endpoints' states, and the rules that follow from them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol as Interface

from kubeproxy.model import Destination, Protocol, Target
from kubeproxy.netfilter.routing.route_watch import Prefix


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

    def endpoints_in(self, prefixes: Collection[Prefix], at_most: int) -> list[Target]:
        """The TCP endpoints of the kernel path with these addresses, so many of them."""

    def due(self, at_most: int) -> list[tuple[Protocol, Target]]:
        """So many of the ejected endpoints to dial now; the others stay due."""
