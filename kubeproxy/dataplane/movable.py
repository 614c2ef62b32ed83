"""The interface of connections and sessions that move to another process, where they continue."""

from __future__ import annotations

from typing import Protocol

from kubeproxy.dataplane.tcp.connection_state import ConnectionState
from kubeproxy.dataplane.udp.state import SessionState

State = ConnectionState | SessionState


class Frozen(Protocol):
    """A connection or session that has left its process, or has come from another one, and does not move bytes. It has
    a state and descriptors."""

    @property
    def state(self) -> State:
        """Return the state that is sent to the other process."""

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Return the descriptors."""

    def thaw(self) -> Movable | None:
        """Continue it in this process. Return None if that is not possible, and it has ended."""

    def close(self) -> None:
        """Forget it in this process, because another process continues it."""


class Movable(Protocol):
    """A connection or session that another process can continue."""

    @property
    def client(self) -> str | None:
        """The client's address, if the address decides which worker of another instance continues. None if any worker
        may continue."""

    def freeze(self) -> Frozen | None:
        """Stop it and return it, or return None if it has ended."""
