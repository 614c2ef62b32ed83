"""A web server on loopback that answers as a test wants it, and any server beside a test that occupies its thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from threading import Thread
from typing import TypeVar

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
T = TypeVar("T")


class WebServer:
    """Its address, what it does with the next requests (the last one goes on), and those that came."""

    def __init__(self, *handlers: Handler) -> None:
        self.port = 0
        self.handlers = list(handlers)
        self.seen: list[web.Request] = []

    @property
    def address(self) -> str:
        """Its address and port."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """Its URL."""
        return f"http://{self.address}"

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        self.seen.append(request)
        return await (self.handlers.pop(0) if len(self.handlers) > 1 else self.handlers[0])(request)


@asynccontextmanager
async def web_server(*handlers: Handler) -> AsyncIterator[WebServer]:
    """Yield a server that listens."""
    server = WebServer(*handlers)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server.port = runner.addresses[0][1]
        yield server
    finally:
        await runner.cleanup()


@contextmanager
def in_thread(server: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """Run a server in a thread with an event loop of its own: a command of this process, or of another, asks it."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever)
    thread.start()
    try:
        entered = asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result()
        try:
            yield entered
        finally:
            asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
