"""Faults in objects: the field, the value found, and the values allowed."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

_SHOWN = 80
MOST_FAULTS = 20
"""The largest number of faults of one object that are reported in full."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A field of an object that is invalid, so that this part of the object is not served."""

    path: str
    """The path of the field, such as ``spec.ports[1].port``."""
    message: str
    """A text with the value found and the values allowed."""
    unsupported: bool = False
    """Whether the value is valid for an API server, and only not served by this proxy, such as SCTP, or an address of a
    family in which the Service has no cluster IP."""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class FaultList(list[Fault]):
    """The faults of one object. The first `MOST_FAULTS` are kept in full; further faults are only counted.

    So an object with a million invalid ports is reported in a few lines.
    """

    def __init__(self) -> None:
        super().__init__()
        self._more = 0

    def append(self, fault: Fault) -> None:
        """Add a fault, or only count it if there are already `MOST_FAULTS`."""
        if len(self) < MOST_FAULTS:
            super().append(fault)
            return
        self._more += 1
        unsupported = fault.unsupported and (self._more == 1 or self[-1].unsupported)
        self[MOST_FAULTS:] = [Fault("object", f"and {self._more} more faults", unsupported=unsupported)]


def type_error(error: msgspec.MsgspecError) -> tuple[str, str]:
    """Return msgspec's message about a value of a wrong type, and the path of the value, such as
    ``spec.ports[1].port``. The path is empty for the object as a whole."""
    text, separator, place = str(error).rpartition(" - at `")
    if not separator:
        return str(error), ""
    return text, place.removesuffix("`").removeprefix("key in ").removeprefix("$").removeprefix(".")


def show(found: object) -> str:
    """Format a found value for a message, shortened for a log line."""
    if found is None:
        return "missing"
    text = repr(found)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(str(found))} characters)"
