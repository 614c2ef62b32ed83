"""Faults that a test can inject."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Break(StrEnum):
    """The ways to break an open watch."""

    END = "end"
    """The watch ends normally."""
    CUT = "cut"
    """The connection is closed without a terminating chunk, as by a killed server."""
    RESET = "reset"
    """The connection is reset."""
    HALF_LINE = "half-line"
    """Half an event, then cut."""
    HALF_LINE_END = "half-line-end"
    """Half an event, then a normal end."""
    GARBAGE = "garbage"
    """A line that is not JSON; the watch continues."""
    EMPTY_LINES = "empty-lines"
    """Empty lines; the watch continues."""
    UNKNOWN_TYPE = "unknown-type"
    """An event of an unknown type; the watch continues."""
    OLD_EVENT = "old-event"
    """A change of the first object, with an older version than all others; the watch continues."""
    WRONG_KIND = "wrong-kind"
    """An event of another kind of object; the watch continues."""
    DEEP = "deep"
    """An event nested a hundred thousand levels deep; the watch continues."""
    ERROR_410 = "error-410"
    ERROR_500 = "error-500"
    STALL = "stall"
    """The server sends nothing more, and keeps the connection open."""
    FLOOD = "flood"
    """The first object changes ten thousand times a second for five seconds; the watch continues."""
    ENDLESS_LINE = "endless-line"
    """An endless line."""


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer to matching requests, instead of the true one."""

    kind: str = "status"
    """``status``: answer `status`; ``drop``: close without an answer; ``reset``: the same with a RST; ``hang``: never
    answer; ``endless``: a list with endless items; ``pages``: a list with endless pages; ``cut``: half the answer, then
    close; ``slow``: the true answer after `delay_s`."""
    path: str = ""
    """The beginning of the path."""
    watch: bool | None = None
    """True: only watches; False: only others; None: both."""
    query: str = ""
    """A part of the query string."""
    times: int = 1
    """Number of times; -1: until the faults are cleared."""
    status: int = 500
    body: str = ""
    """Empty: a Status object of that code."""
    content_type: str = "application/json"
    retry_after: str = ""
    delay_s: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in ("status", "drop", "reset", "hang", "endless", "pages", "cut", "slow"):
            raise ValueError(f"unknown fault {self.kind!r}")

    def hits(self, path: str, query: str, watch: bool) -> bool:
        """Whether a request matches."""
        return path.startswith(self.path) and self.query in query and self.watch in (None, watch) and self.times != 0
