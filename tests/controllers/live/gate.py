"""A relay between a command and a real API server: it counts writes, refuses some, and kills the command after one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from aiohttp import ClientSession, ClientTimeout, TCPConnector, web

_KEPT = ("Content-Type", "Accept", "User-Agent")


@dataclass(slots=True)
class Gate:
    """Plain HTTP on loopback in front of a server with TLS and a token. An async context manager."""

    server: str
    token: str
    kill_after: int = 0
    """The write after which `kill` is called, before its answer is passed on; 0: never."""
    kill: Callable[[], None] = lambda: None
    conflict_every: int = 0
    """Every so manyth write is refused as a conflict; 0: none."""
    writes: list[str] = field(default_factory=list)
    """Writes that the server took: method, path."""
    _sent: int = 0
    _session: ClientSession | None = None
    _runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        self._session = ClientSession(
            connector=TCPConnector(ssl=False), timeout=ClientTimeout(60), auto_decompress=False
        )
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", self._pass_on)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        assert self._session is not None
        await self._runner.cleanup()
        await self._session.close()

    @property
    def url(self) -> str:
        """What the command gets as its server."""
        assert self._runner is not None
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        assert self._session is not None
        write = request.method != "GET" and "dryRun" not in request.query
        if write:
            self._sent += 1
            if self.conflict_every and self._sent % self.conflict_every == 0:
                status = {"kind": "Status", "reason": "Conflict", "message": "made up by the relay", "code": 409}
                return web.Response(status=409, text=json.dumps(status), content_type="application/json")
        headers = {name: request.headers[name] for name in _KEPT if name in request.headers}
        headers["Authorization"] = f"Bearer {self.token}"
        try:
            async with self._session.request(
                request.method, self.server + request.path_qs, headers=headers, data=await request.read() or None
            ) as answer:
                body = await answer.read()
        except OSError:  # the server is away: so is this one
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if write and answer.status < 300:
            self.writes.append(f"{request.method} {request.path}")
            if len(self.writes) == self.kill_after:
                self.kill()
        passed = {name: answer.headers[name] for name in ("Content-Type", "Date") if name in answer.headers}
        if "Content-Encoding" in answer.headers:
            passed["Content-Encoding"] = answer.headers["Content-Encoding"]
        return web.Response(status=answer.status, body=body, headers=passed)
