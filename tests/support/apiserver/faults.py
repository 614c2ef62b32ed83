"""Faults that a test can inject."""

from __future__ import annotations

import asyncio
from enum import StrEnum

import msgspec
from aiohttp import web

from tests.support.apiserver.answers import hang_up, status


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
    method: str = ""
    """Empty: any."""
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
    carried_out: bool = False
    """Whether the request takes effect all the same."""

    def __post_init__(self) -> None:
        if self.kind not in ("status", "drop", "reset", "hang", "endless", "pages", "cut", "slow"):
            raise ValueError(f"unknown fault {self.kind!r}")

    def hits(self, method: str, path: str, query: str, watch: bool) -> bool:
        """Whether a request matches."""
        fits = self.method in ("", method) and self.watch in (None, watch) and self.times != 0
        return fits and path.startswith(self.path) and self.query in query


async def misbehave(request: web.Request, fault: Fault, *, turn: int) -> web.StreamResponse:
    """Do what a fault says instead of answering. `turn`: another number each time."""
    match fault.kind:
        case "drop" | "reset":
            hang_up(request, reset=fault.kind == "reset")
        case "hang":
            await asyncio.Event().wait()
        case "pages":
            token = f"{len(request.query.get('continue', ''))}-{turn}"
            items = [{"metadata": {"name": f"s-{token}-{number}", "namespace": "demo"}} for number in range(500)]
            page = {"kind": "ServiceList", "metadata": {"resourceVersion": "1", "continue": token}, "items": items}
            return web.json_response(page)
        case "endless":
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            await response.prepare(request)
            await response.write(
                b'{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[{}'
            )
            while True:
                await response.write(b',{"metadata":{}}' * 4096)
    headers = {"Retry-After": fault.retry_after} if fault.retry_after else {}
    body = fault.body.encode(errors="surrogateescape")
    text = body or msgspec.json.encode(status(fault.status, "injected")) + b"\n"
    return web.Response(status=fault.status, body=text, headers={**headers, "Content-Type": fault.content_type})


async def answer_half(request: web.Request, response: web.Response) -> web.StreamResponse:
    """Send half of an answer, then hang up."""
    assert isinstance(response.body, bytes)
    half = web.StreamResponse(status=response.status, headers={"Content-Type": response.content_type})
    half.content_length = len(response.body)
    await half.prepare(request)
    await half.write(response.body[: len(response.body) // 2])
    hang_up(request)
    return half
