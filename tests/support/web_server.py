"""A web server on loopback that answers as a test wants it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class WebServer:
    """Its address, what it does with the next requests (the last one goes on), and those that came."""

    def __init__(self) -> None:
        self.url = ""
        self.handlers: list[Handler] = []
        self.seen: list[web.Request] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        self.seen.append(request)
        return await (self.handlers.pop(0) if len(self.handlers) > 1 else self.handlers[0])(request)


@asynccontextmanager
async def web_server() -> AsyncIterator[WebServer]:
    """A server that listens."""
    server = WebServer()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield server
    finally:
        await runner.cleanup()
