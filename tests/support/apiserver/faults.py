"""What can be made to go wrong."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Break(StrEnum):
    """How an open watch is disturbed."""

    END = "end"
    """It ends in good order."""
    CUT = "cut"
    """The connection is closed without a terminating chunk, as by a killed server."""
    RESET = "reset"
    """The connection is reset."""
    HALF_LINE = "half-line"
    """Half an event, then cut."""
    HALF_LINE_END = "half-line-end"
    """Half an event, then an end in good order."""
    GARBAGE = "garbage"
    """A line that is no JSON; the watch goes on."""
    EMPTY_LINES = "empty-lines"
    """Lines with nothing in them; the watch goes on."""
    UNKNOWN_TYPE = "unknown-type"
    """An event of a type that nobody knows; the watch goes on."""
    OLD_EVENT = "old-event"
    """A change of the first object, with a version from before everything; the watch goes on."""
    WRONG_KIND = "wrong-kind"
    """An event of another kind of object; the watch goes on."""
    DEEP = "deep"
    """An event nested a hundred thousand levels deep; the watch goes on."""
    ERROR_410 = "error-410"
    ERROR_500 = "error-500"
    STALL = "stall"
    """Nothing more is sent, though the connection stays open."""
    FLOOD = "flood"
    """The first object changes to and fro, ten thousand times a second for five seconds; the watch goes on."""
    ENDLESS_LINE = "endless-line"
    """A line that does not end."""


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happens to the requests that match, instead of an answer."""

    kind: str = "status"
    """``status``: answer `status`; ``drop``: close without an answer; ``reset``: the same with a RST; ``hang``: never
    answer; ``endless``: a list whose items go on for ever; ``pages``: a list of one page after
    another, for ever; ``cut``: half the answer, then close; ``slow``: the true
    answer after `delay_s`."""
    path: str = ""
    """Begin of the path."""
    watch: bool | None = None
    """Only watches, only others; None: both."""
    query: str = ""
    """Part of the query string."""
    times: int = 1
    """How often; -1: until the faults are cleared."""
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
        """Whether a request is concerned."""
        return path.startswith(self.path) and self.query in query and self.watch in (None, watch) and self.times != 0
