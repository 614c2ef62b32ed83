"""The state of a reflector, for status and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """What a reflector is doing."""

    LISTING = "listing"
    WATCHING = "watching"
    WAITING = "waiting"
    """It waits for the next attempt after a failed request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReflectorState:
    """The state of a reflector at one moment. Times are Unix seconds, or None for never."""

    resource: str
    """The resource's name, such as ``services`` or ``endpointslices``."""
    phase: Phase
    resource_version: str
    """The last resourceVersion that was seen, or empty before the first list."""
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
    """The number of objects that are left out because of the memory limit (see `memory_bound`)."""
    kept_bytes: int
    """The total size of all kept objects, in bytes of JSON."""
    behind_s: float
    """For how many seconds changes may have been missed. It is 0 while a watch works."""
