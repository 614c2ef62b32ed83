"""The interface of an owner towards a new instance, and the limit for how long the owner waits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from kubeproxy.daemon.takeover.protocol import Order
from kubeproxy.daemon.takeover.serves_enough import Offer
from kubeproxy.dataplane.interface import Entrances
from kubeproxy.dataplane.messages import RestoreBindings

HOLD_S: Final = 60.0
"""How long a new instance may keep the owner from its rules, in all."""


class Owner(Protocol):
    """What the owner of the node does for a new instance, for an operator's command, and for itself when rules change.
    It is the daemon, which this folder must not import."""

    def share(self, on: bool) -> None:
        """Let another process hold the same node ports, or stop letting it."""

    async def hold(self, on: bool) -> None:
        """Leave the rules alone from now on, or maintain them again."""

    async def leads_here(self) -> bool:
        """Return whether the rules in the kernel still lead here. Raise KernelError when they cannot be read."""

    async def bindings(self) -> Sequence[RestoreBindings]:
        """Return the session affinity bindings."""

    async def adopt(self) -> Entrances:
        """Let a worker of another instance send its connections to ours."""

    async def yield_all(self) -> None:
        """Release what only one process can have, because the rules lead to another process."""

    def grace_s(self) -> float:
        """Return how long open connections may go on after a stop, in seconds."""

    def offer(self) -> Offer:
        """Return what this instance serves."""

    async def obey(self, order: Order) -> str | None:
        """Carry out a person's order. Return why that is not possible, or None once it is in force."""


class HoldTime:
    """The time during which a new instance keeps the owner from its rules. It is HOLD_S in all, however often the
    instance begins."""

    def __init__(self, patience: asyncio.Timeout) -> None:
        """`patience` is the timeout around everything that the new instance can prolong."""
        self._patience = patience
        self._left_s = HOLD_S

    @property
    def lasts(self) -> bool:
        """Return whether the hold has begun, and has not ended."""
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
