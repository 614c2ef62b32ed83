"""What a process knows of a UDP session beside its socket.

It is sent to another process together with the socket towards the endpoint."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from kubeproxy.model import FrontendName, Target

Span = Annotated[float, Meta(ge=0.0, le=1e9)]
"""Seconds. What is beyond these limits is no state of a worker."""


class SessionState(Struct, frozen=True, tag=True, array_like=True):
    """A session with an endpoint. Times are spans: another process may have another clock."""

    frontend: FrontendName
    peer: bytes
    """Client and local address, as the datagrams have them (`mmsg`)."""
    hops: Annotated[int, Meta(ge=0, le=255)]
    """The lowest hop limit of the client's datagrams."""
    target: Target
    avoid: tuple[Target, ...]
    """The endpoint that refused last."""
    age_s: Span
    idle_s: Span

    @property
    def descriptors(self) -> int:
        """How many come with it: the socket towards the endpoint."""
        return 1

    @property
    def size(self) -> int:
        """Bytes of datagrams: none, as its queue is sent before it moves."""
        return 0
