"""A small HTTP server for probes and scrapers, which no client can hurt.

One request per connection, and so many seconds for it from the accept to the last byte: that one rule holds for clients
that say nothing, that drip their headers and that do not read the answer. What a flood of connections costs, and which
of them stay, `admission` decides by the clients' addresses; which requests are answered, `access`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import os
import socket
import struct
import time
from collections.abc import Callable, Iterable
from typing import Final, cast

import structlog
from aiohttp import web, web_response
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware

from kubeproxy.model.errors import KernelError
from kubeproxy.observability.http.accept_queues import open_queues
from kubeproxy.observability.http.access import Access, is_loopback
from kubeproxy.observability.http.admission import Admission, Kept, sharer
from kubeproxy.observability.logs.ratelimit import RateLimitedLog
from kubeproxy.runtime.tasks import TaskSet

RETRY_S: Final = 5.0
"""How often a failed bind is tried again, as in kube-proxy."""
EXPECTED_RETRY_S: Final = 0.05
"""How often while the address is expected to become free: whoever gives it away is a moment from doing so."""
EXPECTED_S: Final = 30.0
"""How long it is expected to: beyond what a predecessor may take for handing everything over."""
CONNECTION_S: Final = 30.0
"""How long a connection may last; Prometheus gives up after 10 s by default, kubelet's probes after 1 s."""
CONNECTIONS: Final = 64
"""How many connections may be open at once."""
CLOSE_S: Final = 1.0
"""How long answers may still take when the server closes."""
ACCEPTED_AT_ONCE: Final = 64
"""Connections accepted of one queue in one turn of the loop: a flood delays other work by about a millisecond."""
FULL_PAUSE_S: Final = 0.1
"""How long nothing is accepted when the process has no descriptor or memory for a connection."""
SERVER: Final = "kubeproxy"
"""The `Server` header: no versions, which only help an attacker choose."""
# aiohttp has no setting for it, and its answers to garbage pass no hook.
web_response.SERVER_SOFTWARE = SERVER  # type: ignore[attr-defined]
HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""On every answer, unless the page sets its own: browsers neither guess a type, nor frame it, nor keep it."""
_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER: on, 0 s. A close then resets the connection, and leaves nothing behind in the kernel."""
_AGAIN: Final = frozenset({errno.ECONNABORTED, errno.EINTR, errno.EPROTO, errno.EPERM})
"""The connection that was to be accepted has gone; the next may be fine."""

log = structlog.get_logger(__name__)


class HttpServer:
    """Serves `routes` on one address until it is closed.

    `setting` names the configuration field that holds the address, for messages. With `hard_fail` an address that
    cannot be had fails the start (kube-proxy's bindAddressHardFail); otherwise it is tried again until it can, which
    is said in the log and to `on_failure`, once. With `quiet` the log says so only when debugging: the owner of
    `on_failure` tells it better. `dualstack`: the unspecified IPv6 address takes IPv4 as well, as in Go. `alone`: with
    one socket instead of several queues (see `open_queues`). `on_refused` is called for each connection that is one too
    many of its address. `access` says which requests are answered; without it all are.
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
        alone: bool = False,
        on_refused: Callable[[], None] | None = None,
        access: Access | None = None,
        admission: Admission | None = None,
    ) -> None:
        self._name = name
        self._host = host
        self._port = port
        self._setting = setting
        self._hard_fail = hard_fail
        self._dualstack = dualstack
        self._on_failure = on_failure
        self._quiet = quiet
        self._alone = alone
        self._on_refused = on_refused
        self._retry_s = retry_s
        self._connection_s = connection_s
        self._limited = RateLimitedLog(log)
        middlewares = [_within_memory(self._limited), *([_only(access)] if access is not None else [])]
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
        self._nudged = asyncio.Event()
        self._complaint = ""
        """Why the address cannot be had, as it was last said."""
        self._tasks = TaskSet(self._crashed)

    @property
    def port(self) -> int | None:
        """The port it listens on; None while it could not be had."""
        if not self._queues:
            return None
        port: int = self._queues[0].getsockname()[1]
        return port

    async def start(self) -> None:
        """Listen. KernelError with `hard_fail` when the address cannot be had; else it is tried again by itself."""
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
            self._complain(error)
            self._tasks.start(self._keep_trying(), name=f"{self._name}: bind {self._address}")

    def expect_port(self, within_s: float = EXPECTED_S) -> None:
        """Whoever has the address is about to give it away: until it is had, but for `within_s` seconds at most, it is
        tried at a quick pace, and that it is not free is no failure. May be called before `start`, and at any time."""
        self._expected_until = asyncio.get_running_loop().time() + within_s
        self._nudged.set()

    @property
    def _is_expected(self) -> bool:
        return asyncio.get_running_loop().time() < self._expected_until

    async def close(self) -> None:
        """Stop listening, at which the port is free for another; running answers get a second to end. May be called at
        any time, and more than once."""
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
        (log.debug if self._quiet else log.info)("listening", server=self._name, address=_joined(self._host, self.port))

    async def _keep_trying(self) -> None:
        while not self._queues:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EXPECTED_RETRY_S if self._is_expected else self._retry_s):
                    await self._nudged.wait()
            self._nudged.clear()
            try:
                await self._listen()
            except OSError as error:
                self._complain(error)

    def _complain(self, error: OSError) -> None:
        reason = _reason(error)
        if self._is_expected:
            log.debug("waits for an address that is to become free", server=self._name, address=self._address)
        elif reason != self._complaint:
            self._complaint = reason
            (log.debug if self._quiet else log.error)(
                "cannot listen, goes on trying",
                server=self._name,
                address=self._address,
                reason=reason,
                setting=self._setting,
                retry_s=self._retry_s,
            )
            if self._on_failure is not None:
                self._on_failure(f"cannot listen on {self._address}: {reason}")

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
        """Take those who wait, but not so many that other work waits."""
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
        who = sharer(address)
        try:
            local = is_loopback(address) or address == client.getsockname()[0]
            if self._admission.admit(who, time.monotonic(), local=local):
                client.setblocking(False)
                self._tasks.start(self._serve(client, who, local), name=f"{self._name}: connection")
                return
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        except OSError:  # it has gone already
            client.close()
            return
        client.close()
        if self._on_refused is not None:
            self._on_refused()
        self._limited.warning("connections refused: too many per second", key=who, server=self._name, client=who)

    async def _serve(self, client: socket.socket, who: str, local: bool) -> None:
        server = self._runner.server
        assert server is not None, "connections are accepted between setup and cleanup only"
        connection = _Connection(server(), lambda it: self._open.remove(who, it), self._connection_s)
        self._open.add(who, connection, local=local)
        if (surplus := self._open.surplus()) is not None:
            surplus.abort()
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, client)
        except OSError:  # it has gone already
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
        """`on_end` is called when it counts no more, maybe more than once."""
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
        if self._aborted:  # before it was made: a loop that is very late
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


def _within_memory(limited: RateLimitedLog) -> Middleware:
    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except MemoryError:
            limited.warning("there is not enough memory to answer", path=request.path)
            return web.Response(status=503, text="there is not enough memory to answer\n")

    return answer


def _only(access: Access) -> Middleware:
    """Answer what `access` allows, and refuse the rest before any page sees it."""

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


def from_loopback(request: web.Request) -> bool:
    """Whether a client asks from this host, by its loopback address."""
    if request.transport is None:  # it has gone
        return False
    address, *_ = request.transport.get_extra_info("peername") or ("",)
    return is_loopback(address)


async def _set_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.force_close()
    response.headers["Connection"] = "close"
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)


def _worth_telling(record: logging.LogRecord) -> bool:
    """Not what clients send: whoever can reach the port could fill the log with it."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, (HttpProcessingError, ConnectionError))


_HTTP_LOG = logging.getLogger(f"{__name__}.http")
_HTTP_LOG.addFilter(_worth_telling)


def _joined(host: str, port: int | None) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _reason(error: OSError) -> str:
    # The text of socket.create_server repeats the address.
    return os.strerror(error.errno) if error.errno is not None else str(error)
