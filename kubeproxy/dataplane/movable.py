"""The interface of connections and sessions that can move to another process and continue there."""

from __future__ import annotations

from typing import Protocol

from kubeproxy.dataplane.tcp.connection_state import ConnectionState
from kubeproxy.dataplane.udp.state import SessionState

State = ConnectionState | SessionState


class Frozen(Protocol):
    """A connection or session that is not running here, because it moves to or from another process. It has a state and
    descriptors."""

    @property
    def state(self) -> State:
        """Return the state to send to the other process."""

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Return the descriptors."""

    def thaw(self) -> Movable | None:
        """Continue the connection or session in this process. Return None if that is not possible and it has ended."""

    def close(self) -> None:
        """Close the descriptors in this process, because another process continues the connection or session."""


class Movable(Protocol):
    """A connection or session that can move to another process."""

    @property
    def client(self) -> str | None:
        """The client's address if it decides which worker of the other instance continues, or None if any worker may
        continue."""

    def freeze(self) -> Frozen | None:
        """Stop the connection or session and return it in frozen form. Return None if it has ended."""
