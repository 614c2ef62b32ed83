"""The state of a reflector as a value, for the status and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """The activity of a reflector."""

    LISTING = "listing"
    WATCHING = "watching"
    WAITING = "waiting"
    """A request failed; the next try follows after a delay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReflectorState:
    """A reflector at one moment. Times are Unix seconds, and None stands for never."""

    resource: str
    """The resource's name, such as ``services`` or ``endpointslices``."""
    phase: Phase
    resource_version: str
    """The last version that was seen. It is empty before the first list."""
    last_list: float | None
    last_event: float | None
    lists: int
    watches: int
    events: int
    failures: Mapping[str, int]
    """The number of failures by cause."""
    last_error: str
    faulty: int
    """The number of objects with a part that cannot be served."""
    left_out: int
    """The number of objects that are not served because all together exceed the memory limit (see `memory_bound`)."""
    kept_bytes: int
    """The size of all kept objects, in bytes of JSON."""
    behind_s: float
    """For how long changes may have been missed. It is 0 while a watch works."""
