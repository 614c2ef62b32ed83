"""Which process a node's Services belong to, and how one follows another without a client noticing.

The owner listens on an abstract Unix socket. Such names belong to a network namespace, as the rules do: two pods of a
DaemonSet with hostNetwork meet there without a shared directory, and the name is free at the instant its owner dies.

A newcomer that finds an owner becomes its successor. It says ``hello`` and makes everything ready beside it: its own
listeners, on proxy ports of its own. Then, around the one transaction that turns the rules to itself, it says ``hold``
(the owner touches the rules no more) and ``take`` (the owner accepts no more, gives the HTTP ports and this name away,
and lets what is open run out). Should it die before, the owner finds out by the end of the connection and goes on as
if nothing had been.

Workers whose control process has died look for the owner here, too, and say who they are (``orphan``). They serve on
until it tells them that the rules lead to others now (``retire``).

`talk` says how these things are said.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import structlog

from kubeproxy.daemon.takeover.predecessor import ANSWER_S, OrphanedWorker, Predecessor
from kubeproxy.daemon.takeover.protocol import LINE_BYTES, Message, receive, send, told
from kubeproxy.dataplane.balancing.affinity import freshest, merged
from kubeproxy.dataplane.messages import RestoreBindings
from kubeproxy.dataplane.workers.orphan import uid_of
from kubeproxy.runtime.tasks import TaskSet

log = structlog.get_logger(__name__)

OWNER: Final = "kubeproxy/owner"
"""The abstract name, without the leading NUL."""
RECALL_S: Final = 1.0
"""How long an owner looks for what it is asked to tell of clients; it must not be taken for one that hangs."""
ATTEMPTS: Final = 50
RETRY_S: Final = 0.1
"""How often, and at what pace, a name is tried again whose owner has just gone. One that is busy with another successor
is waited for as long as it takes, for it serves."""
GATHER_S: Final = 1.0
"""How long after the name became ours orphans may take to find us: they look four times meanwhile."""
COURTESY: Final = 3
"""So often a newcomer leaves a free name to others who live: one of them may just be taking it from a predecessor."""


@dataclass(frozen=True, slots=True)
class OwnerCallbacks:
    """What an owner is asked to do on behalf of others."""

    share: Callable[[bool], None]
    """Let a successor hold the same node ports, or no more."""
    hold: Callable[[bool], Awaitable[None]]
    """Leave the rules alone from now on, or look after them again."""
    bindings: Callable[[], Awaitable[Sequence[RestoreBindings]]]
    """Tell whom session affinity binds to which endpoint."""
    yield_all: Callable[[], Awaitable[None]]
    """The rules are another's: give away what only one can have. Back when that is done."""


class Takeover:
    """This process's place in the line."""

    def __init__(
        self, duties: OwnerCallbacks, *, version: str, others: Callable[[], bool] = lambda: False, name: str = OWNER
    ) -> None:
        """`others`: whether anybody of another run lives."""
        self._duties = duties
        self._others = others
        self._version = version
        self._address = f"\0{name}"
        self._server: asyncio.Server | None = None
        self._listening: socket.socket | None = None
        self._tasks = TaskSet(self._crashed)
        self._has_successor = False
        self._steady = asyncio.Event()
        """Not set while a successor turns the rules to itself."""
        self._steady.set()
        self.superseded = asyncio.Event()
        """Set when the rules lead to our successor, and it has got what only one can have."""
        self._in_force = self._released = False
        self._orphans: set[OrphanedWorker] = set()
        self._named_at = -math.inf
        """When the name became ours, if it is."""
        self.predecessor: Predecessor | None = None
        """The owner that we follow; None: there is none."""
        self._passed_over = False
        """Whether the owner of the name did not answer when we came."""

    async def begin(self, *, given_up: Callable[[], bool] = lambda: False) -> Predecessor | None:
        """Take the name and answer to others from now on, or find who has it. None: there is no predecessor (or none
        that one could speak with), or `given_up` says so. Until the name is ours it is tried again, for its owner may
        die at any time."""
        self.predecessor = await self._look(given_up)
        if not await self.own():
            self._tasks.start(self._keep_trying(), name="succession: name")
        return self.predecessor

    async def own(self) -> bool:
        """Take the name if it is free; whether it is ours."""
        if self._server is None and self._bind():
            sock, self._listening = self._listening, None
            self._server = await asyncio.start_unix_server(self._received, sock=sock, limit=LINE_BYTES)
        return self._server is not None

    async def _look(self, given_up: Callable[[], bool]) -> Predecessor | None:
        waits_its_turn = False
        vain = 0
        while vain < ATTEMPTS and not given_up():
            if (vain >= COURTESY or not self._others()) and self._bind():
                return None
            try:
                return await self._greet()
            except _Busy:
                if not waits_its_turn:
                    log.info("another process is just taking over; waits for its turn")
                waits_its_turn = True
            except ConnectionError:
                vain += 1  # its owner has just gone
            except (TimeoutError, OSError, ValueError, KeyError, TypeError) as error:
                log.warning(
                    "another process owns this node and does not answer; takes its place all the same",
                    reason=str(error) or repr(error),
                    remedy="end that process",
                )
                self._passed_over = isinstance(error, TimeoutError)
                return None
            await asyncio.sleep(RETRY_S)
        if not given_up():
            log.warning("another process keeps this node's name; goes on without it", name=self._address[1:])
        return None

    async def recall(self) -> list[RestoreBindings]:
        """Whom session affinity binds to which endpoint, as far as those who serve until now tell that in time."""
        if self._others():
            # If the name is ours, they are orphans, who serve while we wait for them to come.
            await asyncio.sleep(self._named_at + GATHER_S - asyncio.get_running_loop().time())
        recalling = [orphan.recall() for orphan in self._orphans]
        if self.predecessor is not None:
            recalling.append(self.predecessor.recall())
        return merged(chain.from_iterable(await asyncio.gather(*recalling)))

    def in_force(self) -> None:
        """Our rules lead clients to us: orphans need not wait any more, and an owner that did not answer is to hear of
        it as soon as it does."""
        self._in_force = True
        if self._passed_over or (self.predecessor is not None and self.predecessor.silent):
            self._tasks.start(self._displace(), name="succession: displace")
        for orphan in self._orphans:
            self._tasks.start(orphan.dismiss(), name="succession: retire")

    async def between(self) -> None:
        """Wait while a successor is just turning the rules to itself, but not for one that hangs."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                await self._steady.wait()

    @property
    def orphans(self) -> int:
        """Workers of a dead control process that wait for our word."""
        return len(self._orphans)

    def release(self) -> None:
        """Give the name away for good; those who are connected stay so."""
        self._released = True
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    async def close(self) -> None:
        """Let go of everything."""
        self.release()
        await self._tasks.close()

    # As newcomer.

    def _bind(self) -> bool:
        """Whether the name is ours."""
        if self._listening is not None:
            return True
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            sock.bind(self._address)
            # At once: whoever comes before we answer to anybody waits in the queue.
            sock.listen()
        except OSError:
            sock.close()
            return False
        self._listening = sock
        self._named_at = asyncio.get_running_loop().time()
        return True

    async def _greet(self, *, within_s: float | None = ANSWER_S) -> Predecessor:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        end = sock.close
        try:
            async with asyncio.timeout(within_s):
                await asyncio.get_running_loop().sock_connect(sock, self._address)
                if (uid := uid_of(sock)) != os.geteuid():
                    raise ValueError(f"it belongs to user {uid}, not to ours ({os.geteuid()})")
                reader, writer = await asyncio.open_unix_connection(sock=sock, limit=LINE_BYTES)
                end = writer.close
                await send(writer, {"do": "hello", "pid": os.getpid(), "version": self._version})
                answer = await receive(reader)
            if answer is None:
                raise ConnectionRefusedError
            if answer.get("busy"):
                raise _Busy
            return Predecessor(reader, writer, answer)
        except BaseException:
            end()
            raise

    async def _keep_trying(self) -> None:
        while not (self._released or await self.own()):  # noqa: ASYNC110 - nobody tells when the owner dies
            await asyncio.sleep(RETRY_S)

    async def _displace(self) -> None:
        """Whoever has the name still takes the rules for its own: should it awake, it makes way, and what it may have
        done to them until then is put right."""
        while not self._released and self._server is None:
            try:
                owner = await self._greet(within_s=None)
            except (_Busy, OSError, ValueError, KeyError, TypeError):
                await asyncio.sleep(ANSWER_S)
                continue
            await owner.hold()
            await owner.take()
            owner.close()
            log.info("the process that did not answer has made way", pid=owner.pid)
            await self._duties.hold(False)
            return

    # As owner.

    def _received(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A coroutine given to the server would be a task of nobody's, that ends with a traceback when we do.
        self._tasks.start(self._serve(reader, writer), name="succession: talk")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One who has come: an orphan, or a successor."""
        try:
            if uid_of(writer.get_extra_info("socket")) != os.geteuid():
                return
            message = await receive(reader)
            if message is None:
                return
            if "orphan" in message:
                await self._serve_orphan(OrphanedWorker(writer, message), reader)
            elif message.get("do") == "hello":
                await self._serve_successor(message, reader, writer)
        except (OSError, ValueError) as error:
            log.info("whoever came to speak about succession is gone", reason=str(error) or repr(error))
        finally:
            writer.close()

    async def _serve_orphan(self, orphan: OrphanedWorker, reader: asyncio.StreamReader) -> None:
        log.info("a worker of an earlier run serves on", pid=orphan.pid, until="our rules are in force")
        self._orphans.add(orphan)
        try:
            with contextlib.suppress(OSError):
                if self._in_force:
                    await orphan.dismiss()
                while (message := await receive(reader)) is not None:
                    orphan.hear(message)
        finally:
            orphan.gone()
            self._orphans.remove(orphan)
        log.info("a worker of an earlier run has ended", pid=orphan.pid)
        self._tasks.start(_reap(orphan.pid), name="succession: reap")

    async def _serve_successor(
        self, hello: Message, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        duties = self._duties
        if self._has_successor:
            await send(writer, {"busy": True})
            return
        self._has_successor = True
        held = taken = False
        log.info("a successor has come", pid=hello.get("pid"), version=hello.get("version"))
        try:
            duties.share(True)
            await send(writer, {"pid": os.getpid(), "version": self._version, "recalls": True})
            while (message := await receive(reader)) is not None:
                match message.get("do"):
                    case "recall":
                        await self._tell_bindings(writer)
                    case "hold":
                        held = True
                        self._steady.clear()
                        await duties.hold(True)
                    case "resume":
                        held = False
                        await duties.hold(False)
                        self._steady.set()
                    case "take":
                        taken = True
                        self.release()
                        await duties.yield_all()
                        self.superseded.set()
                        self._steady.set()
                    case other:
                        raise ValueError(f"what does {other!r} mean?")
                await send(writer, {"done": message["do"]})
        finally:
            self._has_successor = False
            if not (taken or self._released):
                log.warning("the successor has gone before it took over; goes on as before")
                duties.share(False)
                if held:
                    await duties.hold(False)
            self._steady.set()

    async def _tell_bindings(self, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(RECALL_S):
                remembered = freshest(await self._duties.bindings())
        except Exception as error:  # whatever it is, it must not keep us from making way
            log.warning("the successor does not hear of session affinity: it begins anew", reason=repr(error))
            return
        for piece in remembered:
            await send(writer, told(piece))
            await asyncio.sleep(0)  # clients are served meanwhile, by this very loop if there are no workers

    def _crashed(self, task: str, error: BaseException) -> None:
        log.error("a background task ended by an internal error", task=task, exc_info=error)


class _Busy(Exception):
    """It speaks with another successor already."""


async def _reap(pid: int) -> None:
    """After a re-execution an orphan is a child of ours, and would stay as a zombie."""
    with contextlib.suppress(ChildProcessError):
        for _ in range(ATTEMPTS):
            if os.waitpid(pid, os.WNOHANG) != (0, 0):  # noqa: ASYNC222 - does not wait
                return
            await asyncio.sleep(RETRY_S)
