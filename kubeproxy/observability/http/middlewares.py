"""Middlewares between a request and its page: they refuse requests before the page, and set headers after it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web, web_response
from aiohttp.typedefs import Handler, Middleware

from kubeproxy.observability.http.access import Access, is_loopback
from kubeproxy.observability.logs.ratelimit import RateLimitedLog

SERVER: Final = "kubeproxy"
"""The ``Server`` header. It has no versions, which would help an attacker."""
# aiohttp has no setting for this header, and no hook sees its answers to malformed requests.
web_response.SERVER_SOFTWARE = SERVER  # type: ignore[attr-defined]
HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""The headers of every answer, unless the page sets its own. They keep browsers from guessing types, framing pages and
caching them."""

Gate = Callable[[web.Request], Awaitable[web.Response | None]]
"""A function that returns an answer to send instead of the page, or None to let the page answer."""


def answer_out_of_memory(limited: RateLimitedLog) -> Middleware:
    """Return a middleware that answers 503 if there is no memory for a page."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except MemoryError:
            limited.warning("no memory for an answer", path=request.path)
            return web.Response(status=503, text="not enough memory to answer\n")

    return answer


def only(access: Access) -> Middleware:
    """Return a middleware that refuses the requests that `access` does not allow."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        refusal = access.refusal(
            resource.canonical if resource is not None else None,
            request.headers.getall("Host", ()),
            from_loopback=from_loopback(request),
        )
        if refusal is None:
            return await handler(request)
        return web.Response(status=refusal.status, text=refusal.text)

    return answer


def behind(gate: Gate) -> Middleware:
    """Return a middleware that answers with the result of the gate, or by the page if that is None."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        refused = await gate(request)
        return refused if refused is not None else await handler(request)

    return answer


def from_loopback(request: web.Request) -> bool:
    """Return whether the client connects from a loopback address."""
    if request.transport is None:  # The client has disconnected.
        return False
    address, *_ = request.transport.get_extra_info("peername") or ("",)
    return is_loopback(address)


async def set_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Set the headers of every answer, and end the connection after it."""
    response.force_close()
    response.headers["Connection"] = "close"
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
