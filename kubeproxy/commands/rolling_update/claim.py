"""Which process updates a controller: of two updates at once, one stops.

The first write of every run is an annotation on the controller that is named first. It is written with the
resourceVersion that the run began with, so of two that begin together one is refused by the server. A later run takes
the controller over: the earlier one may be dead, which cannot be known from another machine. If it is not, it finds
that out before its next write, and stops without another change.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from secrets import token_hex

from kubeproxy.commands.rolling_update.controller import HOLDER, Controller, UpdateError
from kubeproxy.kubernetes import timestamps


class RivalError(UpdateError):
    """Another process updates the same controller."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One run's claim. `before`: the claim that it found, which it replaces; empty: none."""

    name: str
    holder: str
    before: str

    @classmethod
    def of(cls, controller: Controller, now: float) -> Claim:
        """For a run that begins with this state of the controller."""
        holder = f"{token_hex(4)} {socket.gethostname()} pid {os.getpid()} since {timestamps.seconds(now)}"
        return cls(controller.name, holder, controller.annotations.get(HOLDER, ""))

    def take(self, controller: Controller) -> None:
        """Enter it. `RivalError` where another run has done so since this one began."""
        found = controller.annotations.get(HOLDER, "")
        if found not in (self.before, self.holder):
            raise self._rival(found, "began at the same time; this one stops before it changed anything")
        controller.annotations[HOLDER] = self.holder

    def check(self, controller: Controller) -> None:
        """`RivalError` where another run has taken over."""
        found = controller.annotations.get(HOLDER, "")
        if found != self.holder:
            raise self._rival(found, "has taken over; this one stops and changes nothing further")

    def _rival(self, found: str, what: str) -> RivalError:
        which = found.partition(" ")[2] or "without a name"
        return RivalError(f"another rolling update of {self.name} ({which}) {what}")
