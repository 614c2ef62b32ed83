"""What the control plane can ask of the data plane, wherever it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kubeproxy.dataplane.messages import Message
from kubeproxy.model import Address, FrontendName
from kubeproxy.model import Protocol as Transport


@dataclass(slots=True)
class Counters:
    """Plain sums of one frontend since it was first listened for."""

    accepted: int = 0
    """Connections; UDP: sessions."""
    active: int = 0
    failed: int = 0
    """Connections for which no endpoint answered."""
    dial_retries: int = 0
    dropped: int = 0
    """UDP: datagrams that could not be passed on."""
    evicted: int = 0
    """UDP: sessions that made room for others."""
    bytes_in: int = 0
    """From clients to endpoints."""
    bytes_out: int = 0
    """From endpoints to clients."""


class DataPlane(Protocol):
    """A running data plane."""

    async def send(self, messages: Sequence[Message]) -> Mapping[FrontendName, str]:
        """Hand over messages in order; back when all are in effect. What could not be done is returned, by frontend,
        as a text that says what was seen; the other messages are in effect all the same. A frontend that did not
        listen before and whose Listen could not be done does not listen."""

    def counters(self) -> Mapping[FrontendName, Counters]:
        """A snapshot, summed over everything that serves."""

    async def drain(self, grace_s: float) -> int:
        """Wait until the connections open now have ended, at most `grace_s` seconds; how many are left. Accepting
        goes on meanwhile."""

    async def close(self) -> None:
        """Close every listener and connection."""


class PortReserver(Protocol):
    """Holds proxy ports, so that no other process gets them between two of ours listening."""

    def reserve(self, protocol: Transport, address: Address, port: int) -> Reservation:
        """Bind without listening; port 0 lets the kernel choose. OSError when the port is taken."""


class Reservation(Protocol):
    """A held port."""

    @property
    def port(self) -> int:
        """Its number."""

    def release(self) -> None:
        """Give it back."""
