"""A fault in an object: the field, the value found, the values allowed."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

_SHOWN = 80
MOST_FAULTS = 20
"""How many faults of one object are reported in full."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A part of an object that is not served, with the reason."""

    path: str
    """The path of the field, like ``spec.ports[1].port``."""
    message: str
    """The value found, and the values allowed."""
    unsupported: bool = False
    """Whether an API server accepts the value, and only this proxy does not serve it (SCTP, or an address of a family
    in which the Service has no cluster IP). It is then no mistake of the object's author."""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class FaultList(list[Fault]):
    """The faults of one object: the first `MOST_FAULTS` in full, the rest as a count.

    An object with a million faulty ports has one cause, and is reported in a few lines.
    """

    def __init__(self) -> None:
        super().__init__()
        self._more = 0

    def append(self, fault: Fault) -> None:
        """Add a fault, or count it beyond `MOST_FAULTS`."""
        if len(self) < MOST_FAULTS:
            super().append(fault)
            return
        self._more += 1
        unsupported = fault.unsupported and (self._more == 1 or self[-1].unsupported)
        self[MOST_FAULTS:] = [Fault("object", f"and {self._more} more faults", unsupported=unsupported)]


def type_error(error: msgspec.MsgspecError) -> tuple[str, str]:
    """Return msgspec's message about a value of a wrong type, and the value's path (``spec.ports[1].port``). The path
    is empty for the object as a whole."""
    text, separator, place = str(error).rpartition(" - at `")
    if not separator:
        return str(error), ""
    return text, place.removesuffix("`").removeprefix("key in ").removeprefix("$").removeprefix(".")


def show(found: object) -> str:
    """Return the value found, short enough for a log line."""
    if found is None:
        return "missing"
    text = repr(found)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(str(found))} characters)"
