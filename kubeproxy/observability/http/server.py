"""A small HTTP server for probes and scrapers that withstands any client.

A connection carries one request and has a time limit from accept to last byte. The limit covers clients that send
nothing, that send headers slowly and that do not read the answer. In a flood of connections, `admission` decides by the
clients' addresses which ones stay; `access` decides which requests are answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import os
import socket
import ssl
import struct
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, cast

import structlog
from aiohttp import web, web_response
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware

from kubeproxy.model.errors import KernelError
from kubeproxy.observability.http.access import Access, is_loopback
from kubeproxy.observability.http.admission import Admission, Kept, client_key
from kubeproxy.observability.http.listen_sockets import open_queues
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
HANDSHAKE_S: Final = 10.0
"""Time limit of a TLS handshake."""
CONNECTIONS: Final = 64
"""Connections open at once."""
CLOSE_S: Final = 1.0
"""Seconds that pending answers get when the server closes."""
ACCEPTED_AT_ONCE: Final = 64
"""Connections accepted from one queue per turn of the loop: a flood delays other work by about a millisecond."""
FULL_PAUSE_S: Final = 0.1
"""Seconds without accept when the process has no descriptor or memory for a connection."""
SERVER: Final = "kubeproxy"
"""The ``Server`` header, without versions, which would help an attacker."""
# aiohttp has no setting for it, and no hook sees its answers to garbage.
web_response.SERVER_SOFTWARE = SERVER  # type: ignore[attr-defined]
HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Headers of every answer, unless the page sets its own: browsers do not guess types, frame pages or cache them."""
_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER: on, 0 s. Closing then resets the connection, and the kernel keeps no state."""
_AGAIN: Final = frozenset({errno.ECONNABORTED, errno.EINTR, errno.EPROTO, errno.EPERM})
"""Errors of a connection that ended before accept; the next one may work."""

Gate = Callable[[web.Request], Awaitable[web.Response | None]]
"""Answers requests that a page must not answer."""

log = structlog.get_logger(__name__)


class HttpServer:
    """Serves `routes` on one address until it is closed.

    `setting` names the configuration field of the address, for messages. With `hard_fail` a failed bind fails the start
    (kube-proxy's bindAddressHardFail); otherwise the server tries again, logs the failure once and calls `on_failure`.
    `on_listening` is called when it listens. With `quiet` it logs at level debug only, because `on_failure` reports it.
    `dualstack`: the unspecified IPv6 address serves IPv4 as well, as in Go. `alone`: one socket instead of several
    queues (see `open_queues`). `on_refused` is called for each connection beyond the limit of its address. `holder_of`
    names the process that has an address. `access` decides which requests are answered; without it all are. `gate` is
    asked after it, and answers a request in place of its page, or returns None. `tls` gives the context of each
    handshake; without it the server speaks plain HTTP.
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
        on_listening: Callable[[], None] | None = None,
        quiet: bool = False,
        retry_s: float = RETRY_S,
        connection_s: float = CONNECTION_S,
        connections: int = CONNECTIONS,
        alone: bool = False,
        on_refused: Callable[[], None] | None = None,
        access: Access | None = None,
        gate: Gate | None = None,
        tls: Callable[[], ssl.SSLContext] | None = None,
        admission: Admission | None = None,
        holder_of: Callable[[str, int], str] = lambda host, port: "",
    ) -> None:
        self._name = name
        self._host = host
        self._port = port
        self._setting = setting
        self._hard_fail = hard_fail
        self._dualstack = dualstack
        self._on_failure = on_failure
        self._on_listening = on_listening
        self._quiet = quiet
        self._alone = alone
        self._on_refused = on_refused
        self._holder_of = holder_of
        self._retry_s = retry_s
        self._connection_s = connection_s
        self._limited = RateLimitedLog(log)
        self._tls = tls
        middlewares = [_answer_out_of_memory(self._limited)]
        if access is not None:
            middlewares.append(_only(access))
        if gate is not None:
            middlewares.append(_behind(gate))
        application = web.Application(middlewares=middlewares)
        application.add_routes(routes)
        application.on_response_prepare.append(_set_headers)
        self._runner = web.AppRunner(
            application,
            access_log=None,
            handle_signals=False,
            lingering_time=0,
            logger=_HTTP_LOG,
            shutdown_timeout=CLOSE_S,
        )
        self._queues: list[socket.socket] = []
        self._admission = admission or Admission()
        self._open: Kept[_Connection] = Kept(connections)
        self._pause: asyncio.TimerHandle | None = None
        self._expected_until = -math.inf
        self._retry_now = asyncio.Event()
        self._logged_reason = ""
        """Why the bind failed, as last logged."""
        self._tasks = TaskSet(self._crashed)

    @property
    def port(self) -> int | None:
        """The port on which it listens; None while it does not."""
        if not self._queues:
            return None
        port: int = self._queues[0].getsockname()[1]
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
                    f"{self._name} cannot listen on {self._address}: {self._reason(error)}; "
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
        self._stop_accepting()
        await self._tasks.close()
        try:
            await self._runner.cleanup()
        finally:
            for connection in list(self._open):
                connection.abort()

    async def _listen(self) -> None:
        self._queues = open_queues(
            self._host, self._port, dualstack=self._dualstack and self._host == "::", alone=self._alone
        )
        self._accept_from_now()
        if self._on_listening is not None:
            self._on_listening()
        (log.debug if self._quiet else log.info)("listening", server=self._name, address=_joined(self._host, self.port))

    async def _keep_trying(self) -> None:
        while not self._queues:
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
            reason = self._reason(error)
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

    def _reason(self, error: OSError) -> str:
        """The kernel's words, and the process that has the address."""
        holder = self._holder_of(self._host, self._port) if error.errno == errno.EADDRINUSE else ""
        return f"{_reason(error)} by {holder}" if holder else _reason(error)

    def _accept_from_now(self) -> None:
        self._pause = None
        for queue in self._queues:
            asyncio.get_running_loop().add_reader(queue.fileno(), self._accept, queue)

    def _pause_accepting(self) -> None:
        for queue in self._queues:
            asyncio.get_running_loop().remove_reader(queue.fileno())
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None

    def _stop_accepting(self) -> None:
        self._pause_accepting()
        for queue in self._queues:
            queue.close()
        self._queues = []

    def _accept(self, queue: socket.socket) -> None:
        """Accept waiting connections, at most `ACCEPTED_AT_ONCE`."""
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                client, (address, *_) = queue.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _AGAIN:
                    continue
                self._limited.warning("cannot accept connections", server=self._name, reason=_reason(error))
                self._pause_accepting()
                self._pause = asyncio.get_running_loop().call_later(FULL_PAUSE_S, self._accept_from_now)
                return
            self._take(client, address)

    def _take(self, client: socket.socket, address: str) -> None:
        key = client_key(address)
        try:
            local = is_loopback(address) or address == client.getsockname()[0]
            if self._admission.admit(key, time.monotonic(), local=local):
                client.setblocking(False)
                self._tasks.start(self._serve(client, key, local), name=f"{self._name}: connection")
                return
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        except OSError:  # the client has already disconnected
            client.close()
            return
        client.close()
        if self._on_refused is not None:
            self._on_refused()
        self._limited.warning("connections refused: too many per second", key=key, server=self._name, client=key)

    async def _serve(self, client: socket.socket, key: str, local: bool) -> None:
        server = self._runner.server
        assert server is not None, "connections are accepted between setup and cleanup only"
        connection = _Connection(server(), lambda it: self._open.remove(key, it), self._connection_s)
        self._open.add(key, connection, local=local)
        if (surplus := self._open.surplus()) is not None:
            surplus.abort()
        try:
            if self._tls is None:
                await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, client)
            else:
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: connection, client, ssl=self._tls(), ssl_handshake_timeout=HANDSHAKE_S
                )
        except OSError:  # the client has already disconnected, or speaks no TLS
            connection.abort()
            client.close()
        except BaseException:
            connection.abort()
            client.close()
            raise

    def _crashed(self, task: str, error: BaseException) -> None:
        log.error("background task failed", task=task, exc_info=error)

    @property
    def _address(self) -> str:
        return _joined(self._host, self._port)


class _Connection(asyncio.Protocol):
    """aiohttp's protocol with a deadline around it."""

    def __init__(self, inner: asyncio.Protocol, on_end: Callable[[_Connection], None], lifetime_s: float) -> None:
        """`on_end` is called when the connection ends, possibly more than once."""
        self._inner = inner
        self._on_end = on_end
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
        self._on_end(self)
        self._inner.connection_lost(exc)  # type: ignore[arg-type]

    def abort(self) -> None:
        self._aborted = True
        self._deadline.cancel()
        self._on_end(self)
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


def _only(access: Access) -> Middleware:
    """Refuse requests that `access` does not allow, before any page handles them."""

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


def _behind(gate: Gate) -> Middleware:
    """Answer by the gate, if it has an answer."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        refused = await gate(request)
        return refused if refused is not None else await handler(request)

    return answer


def from_loopback(request: web.Request) -> bool:
    """Whether a client connects from a loopback address."""
    if request.transport is None:  # the client has disconnected
        return False
    address, *_ = request.transport.get_extra_info("peername") or ("",)
    return is_loopback(address)


async def _set_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.force_close()
    response.headers["Connection"] = "close"
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)


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
