"""``/statusz`` and ``/trace`` on the metrics port: JSON, text, and a self-contained page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from importlib.resources import files
from typing import Final, Literal

import msgspec
from aiohttp import web

from kubeproxy.model.printable import printable
from kubeproxy.observability.status import text as status_text
from kubeproxy.observability.status.document import State
from kubeproxy.observability.status.service_index import Order, Query
from kubeproxy.observability.status.status_service import StatusService
from kubeproxy.observability.status.trace_report import TraceReport, TraceRequest

Format = Literal["json", "text", "html"]

TEXT_LIMIT: Final = 200
"""How many Services are shown as text if the request has no ``limit``."""
CHUNK: Final = 64 * 1024
"""The size in bytes of each piece of a long answer."""

_HEADERS: Final = {
    # Unlike the server's other pages, this one needs its own script and style.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Vary": "Accept",
}
_TYPES: Final = {"html": "text/html", "css": "text/css", "js": "text/javascript"}

Tracer = Callable[[TraceRequest], Awaitable[TraceReport]]


def status_routes(status_service: StatusService, trace: Tracer) -> list[web.RouteDef]:
    """Return the routes of the status, its page, and the trace."""
    page = files("kubeproxy.observability.status").joinpath("page")
    assets = {name: page.joinpath(name).read_bytes() for name in ("page.html", "page.css", "page.js")}

    async def statusz(request: web.Request) -> web.StreamResponse:
        wanted = "json" if request.path.endswith(".json") else wanted_format(request.query, request.headers)
        if wanted == "html":
            return _asset(assets, "page.html")
        try:
            query = query_of(request.query)
        except ValueError as error:
            return _text(400, f"{error}\n")
        if wanted == "json":
            return await _stream_json(request, status_service, query)
        return await _as_text(status_service, query)

    async def asset(request: web.Request) -> web.Response:
        return _asset(assets, request.path.rpartition("/")[2])

    async def traced(request: web.Request) -> web.Response:
        try:
            wanted = TraceRequest.of(
                to=request.query.get("to", ""),
                source=request.query.get("from", ""),
                protocol=request.query.get("protocol", ""),
            )
        except ValueError as error:
            return _text(400, f"{error}\n")
        report = await trace(wanted)
        return web.Response(body=msgspec.json.encode(report), headers={**_HEADERS, "Content-Type": "application/json"})

    return [
        web.get("/statusz", statusz),
        web.get("/statusz.json", statusz),
        web.get("/statusz/page.css", asset),
        web.get("/statusz/page.js", asset),
        web.get("/trace", traced),
    ]


def wanted_format(query: Mapping[str, str], headers: Mapping[str, str]) -> Format:
    """Return the format asked for by the ``format`` parameter, or else by the Accept header, so that browsers get the
    page and curl the text."""
    match query.get("format", ""):
        case "json":
            return "json"
        case "text":
            return "text"
        case "html":
            return "html"
    accepted = headers.get("Accept", "").lower()
    found: dict[Format, int] = {kind: accepted.find(media) for kind, media in _MEDIA.items() if media in accepted}
    return min(found, key=lambda kind: found[kind], default="text")


_MEDIA: Final[Mapping[Format, str]] = {"json": "application/json", "html": "text/html", "text": "text/plain"}


def query_of(query: Mapping[str, str]) -> Query:
    """Parse the query of a request. Raise ValueError if it is invalid, with what was found and what is allowed."""
    order = query.get("sort", Order.PROBLEMS)
    if order not in set(Order):
        raise ValueError(f"sort={order}: allowed are {', '.join(Order)}")
    states = [state for state in query.get("state", "").split(",") if state]
    for state in states:
        if state not in set(State):
            raise ValueError(f"state={state}: allowed are {', '.join(State)}")
    limit = _number(query, "limit", -1)
    return Query(
        service=query.get("service", ""),
        namespace=query.get("namespace", ""),
        search=query.get("search", ""),
        states=frozenset(map(State, states)),
        order=Order(order),
        offset=_number(query, "offset", 0),
        limit=None if limit < 0 else limit,
    )


def _number(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise ValueError(f"{name}={text}: allowed is a number, 0 or more")
    return int(text)


async def _stream_json(request: web.Request, status_service: StatusService, query: Query) -> web.StreamResponse:
    """Send the answer in pieces, because ten thousand Services take some 10 MB."""
    head, services = await status_service.ask(query)
    response = web.StreamResponse(headers={**_HEADERS, "Content-Type": "application/json"})
    await response.prepare(request)
    if request.method == "HEAD":
        return response
    text = msgspec.json.encode(head)
    # The list of Services is the last field of the text, and is still empty here.
    piece, separator = bytearray(text.removesuffix(b"]}")), b""
    async for service in services:
        piece += separator + msgspec.json.encode(service)
        separator = b","
        if len(piece) >= CHUNK:
            await response.write(bytes(piece))
            piece.clear()
    await response.write(bytes(piece + b"]}"))
    await response.write_eof()
    return response


async def _as_text(status_service: StatusService, query: Query) -> web.Response:
    if not query.service:
        limited = replace(query, limit=TEXT_LIMIT) if query.limit is None else query
        return _text(200, _lines(status_text.summary(await status_service.whole(limited))))
    status = await status_service.whole(query)
    if not status.services:
        return _text(404, _lines([status.hint]))
    blocks = [_lines(status_text.details(service)) for service in status.services]
    return _text(200, "\n".join(blocks))


def _lines(texts: Iterable[str]) -> str:
    return "".join(f"{printable(text)}\n" for text in texts)


def _asset(assets: Mapping[str, bytes], name: str) -> web.Response:
    kind = _TYPES[name.rpartition(".")[2]]
    return web.Response(body=assets[name], headers={**_HEADERS, "Content-Type": f"{kind}; charset=utf-8"})


def _text(status: int, text: str) -> web.Response:
    return web.Response(
        status=status, body=text.encode(), headers={**_HEADERS, "Content-Type": "text/plain; charset=utf-8"}
    )
