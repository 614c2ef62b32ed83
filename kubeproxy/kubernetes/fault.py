"""A fault in an object: the field, what was found, what is allowed. Pure."""

from __future__ import annotations

from dataclasses import dataclass

_SHOWN = 80
MOST_FAULTS = 20
"""Faults of one object that are reported in full."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something in an object that is not served."""

    path: str
    """The field, like ``spec.ports[1].port``."""
    message: str
    """What was found, what is allowed."""
    unsupported: bool = False
    """An API server would have taken it, only this proxy does not serve it (SCTP, an address of a family that the
    Service has no cluster IP of): no mistake of the object's author."""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class FaultList(list[Fault]):
    """The faults of one object as they are found: the first `MOST_FAULTS`, and how many more there are. An object of a
    million faulty ports is one mistake of somebody's, to be told in a few lines."""

    def __init__(self) -> None:
        super().__init__()
        self._more = 0

    def append(self, fault: Fault) -> None:
        """One more."""
        if len(self) < MOST_FAULTS:
            super().append(fault)
            return
        self._more += 1
        unsupported = fault.unsupported and (self._more == 1 or self[-1].unsupported)
        self[MOST_FAULTS:] = [Fault("object", f"and {self._more} more faults", unsupported=unsupported)]


def show(found: object) -> str:
    """What was found, short enough for a log line."""
    if found is None:
        return "missing"
    text = repr(found)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(str(found))} characters)"
