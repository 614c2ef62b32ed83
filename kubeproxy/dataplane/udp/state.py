"""The state of a UDP session, apart from its socket. It is sent to another process together with the socket to the
endpoint."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from kubeproxy.model import FrontendName, Target

Span = Annotated[float, Meta(ge=0.0, le=1e9)]
"""A number of seconds. A worker never sends a number outside these limits."""


class SessionState(Struct, frozen=True, tag=True, array_like=True):
    """The state of a session with an endpoint. It contains ages instead of times, because the other process may have
    another clock."""

    frontend: FrontendName
    peer: bytes
    """The client's address and the local address, as bytes (`mmsg`)."""
    hops: Annotated[int, Meta(ge=0, le=255)]
    """The lowest hop limit left in any of the client's datagrams."""
    target: Target
    avoid: tuple[Target, ...]
    """The endpoint that refused last."""
    age_s: Span
    idle_s: Span

    @property
    def descriptors(self) -> int:
        """Return the number of descriptors that belong to the state: one, for the socket to the endpoint."""
        return 1

    @property
    def size(self) -> int:
        """Return 0, because queued datagrams are sent before the session moves."""
        return 0
