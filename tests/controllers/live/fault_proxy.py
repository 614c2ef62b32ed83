"""A proxy between a controller manager and a real API server, which breaks what the test wants broken."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from random import Random
from typing import Any, Final

import aiohttp
from aiohttp import web

from tests.controllers.live.control_plane import ControlPlane

_HOP_BY_HOP: Final = frozenset({"host", "connection", "transfer-encoding", "content-length", "content-encoding"})
_JSON: Final = "application/json"
_REFUSALS: Final = {409: "Conflict", 429: "TooManyRequests", 500: "InternalError"}


class FaultProxy:
    """Forwards every request; change the attributes to break them. An async context manager."""

    def __init__(self, plane: ControlPlane, *, seed: int = 0) -> None:
        self._plane = plane
        self._random = Random(seed)
        self._watches: set[asyncio.Task[Any]] = set()
        self.refused = 0.0
        """The share of writes that are answered with 409, 429 or 500, and never reach the server."""
        self.lost = 0.0
        """The share of writes that reach the server without an answer: the connection is cut."""
        self.written: Callable[[], bool] = lambda: True
        """Called after each write that is neither a Lease nor an Event; False: cut the connection, give no answer."""
        self.late_s = 0.0
        """The longest delay of an event."""
        self.repeated = 0.0
        """The share of events that are sent twice."""
        self.expired = False
        """Whether the next watches are answered with 410."""

    @property
    def url(self) -> str:
        """The base URL, by plain HTTP."""
        return f"http://127.0.0.1:{self._port}"

    async def __aenter__(self) -> FaultProxy:
        self._session = aiohttp.ClientSession(auto_decompress=True)
        application = web.Application(client_max_size=1 << 26)
        application.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self._port: int = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut_watches()
        await self._runner.cleanup()
        await self._session.close()

    def cut_watches(self) -> None:
        """End every watch in the middle."""
        for task in list(self._watches):
            task.cancel()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("watch"):
            return await self._watch(request)
        reads = request.method == "GET"
        aside = "/leases" in request.path or "/events" in request.path
        if not reads and not aside and self._random.random() < self.refused:
            code = self._random.choice(list(_REFUSALS))
            return _status(code, _REFUSALS[code])
        try:
            async with self._forward(request, await request.read()) as answer:
                body = await answer.read()
        except aiohttp.ClientError:  # the server is away, and so is the proxy
            return _cut(request)
        if not reads and not aside:
            answers = self.written() if answer.status < 300 else True
            if not answers or self._random.random() < self.lost:
                return _cut(request)
        return web.Response(status=answer.status, body=body, content_type=answer.content_type)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        if self.expired:
            return _status(410, "Expired")
        response = web.StreamResponse(headers={"Content-Type": _JSON})
        task = asyncio.current_task()
        assert task is not None
        self._watches.add(task)
        try:
            async with self._forward(request, b"") as answer:
                if answer.status != 200:
                    return web.Response(
                        status=answer.status, body=await answer.read(), content_type=answer.content_type
                    )
                await response.prepare(request)
                async for line in answer.content:
                    await asyncio.sleep(self._random.uniform(0, self.late_s))
                    await response.write(line * (2 if self._random.random() < self.repeated else 1))
        except aiohttp.ClientError:
            return _cut(request)
        finally:
            self._watches.discard(task)
        return response

    def _forward(self, request: web.Request, body: bytes) -> Any:
        headers = {key: value for key, value in request.headers.items() if key.lower() not in _HOP_BY_HOP}
        return self._session.request(
            request.method,
            f"{self._plane.url}{request.path_qs}",
            headers={**headers, "Accept-Encoding": "identity"},
            data=body or None,
            ssl=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=5),
            max_line_size=1 << 20,
        )


def _cut(request: web.Request) -> web.Response:
    """Close the connection without an answer."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


def _status(code: int, reason: str) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code}
    return web.Response(status=code, body=json.dumps({**body, "message": reason}), content_type=_JSON)
