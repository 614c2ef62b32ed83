"""How new connections are spread over the endpoints of a Service."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Scheduler(StrEnum):
    """Which endpoint a new connection gets."""

    ROUND_ROBIN = "round-robin"
    """Each in turn."""
    RANDOM = "random"
    """A draw for each."""


class Balancing(NamedTuple):
    """How new connections are spread. Passes whole from the Service to the workers."""

    scheduler: Scheduler = Scheduler.ROUND_ROBIN


ROUND_ROBIN = Balancing()
"""What holds where nothing is asked for."""
