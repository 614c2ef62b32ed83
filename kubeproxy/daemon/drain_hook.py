"""Answers the preStop hooks of pods: `httpGet: {port: 10258, path: /drain?timeout=25s}`.

The kubelet sends the request to the pod's own address. A rule redirects such connections from this node to a socket of
this process, and the kernel tells which pod was meant. So nothing is needed in the pod's image. Other hosts and pods
cannot reach the socket: it listens on loopback, and packets that were not redirected are dropped.

A connection that is no such request, or that is not from a process of root, is forwarded to the pod, because the pod
may listen on that port itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import socket
import struct
from collections.abc import Iterable
from typing import Final
from urllib.parse import parse_qs, urlsplit

import structlog

from kubeproxy.daemon.pod_drains import End, Outcome, PodDrains
from kubeproxy.dataplane.sockets.loop_prevention import mark
from kubeproxy.dataplane.sockets.transparent_dial import make_recognizable
from kubeproxy.model import Address, Family, Target
from kubeproxy.netfilter.conntrack.sock_diag import user_of
from kubeproxy.runtime.tasks import TaskSet

log = structlog.get_logger(__name__)

PATH: Final = "/drain"
TIMEOUT_S: Final = 25.0
"""How long a hook waits if its request has no timeout: five seconds less than the default of
terminationGracePeriodSeconds."""
LONGEST_S: Final = 3600.0
REQUEST_S: Final = 5.0
"""How long a client may take to send the head of its request, and the pod to accept a connection, in seconds."""
SILENT_S: Final = 5.0
"""After this time in seconds, a client of user root that has sent nothing is forwarded, because it may be waiting for
the pod to send first. (The kubelet may also be slow, so the time is long.)"""
REQUEST_BYTES: Final = 4096
IDLE_S: Final = 600.0
"""How long a forwarded connection may be idle."""
CONNECTIONS: Final = 1200
OF_OTHERS: Final = 400
"""The largest number of connections from users other than root. The limit keeps them from blocking hooks."""
FULL_PAUSE_S: Final = 0.1
"""How long accepting pauses if the process has no descriptor or memory for a connection."""
LAST_S: Final = 1.0
"""How long the last answers may take when this process ends."""
PORT: Final = 10261
"""The loopback port. It is always the same, because a hook that begins while no kubeproxy serves has a conntrack entry
to the port of the kubeproxy before, and the kubelet's repeated SYN follows that entry past all rules."""
PORTS_TRIED: Final = 8
ROOT: Final = 0
_ORIGINAL_DST: Final = 80  # SO_ORIGINAL_DST, IP6T_SO_ORIGINAL_DST (linux/netfilter_ipv4.h, linux/netfilter_ipv6)
_BEGIN: Final = b"GET /drain"
_LOOPBACK: Final = {Family.IPV4: "127.0.0.1", Family.IPV6: "::1"}
_RESET: Final = struct.pack("ii", 1, 0)
"""The value of SO_LINGER: on, with 0 s."""
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION: Final = re.compile(r"(?:[0-9]{1,6}(?:\.[0-9]{1,3})?(?:ms|s|m|h))+|[0-9]{1,6}")


class DrainHook:
    """The socket that answers hooks. Call `bind`, `listen`, then `close`. Rules redirect hooks to `port`."""

    def __init__(self, drains: PodDrains) -> None:
        self._drains = drains
        self._tasks = TaskSet(_crashed)
        self._sockets: list[socket.socket] = []
        self._serving: set[asyncio.Task[None]] = set()
        self._of_others = 0
        """The number of connections from users other than root."""
        self._pause: asyncio.TimerHandle | None = None
        self.port = 0
        """The loopback port, or 0 while none is bound."""

    def bind(self, families: Iterable[Family]) -> None:
        """Bind `PORT` on loopback, or a port that is free in every family if another program has `PORT`. Raise OSError
        if there is none."""
        wanted = sorted(families)
        for port in (PORT, *(0,) * PORTS_TRIED):
            self.port = port
            try:
                self._bind(wanted)
            except OSError as error:
                self.close()
                refusal = error
            else:
                return
        raise refusal

    def listen(self) -> None:
        """Start to listen at the port, if one is bound. Call this when rules redirect hooks to this process and a pod
        can use them. An earlier kubeproxy listens at the same port until then."""
        for listener in self._sockets:
            listener.listen(CONNECTIONS)
        self._accept_from_now()

    def _accept_from_now(self) -> None:
        self._end_pause()
        for listener in self._sockets:
            asyncio.get_running_loop().add_reader(listener.fileno(), self._accept, listener)

    def _bind(self, families: Iterable[Family]) -> None:
        for family in families:
            kind = socket.AF_INET if family is Family.IPV4 else socket.AF_INET6
            listener = socket.socket(kind, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            self._sockets.append(listener)
            make_recognizable(listener)
            if self.port == PORT:
                # The earlier kubeproxy still has the port, and the kernel has its closed connections for a while.
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind((_LOOPBACK[family], self.port))
            self.port = listener.getsockname()[1]

    def close(self) -> None:
        """Accept no more clients."""
        self._pause_accepting()
        for listener in self._sockets:
            listener.close()
        self._sockets.clear()
        self.port = 0

    def _pause_accepting(self) -> None:
        self._end_pause()
        for listener in self._sockets:
            with contextlib.suppress(RuntimeError):
                asyncio.get_running_loop().remove_reader(listener.fileno())

    def _end_pause(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None

    async def end(self) -> None:
        """Accept no more clients, and end the waiting hooks. The kubelet repeats them at the next kubeproxy."""
        for listener in self._sockets:
            self._accept(listener)  # Closing resets clients that have not been accepted.
        self.close()
        await self._drains.end()
        if self._serving:
            await asyncio.wait(self._serving, timeout=LAST_S)
        await self._tasks.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                log.debug("hook not accepted", reason=str(error))
                self._pause_accepting()
                self._pause = asyncio.get_running_loop().call_later(FULL_PAUSE_S, self._accept_from_now)
                return
            if len(self._serving) >= CONNECTIONS:
                client.close()
                continue
            client.setblocking(False)
            serving = self._tasks.start(self._serve(client), name="drain hook")
            self._serving.add(serving)
            serving.add_done_callback(self._serving.discard)

    async def _serve(self, client: socket.socket) -> None:
        end = client.close
        asked = None
        try:
            address, port, *_ = client.getpeername()
            client_end, asked = Target(Address(address), port), original_destination(client)
            of_root = _is_of_root(client_end, asked)
            if not of_root and self._of_others >= OF_OTHERS:
                return
            reader, writer = await asyncio.open_connection(sock=client)
            end = writer.close
            if not of_root:
                await self._pass_on_of_others(asked, reader, writer)
                return
            head = await _head(reader)
            if not head.startswith((_BEGIN + b" ", _BEGIN + b"?")):
                await _pass_on(asked, head, reader, writer)
            elif b"\r\n\r\n" in head:
                writer.write(await self._answer(asked, head, reader))
                await writer.drain()
        except OSError as error:  # The client was not redirected here by a rule, or has disconnected.
            log.debug("hook's connection ended", asked=str(asked), reason=str(error))
        finally:
            end()

    async def _pass_on_of_others(
        self, asked: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._of_others += 1
        try:
            await _pass_on(asked, b"", reader, writer)
        finally:
            self._of_others -= 1

    async def _answer(self, asked: Target, head: bytes, reader: asyncio.StreamReader) -> bytes:
        """Return the answer to a hook, or an empty result if the client has disconnected."""
        target = head.split(b" ", 2)[1].decode("latin-1")
        timeout_s = timeout_of(target)
        if timeout_s is None:
            log.warning("timeout of a preStop hook not understood", pod=asked.address, found=target, taken_s=TIMEOUT_S)
            timeout_s = TIMEOUT_S
        waiting = self._tasks.start(self._drains.wait(asked.address, timeout_s), name="drain hook: wait")
        gone = self._tasks.start(_end_of(reader), name="drain hook: end of client")
        await asyncio.wait((waiting, gone), return_when=asyncio.FIRST_COMPLETED)
        found = response(waiting.result()) if waiting.done() else b""
        await self._tasks.end(waiting, gone)
        return found


def _crashed(task: str, error: BaseException) -> None:
    log.error("background task failed", task=task, exc_info=error)


def _is_of_root(client: Target, asked: Target) -> bool:
    """Return whether the client's socket belongs to root, as the kubelet's does. Only root may make a pod drain."""
    try:
        return user_of(client, asked) == ROOT
    except OSError as error:
        log.warning("user of a preStop hook not known", pod=asked.address, reason=str(error))
        return False


async def _head(reader: asyncio.StreamReader) -> bytes:
    """Return the first bytes that a client sends, or none if it sends nothing for `SILENT_S` seconds. If they begin
    like a hook's request, read on until the end of its header fields, at most `REQUEST_S` seconds."""
    head = b""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SILENT_S):
            head = await reader.read(REQUEST_BYTES)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(REQUEST_S):
            while _may_be_hook(head) and len(head) < REQUEST_BYTES and (more := await reader.read(REQUEST_BYTES)):
                head += more
    return head


async def _end_of(reader: asyncio.StreamReader) -> None:
    """Wait until a client has disconnected. Anything that it still sends is ignored."""
    while await reader.read(REQUEST_BYTES):
        pass


def _may_be_hook(head: bytes) -> bool:
    """Return whether these bytes may be the beginning of a hook's request."""
    return bool(head) and b"\r\n\r\n" not in head and (head.startswith(_BEGIN) or _BEGIN.startswith(head))


async def _pass_on(asked: Target, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Forward a client to the pod itself."""
    family = socket.AF_INET6 if ":" in asked.address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        mark(sock)
        async with asyncio.timeout(REQUEST_S):
            await asyncio.get_running_loop().sock_connect(sock, (asked.address, asked.port))
        from_pod, to_pod = await asyncio.open_connection(sock=sock)
    except (OSError, TimeoutError):
        sock.close()
        _reset(writer)
        return
    try:
        to_pod.write(head)
        used = _Used()
        async with asyncio.TaskGroup() as group:
            group.create_task(_copy(reader, to_pod, used))
            group.create_task(_copy(from_pod, writer, used))
    except* OSError:
        _reset(writer)
    finally:
        to_pod.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection with a reset, as a port without a listener does."""
    sock = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


class _Used:
    """Records when a forwarded connection was last used in either direction."""

    def __init__(self) -> None:
        self.note()

    def note(self) -> None:
        """Record that the connection is being used."""
        self.at = asyncio.get_running_loop().time()


async def _copy(source: asyncio.StreamReader, to: asyncio.StreamWriter, used: _Used) -> None:
    """Copy bytes until the end of the stream. Raise ConnectionAbortedError if neither direction is used for `IDLE_S`
    seconds."""
    while True:
        idle_at = used.at + IDLE_S
        try:
            async with asyncio.timeout_at(idle_at):
                data = await source.read(1 << 16)
        except TimeoutError:
            if used.at + IDLE_S > idle_at:
                continue
            raise ConnectionAbortedError("idle") from None
        if not data:
            break
        used.note()
        to.write(data)
        await to.drain()
    if to.can_write_eof():
        to.write_eof()


def original_destination(client: socket.socket) -> Target:
    """Return the address that a client connected to before a rule redirected the connection to this socket. Raise
    OSError if no rule redirected the connection."""
    if client.family == socket.AF_INET:
        found = client.getsockopt(socket.IPPROTO_IP, _ORIGINAL_DST, 16)
        port, packed = struct.unpack("!2xH4s8x", found)
    else:
        found = client.getsockopt(socket.IPPROTO_IPV6, _ORIGINAL_DST, 28)
        port, packed = struct.unpack("!2xH4x16s4x", found)
    local, local_port, *_ = client.getsockname()
    target = Target(Address(str(ipaddress.ip_address(packed))), port)
    if target == Target(Address(local), local_port):
        raise ConnectionRefusedError("it was not redirected here")
    return target


def timeout_of(request_target: str) -> float | None:
    """Return the request's parameter `timeout` (25, 25s or 1m30s) in seconds. Return the default if there is no such
    parameter, and None if its value is invalid."""
    try:
        given = parse_qs(urlsplit(request_target).query, keep_blank_values=True, max_num_fields=8).get("timeout")
    except ValueError:
        return None
    return TIMEOUT_S if given is None else seconds_of(given[-1])


def seconds_of(text: str) -> float | None:
    """Return the seconds of a duration such as 25, 25s or 1m30s, or None if the text is not a duration."""
    if _DURATION.fullmatch(text) is None:
        return None
    parts = re.findall(r"([0-9.]+)(ms|s|m|h)?", text)
    return min(LONGEST_S, sum(float(number) * _UNITS[unit or "s"] for number, unit in parts))


def response(outcome: Outcome) -> bytes:
    """Return the response to a hook. The kubelet ignores every status except a redirect, which it follows to the next
    kubeproxy."""
    status, more = "200 OK", ""
    if outcome.end is End.CROWD:
        status = "503 Service Unavailable"
    elif outcome.end is End.MOVED and outcome.left_s:
        status, more = "307 Temporary Redirect", f"Location: {PATH}?timeout={round(outcome.left_s * 1000)}ms\r\n"
    body = f"{outcome.text}\n"
    return (
        f"HTTP/1.1 {status}\r\nServer: kubeproxy\r\nContent-Type: text/plain; charset=utf-8\r\n{more}"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}"
    ).encode()
