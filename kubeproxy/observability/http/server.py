"""A small HTTP server for probes and scrapers that withstands any client.

A connection carries one request and has a time limit from accept to last byte. The limit covers clients that send
nothing, that send headers slowly and that do not read the answer. Beyond the limit of connections the server closes the
oldest one, so a flood of silent clients does not block probes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import socket
from collections.abc import Callable, Iterable
from typing import Final, cast

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware

from kubeproxy.model.errors import KernelError
from kubeproxy.observability.logs.ratelimit import RateLimitedLog
from kubeproxy.runtime.tasks import TaskSet

RETRY_S: Final = 5.0
"""Seconds between two attempts to bind, as in kube-proxy."""
EXPECTED_RETRY_S: Final = 0.05
"""Seconds between two attempts while the address is about to become free."""
EXPECTED_S: Final = 30.0
"""Seconds for which that is expected: longer than the takeover from a predecessor."""
CONNECTION_S: Final = 30.0
"""Time limit of a connection; Prometheus gives up after 10 s by default, kubelet's probes after 1 s."""
CONNECTIONS: Final = 64
"""Connections open at once."""
CLOSE_S: Final = 1.0
"""Seconds that pending answers get when the server closes."""
BACKLOG: Final = 128

log = structlog.get_logger(__name__)


class HttpServer:
    """Serves `routes` on one address until it is closed.

    `setting` names the configuration field of the address, for messages. With `hard_fail` a failed bind fails the start
    (kube-proxy's bindAddressHardFail); otherwise the server tries again, logs the failure once and calls `on_failure`.
    With `quiet` it logs at level debug only, because `on_failure` reports it. `dualstack`: the unspecified IPv6 address
    serves IPv4 as well, as in Go.
    """

    def __init__(
        self,
        *,
        name: str,
        host: str,
        port: int,
        routes: Iterable[web.AbstractRouteDef],
        setting: str,
        hard_fail: bool = False,
        dualstack: bool = True,
        on_failure: Callable[[str], None] | None = None,
        quiet: bool = False,
        retry_s: float = RETRY_S,
        connection_s: float = CONNECTION_S,
        connections: int = CONNECTIONS,
    ) -> None:
        self._name = name
        self._host = host
        self._port = port
        self._setting = setting
        self._hard_fail = hard_fail
        self._dualstack = dualstack
        self._on_failure = on_failure
        self._quiet = quiet
        self._retry_s = retry_s
        self._connection_s = connection_s
        self._limit = connections
        application = web.Application(middlewares=[_answer_out_of_memory(RateLimitedLog(log))])
        application.add_routes(routes)
        application.on_response_prepare.append(_one_request_per_connection)
        self._runner = web.AppRunner(
            application,
            access_log=None,
            handle_signals=False,
            lingering_time=0,
            logger=_HTTP_LOG,
            shutdown_timeout=CLOSE_S,
        )
        self._listener: asyncio.Server | None = None
        self._open: dict[_Connection, None] = {}
        self._expected_until = -math.inf
        self._retry_now = asyncio.Event()
        self._logged_reason = ""
        """Why the bind failed, as last logged."""
        self._tasks = TaskSet(self._crashed)

    @property
    def port(self) -> int | None:
        """The port on which it listens; None while it does not."""
        if self._listener is None:
            return None
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    async def start(self) -> None:
        """Listen. If the bind fails: KernelError with `hard_fail`, else a task tries again."""
        await self._runner.setup()
        try:
            await self._listen()
        except OSError as error:
            if self._hard_fail and not self._is_expected:
                await self._runner.cleanup()
                raise KernelError(
                    f"{self._name} cannot listen on {self._address}: {_reason(error)}; "
                    f"free the address, change {self._setting}, or unset bindAddressHardFail to go on without"
                ) from error
            self._report(error)
            self._tasks.start(self._keep_trying(), name=f"{self._name}: bind {self._address}")

    def expect_port(self, within_s: float = EXPECTED_S) -> None:
        """Expect the address to become free within `within_s` seconds.

        Until then the server tries to bind often, and a failed attempt is no failure. May be called at any time, also
        before `start`.
        """
        self._expected_until = asyncio.get_running_loop().time() + within_s
        self._retry_now.set()

    @property
    def _is_expected(self) -> bool:
        return asyncio.get_running_loop().time() < self._expected_until

    async def close(self) -> None:
        """Stop listening and free the port; pending answers get a second. May be called at any time, repeatedly."""
        await self._tasks.close()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        try:
            await self._runner.cleanup()
        finally:
            for connection in list(self._open):
                connection.abort()

    async def _listen(self) -> None:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        dualstack = self._dualstack and self._host == "::"
        listening = socket.create_server(
            (self._host, self._port), family=family, backlog=BACKLOG, dualstack_ipv6=dualstack
        )
        try:
            listening.setblocking(False)
            self._listener = await asyncio.get_running_loop().create_server(self._accepted, sock=listening)
        except BaseException:
            listening.close()
            raise
        (log.debug if self._quiet else log.info)("listening", server=self._name, address=_joined(self._host, self.port))

    async def _keep_trying(self) -> None:
        while self._listener is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EXPECTED_RETRY_S if self._is_expected else self._retry_s):
                    await self._retry_now.wait()
            self._retry_now.clear()
            try:
                await self._listen()
            except OSError as error:
                self._report(error)

    def _report(self, error: OSError) -> None:
        reason = _reason(error)
        if self._is_expected:
            log.debug("waiting for address to become free", server=self._name, address=self._address)
        elif reason != self._logged_reason:
            self._logged_reason = reason
            (log.debug if self._quiet else log.error)(
                "cannot listen, trying again",
                server=self._name,
                address=self._address,
                reason=reason,
                setting=self._setting,
                retry_s=self._retry_s,
            )
            if self._on_failure is not None:
                self._on_failure(f"cannot listen on {self._address}: {reason}")

    def _accepted(self) -> asyncio.Protocol:
        server = self._runner.server
        assert server is not None, "connections are accepted between setup and cleanup only"
        connection = _Connection(server(), self._open, self._connection_s)
        if len(self._open) >= self._limit:
            next(iter(self._open)).abort()
        self._open[connection] = None
        return connection

    def _crashed(self, task: str, error: BaseException) -> None:
        log.error("background task failed", task=task, exc_info=error)

    @property
    def _address(self) -> str:
        return _joined(self._host, self._port)


class _Connection(asyncio.Protocol):
    """aiohttp's protocol with a deadline around it."""

    def __init__(self, inner: asyncio.Protocol, registry: dict[_Connection, None], lifetime_s: float) -> None:
        self._inner = inner
        self._registry = registry
        self._transport: asyncio.Transport | None = None
        self._aborted = False
        self._deadline = asyncio.get_running_loop().call_later(lifetime_s, self.abort)
        self.data_received = inner.data_received  # type: ignore[method-assign]
        self.eof_received = inner.eof_received  # type: ignore[method-assign]
        self.pause_writing = inner.pause_writing  # type: ignore[method-assign]
        self.resume_writing = inner.resume_writing  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._inner.connection_made(transport)
        if self._aborted:  # aborted before the connection was made: the loop was very late
            self._transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._deadline.cancel()
        self._registry.pop(self, None)
        self._inner.connection_lost(exc)  # type: ignore[arg-type]

    def abort(self) -> None:
        self._aborted = True
        self._deadline.cancel()
        self._registry.pop(self, None)
        if self._transport is not None:
            self._transport.abort()


def _answer_out_of_memory(limited: RateLimitedLog) -> Middleware:
    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except MemoryError:
            limited.warning("no memory for an answer", path=request.path)
            return web.Response(status=503, text="not enough memory to answer\n")

    return answer


async def _one_request_per_connection(request: web.Request, response: web.StreamResponse) -> None:
    response.force_close()
    response.headers["Connection"] = "close"


def _is_our_fault(record: logging.LogRecord) -> bool:
    """Whether a record is no fault of the client: any client could fill the log with those."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, (HttpProcessingError, ConnectionError))


_HTTP_LOG = logging.getLogger(f"{__name__}.http")
_HTTP_LOG.addFilter(_is_our_fault)


def _joined(host: str, port: int | None) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _reason(error: OSError) -> str:
    # The error of socket.create_server repeats the address.
    return os.strerror(error.errno) if error.errno is not None else str(error)
