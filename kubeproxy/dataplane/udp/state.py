"""The state of a UDP session, apart from its socket. It is sent to another process together with the socket towards the
endpoint."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from kubeproxy.model import FrontendName, Target

Span = Annotated[float, Meta(ge=0.0, le=1e9)]
"""A number of seconds. A worker never sends one beyond these limits."""


class SessionState(Struct, frozen=True, tag=True, array_like=True):
    """A session with an endpoint. Times are spans, because another process may have another clock."""

    frontend: FrontendName
    peer: bytes
    """The client and the local address, as the datagrams have them (`mmsg`)."""
    hops: Annotated[int, Meta(ge=0, le=255)]
    """The lowest hop limit of the client's datagrams."""
    target: Target
    avoid: tuple[Target, ...]
    """The endpoint that refused last."""
    age_s: Span
    idle_s: Span

    @property
    def descriptors(self) -> int:
        """Return the number of descriptors that come with it, which is one: the socket towards the endpoint."""
        return 1

    @property
    def size(self) -> int:
        """Return 0, because the queue is sent before the session moves."""
        return 0
