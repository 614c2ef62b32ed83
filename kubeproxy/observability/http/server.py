"""A small HTTP server for probes and scrapers that withstands any client.

A connection carries one request and has a time limit from accept to last byte. The limit stops clients that send
nothing, that send headers slowly, or that do not read the answer. In a flood of connections, `admission` decides by the
clients' addresses which ones stay; `access` decides which requests are allowed.
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
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from kubeproxy.model.errors import KernelError
from kubeproxy.observability.http.access import Access, is_loopback
from kubeproxy.observability.http.admission import Admission, Kept, client_key
from kubeproxy.observability.http.listen_sockets import open_queues
from kubeproxy.observability.http.middlewares import Gate, answer_out_of_memory, behind, only, set_headers
from kubeproxy.observability.http.timed_connection import TimedConnection
from kubeproxy.observability.logs.ratelimit import RateLimitedLog
from kubeproxy.runtime.tasks import TaskSet

RETRY_S: Final = 5.0
"""Seconds between two attempts to bind, as in kube-proxy."""
EXPECTED_RETRY_S: Final = 0.05
"""Seconds between two attempts to bind while the address is expected to become free (`expect_port`)."""
EXPECTED_S: Final = 30.0
"""For how many seconds an address is expected to become free. A takeover from a predecessor takes less."""
CONNECTION_S: Final = 30.0
"""The time limit of a connection in seconds. Prometheus gives up after 10 s by default, and the kubelet's probes after
1 s."""
HANDSHAKE_S: Final = 10.0
"""The time limit of a TLS handshake in seconds."""
CONNECTIONS: Final = 64
"""The largest number of open connections."""
CLOSE_S: Final = 1.0
"""How many seconds pending answers get when the server closes."""
ACCEPTED_AT_ONCE: Final = 64
"""The largest number of connections accepted from one queue per turn of the loop. So a flood delays other work by about
a millisecond."""
FULL_PAUSE_S: Final = 0.1
"""For how many seconds accepting stops if the process has no descriptor or memory for a connection."""
_RESET: Final = struct.pack("ii", 1, 0)
"""The value of SO_LINGER: on, with 0 s. Closing a socket then resets its connection and leaves no state in the
kernel."""
_AGAIN: Final = frozenset({errno.ECONNABORTED, errno.EINTR, errno.EPROTO, errno.EPERM})
"""The errors of accept that concern only one connection, which ended before it was accepted."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """The address at which a server listens, and what happens if it cannot."""

    name: str
    """The server's name, for messages."""
    host: str
    port: int
    setting: str
    """The configuration field that has the address, for messages."""
    hard_fail: bool = False
    """Whether a failed bind fails the start (kube-proxy's bindAddressHardFail). Otherwise the server tries again."""
    dualstack: bool = True
    """Whether the unspecified IPv6 address serves IPv4 as well, as in Go."""
    alone: bool = False
    """Whether there is one socket instead of several queues (see `open_queues`)."""
    retry_s: float = RETRY_S
    quiet: bool = False
    """Whether failures are logged only at level debug, because `on_failure` reports them."""
    on_failure: Callable[[str], None] = lambda problem: None
    """A function that is called when a bind has failed, once for each reason."""
    on_listening: Callable[[], None] = lambda: None
    holder_of: Callable[[str, int], str] = lambda host, port: ""
    """A function that names the process that listens at an address, or returns an empty text if it is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """The protection of a server from its clients."""

    connection_s: float = CONNECTION_S
    connections: int = CONNECTIONS
    admission: Admission | None = None
    """The limits for client addresses, or None for the default limits."""
    on_refused: Callable[[], None] = lambda: None
    """A function that is called for each connection beyond the limit of its address."""
    access: Access | None = None
    """The rules for requests, or None to answer all requests."""
    gate: Gate | None = None
    """A function that is called after `access`. Its answer is sent instead of the page, unless it is None."""
    tls: Callable[[], ssl.SSLContext] | None = None
    """A function that returns the TLS context of each handshake, or None for plain HTTP."""


class HttpServer:
    """Serves `routes` on one address until it is closed."""

    def __init__(
        self,
        listening: Listening,
        routes: Iterable[web.AbstractRouteDef],
        protection: Protection = Protection(),
    ) -> None:
        self._listening = listening
        self._protection = protection
        self._limited = RateLimitedLog(log)
        middlewares = [answer_out_of_memory(self._limited)]
        if protection.access is not None:
            middlewares.append(only(protection.access))
        if protection.gate is not None:
            middlewares.append(behind(protection.gate))
        application = web.Application(middlewares=middlewares)
        application.add_routes(routes)
        application.on_response_prepare.append(set_headers)
        self._runner = web.AppRunner(
            application,
            access_log=None,
            handle_signals=False,
            lingering_time=0,
            logger=_HTTP_LOG,
            shutdown_timeout=CLOSE_S,
        )
        self._queues: list[socket.socket] = []
        self._admission = protection.admission or Admission()
        self._open: Kept[TimedConnection] = Kept(protection.connections)
        self._pause: asyncio.TimerHandle | None = None
        self._expected_until = -math.inf
        self._retry_now = asyncio.Event()
        self._logged_reason = ""
        """The reason of the failed bind that was logged last."""
        self._tasks = TaskSet(self._crashed)
        self._accepting = TaskSet(self._crashed)

    @property
    def port(self) -> int | None:
        """Return the port on which the server listens, or None while it does not listen."""
        if not self._queues:
            return None
        port: int = self._queues[0].getsockname()[1]
        return port

    async def start(self) -> None:
        """Start to listen. If the bind fails, raise KernelError if `hard_fail` is true; otherwise a task tries
        again."""
        await self._runner.setup()
        try:
            await self._listen()
        except OSError as error:
            if self._listening.hard_fail and not self._is_expected:
                await self._runner.cleanup()
                raise KernelError(
                    f"{self._listening.name} cannot listen on {self._address}: {self._reason(error)}; "
                    f"free the address, change {self._listening.setting}, or unset bindAddressHardFail to go on without"
                ) from error
            self._report(error)
            self._tasks.start(self._keep_trying(), name=f"{self._listening.name}: bind {self._address}")

    def expect_port(self, within_s: float = EXPECTED_S) -> None:
        """Expect the address to become free within `within_s` seconds.

        During that time the server tries to bind often, and does not report failed attempts. This method may be called
        at any time, also before `start`.
        """
        self._expected_until = asyncio.get_running_loop().time() + within_s
        self._retry_now.set()

    @property
    def _is_expected(self) -> bool:
        return asyncio.get_running_loop().time() < self._expected_until

    async def close(self) -> None:
        """Stop listening and free the port. Pending answers get a second to complete. This may be called at any time,
        and repeatedly."""
        self._stop_accepting()
        await self._tasks.close()
        try:
            await self._runner.cleanup()
        finally:
            for connection in list(self._open):
                connection.abort()
            # The queue must not be closed earlier: uvloop closes a connection whose accept is cancelled, and does not
            # tell aiohttp.
            await self._accepting.close()

    async def _listen(self) -> None:
        self._queues = open_queues(
            self._listening.host,
            self._listening.port,
            dualstack=self._listening.dualstack and self._listening.host == "::",
            alone=self._listening.alone,
        )
        self._accept_from_now()
        self._listening.on_listening()
        (log.debug if self._listening.quiet else log.info)(
            "listening", server=self._listening.name, address=_joined(self._listening.host, self.port)
        )

    async def _keep_trying(self) -> None:
        while not self._queues:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EXPECTED_RETRY_S if self._is_expected else self._listening.retry_s):
                    await self._retry_now.wait()
            self._retry_now.clear()
            try:
                await self._listen()
            except OSError as error:
                self._report(error)

    def _report(self, error: OSError) -> None:
        reason = _reason(error)
        if self._is_expected:
            log.debug("waiting for address to become free", server=self._listening.name, address=self._address)
        elif reason != self._logged_reason:
            self._logged_reason = reason
            reason = self._reason(error)
            (log.debug if self._listening.quiet else log.error)(
                "cannot listen, trying again",
                server=self._listening.name,
                address=self._address,
                reason=reason,
                setting=self._listening.setting,
                retry_s=self._listening.retry_s,
            )
            self._listening.on_failure(f"cannot listen on {self._address}: {reason}")

    def _reason(self, error: OSError) -> str:
        """Return the kernel's reason, together with the process that listens at the address."""
        holder = (
            self._listening.holder_of(self._listening.host, self._listening.port)
            if error.errno == errno.EADDRINUSE
            else ""
        )
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
                self._limited.warning("cannot accept connections", server=self._listening.name, reason=_reason(error))
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
                self._accepting.start(self._serve(client, key, local), name=f"{self._listening.name}: connection")
                return
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        except OSError:  # The client has already disconnected.
            client.close()
            return
        client.close()
        self._protection.on_refused()
        self._limited.warning(
            "connections refused: too many per second", key=key, server=self._listening.name, client=key
        )

    async def _serve(self, client: socket.socket, key: str, local: bool) -> None:
        server = self._runner.server
        assert server is not None, "connections are accepted between setup and cleanup only"
        connection = TimedConnection(
            server(), lambda ended: self._open.remove(key, ended), self._protection.connection_s
        )
        self._open.add(key, connection, local=local)
        if (surplus := self._open.surplus()) is not None:
            surplus.abort()
        try:
            if self._protection.tls is None:
                await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, client)
            else:
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: connection, client, ssl=self._protection.tls(), ssl_handshake_timeout=HANDSHAKE_S
                )
        except OSError:  # The client has already disconnected, or does not speak TLS.
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
        return _joined(self._listening.host, self._listening.port)


def _is_our_fault(record: logging.LogRecord) -> bool:
    """Return whether a log record is about a fault of this program. Clients could fill the log with errors that they
    cause."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, (HttpProcessingError, ConnectionError))


_HTTP_LOG = logging.getLogger(f"{__name__}.http")
_HTTP_LOG.addFilter(_is_our_fault)


def _joined(host: str, port: int | None) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _reason(error: OSError) -> str:
    # The error of socket.create_server repeats the address.
    return os.strerror(error.errno) if error.errno is not None else str(error)
