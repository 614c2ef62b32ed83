"""What an owner does for a new instance, and how long it waits for one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from kubeproxy.daemon.takeover.protocol import Order
from kubeproxy.daemon.takeover.serves_enough import Offer
from kubeproxy.dataplane.messages import RestoreBindings

HOLD_S: Final = 60.0
"""How long a new instance may keep the owner from its rules, in all."""


@dataclass(frozen=True, slots=True)
class OwnerCallbacks:
    """What an owner does for a new instance."""

    share: Callable[[bool], None]
    """Let another process hold the same node ports, or no longer."""
    hold: Callable[[bool], Awaitable[None]]
    """Leave the rules alone from now on, or maintain them again."""
    leads_here: Callable[[], Awaitable[bool]]
    """Whether the rules in the kernel still lead to us. KernelError when they cannot be read."""
    bindings: Callable[[], Awaitable[Sequence[RestoreBindings]]]
    """The clients of session affinity."""
    yield_all: Callable[[], Awaitable[None]]
    """Release what only one process can have; the rules are another's."""
    grace_s: Callable[[], float]
    """How long open connections may go on after a stop, in seconds."""
    offer: Callable[[], Offer]
    """What this instance serves."""
    obey: Callable[[Order], Awaitable[str | None]]
    """Carry out a person's order; why it cannot be, or None."""


class HoldTime:
    """The time during which a new instance keeps the owner from its rules: HOLD_S in all, however often it begins."""

    def __init__(self, patience: asyncio.Timeout) -> None:
        """`patience`: around everything that the new instance can draw out."""
        self._patience = patience
        self._left_s = HOLD_S

    @property
    def lasts(self) -> bool:
        """Whether it has begun, and not ended."""
        return self._patience.when() is not None

    def begin(self) -> None:
        """Measure the time from now on."""
        if not self.lasts:
            self._patience.reschedule(asyncio.get_running_loop().time() + self._left_s)

    def end(self) -> None:
        """Measure no longer."""
        if (until := self._patience.when()) is not None:
            self._left_s = until - asyncio.get_running_loop().time()
            self._patience.reschedule(None)
