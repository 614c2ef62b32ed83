"""The interface of an owner for new instances, and the limit on how long they may hold the owner's rules."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from kubeproxy.daemon.takeover.protocol import Order
from kubeproxy.daemon.takeover.serves_enough import Offer
from kubeproxy.dataplane.interface import Entrances
from kubeproxy.dataplane.messages import RestoreBindings

HOLD_S: Final = 60.0
"""For how many seconds in total a new instance may keep the owner from changing its rules."""


class Owner(Protocol):
    """What the owner of the node does for a new instance, for an operator's command, and when its own rules change.

    The daemon implements this. This folder must not import the daemon.
    """

    def share(self, on: bool) -> None:
        """Allow another process to reserve the same node ports, or forbid it again."""

    async def hold(self, on: bool) -> None:
        """Stop changing the rules, or maintain them again if `on` is false."""

    async def leads_here(self) -> bool:
        """Return whether the rules in the kernel still redirect to this instance. Raise KernelError if they cannot be
        read."""

    async def bindings(self) -> Sequence[RestoreBindings]:
        """Return the session affinity bindings."""

    async def adopt(self) -> Entrances:
        """Return the sockets through which a worker of another instance can send its connections to our workers."""

    async def yield_all(self) -> None:
        """Release everything that only one process can have, because the rules redirect to another process."""

    def grace_s(self) -> float:
        """Return for how many seconds open connections may continue after a stop."""

    def offer(self) -> Offer:
        """Return what this instance serves."""

    async def obey(self, order: Order) -> str | None:
        """Carry out an operator's order. Return None once it is in force, or the reason why it is not possible."""


class HoldTime:
    """Measures how long a new instance has held the owner's rules. The new instance may hold them for HOLD_S seconds in
    total, however often it begins."""

    def __init__(self, patience: asyncio.Timeout) -> None:
        """`patience` is a timeout around everything that the new instance can prolong."""
        self._patience = patience
        self._left_s = HOLD_S

    @property
    def lasts(self) -> bool:
        """Return whether the hold has begun and not ended."""
        return self._patience.when() is not None

    def begin(self) -> None:
        """Begin to measure the time."""
        if not self.lasts:
            self._patience.reschedule(asyncio.get_running_loop().time() + self._left_s)

    def end(self) -> None:
        """Stop measuring the time."""
        if (until := self._patience.when()) is not None:
            self._left_s = until - asyncio.get_running_loop().time()
            self._patience.reschedule(None)
