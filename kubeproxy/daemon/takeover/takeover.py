"""Which process a node's Services belong to, and how one follows another without a client noticing.

Each control process listens on an abstract Unix socket with a name of its own (`control_socket`). Such names belong to
a network namespace, as the rules do: two pods of a DaemonSet with hostNetwork meet there without a shared directory,
and a name is gone at the instant its process dies.

A newcomer lists the names and says ``hello`` to all of them. The owner, the process that the rules lead to or will lead
to, answers; a process that is just taking over, or has a successor already, is ``busy``; of several that all look for
an owner and find none, the oldest becomes it. The newcomer makes everything ready beside the owner: its own listeners,
on proxy ports of its own. Then, around the one transaction that turns the rules to itself, it says ``hold`` (the owner
touches the rules no more) and ``take`` (the owner accepts no more, gives the HTTP ports and its name away, and lets
what is open run out). Should it die before, the owner finds out by the end of the connection and goes on.

An owner obeys a process of its own user that proves CAP_NET_ADMIN over this network namespace (`net_admin`), which is
what it takes to do the same harm without us. The newcomer demands the same proof of an owner. A process between the two
may pass both proofs on, and then speak in the newcomer's name: so ``take`` is refused while the kernel's rules still
lead to the owner, and ``hold`` ends after HOLD_S.

Two proxies that cannot speak with one another find out by the rules: the older one yields when the kernel's redirects
lead to other ports and a younger control process lives (`rival_lives`, `yield_to_rival`).

Workers whose control process has died look for the owner here, too, and say who they are (``orphan``). They serve on
until it tells them that the rules lead to others now (``retire``), with the same proof. They have no privileges and are
not trusted: what they tell of clients counts only for our own frontends and endpoints.

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

from kubeproxy.daemon.takeover.control_socket import PREFIX, ControlSocket
from kubeproxy.daemon.takeover.predecessor import (
    ANSWER_S,
    RETRY_S,
    BusyError,
    OrphanedWorker,
    Predecessor,
    Search,
    UnprovenError,
)
from kubeproxy.daemon.takeover.protocol import (
    LINE_BYTES,
    Message,
    close,
    receive,
    receive_first,
    send,
    send_first,
    told,
)
from kubeproxy.dataplane.balancing.affinity import freshest, merged
from kubeproxy.dataplane.messages import RestoreBindings
from kubeproxy.model.errors import KernelError
from kubeproxy.runtime import net_admin
from kubeproxy.runtime.tasks import TaskSet
from kubeproxy.runtime.unix_names import pid_of

log = structlog.get_logger(__name__)

RECALL_S: Final = 1.0
"""How long an owner looks for what it is asked to tell of clients; it must not be taken for one that hangs."""
HOLD_S: Final = 60.0
"""How long a successor may keep the owner from its rules without another word."""
GATHER_S: Final = 1.0
"""How long after our name exists orphans may take to find us: they look four times meanwhile."""
REAPS: Final = 50
"""How often, RETRY_S apart, a process is looked at that is about to end."""
ORPHANS: Final = 256
"""Orphans at a time; they need prove nothing."""
PEERS: Final = 256
"""Connections at a time that have not proven anything; the oldest makes room."""
REFUSALS_LOG_S: Final = 60.0
"""How often a refused takeover is logged at most."""


@dataclass(frozen=True, slots=True)
class OwnerCallbacks:
    """What an owner is asked to do on behalf of others."""

    share: Callable[[bool], None]
    """Let a successor hold the same node ports, or no more."""
    hold: Callable[[bool], Awaitable[None]]
    """Leave the rules alone from now on, or look after them again."""
    leads_here: Callable[[], Awaitable[bool]]
    """Whether the rules in the kernel still lead to us. KernelError when that cannot be seen."""
    bindings: Callable[[], Awaitable[Sequence[RestoreBindings]]]
    """Tell whom session affinity binds to which endpoint."""
    yield_all: Callable[[], Awaitable[None]]
    """The rules are another's: give away what only one can have. Back when that is done."""


class Takeover:
    """This process's place in the line."""

    def __init__(
        self, duties: OwnerCallbacks, *, version: str, others: Callable[[], bool] = lambda: False, prefix: str = PREFIX
    ) -> None:
        """`others`: whether anybody of another run lives."""
        self._duties = duties
        self._others = others
        self._version = version
        self._socket = ControlSocket(prefix)
        self._search = Search(self._socket, {"do": "hello", "pid": os.getpid(), "version": version})
        self._tasks = TaskSet(self._crashed)
        self._unproven: dict[socket.socket, asyncio.Task[None]] = {}
        """Connections that have not proven anything yet, the oldest first."""
        self._looking = True
        """Whether we do not know yet if there is a predecessor."""
        self._answering = False
        """Whether our duties can be done."""
        self._owns = False
        self._has_successor = False
        self._steady = asyncio.Event()
        """Not set while a successor turns the rules to itself."""
        self._steady.set()
        self.superseded = asyncio.Event()
        """Set when the rules lead to our successor, and it has got what only one can have."""
        self._in_force = self._yielding = False
        self._orphans: set[OrphanedWorker] = set()
        self._named_at = -math.inf
        """When our name came to be."""
        self.predecessor: Predecessor | None = None
        """The owner that we follow; None: there is none."""
        self._refusals = 0
        self._refusal_logged_at = -math.inf

    async def begin(self, *, given_up: Callable[[], bool] = lambda: False) -> Predecessor | None:
        """Take our name, and find who owns the node. None: there is no predecessor (or none that could be spoken with),
        or `given_up` says so. Newcomers wait until `answer`."""
        self._socket.listen(self._received)
        self._named_at = asyncio.get_running_loop().time()
        self.predecessor = await self._search.find(given_up)
        self._looking = False  # nothing has happened since that was found out
        return self.predecessor

    def answer(self) -> None:
        """Our duties can be done from now on: newcomers need not wait any more."""
        self._answering = True

    def own(self) -> None:
        """The node is ours, and no longer our predecessor's."""
        self._owns = True

    async def recall(self) -> list[RestoreBindings]:
        """Whom session affinity binds to which endpoint, as far as those who serve until now tell that in time."""
        if self._others():
            # Without a predecessor they are orphans, who serve while we wait for them to come.
            await asyncio.sleep(self._named_at + GATHER_S - asyncio.get_running_loop().time())
        recalling = [orphan.recall() for orphan in self._orphans]
        if self.predecessor is not None:
            recalling.append(self.predecessor.recall())
        return merged(chain.from_iterable(await asyncio.gather(*recalling)))

    def in_force(self) -> None:
        """Our rules lead clients to us: orphans need not wait any more, and an owner that did not answer is to hear of
        it as soon as it does."""
        self._in_force = True
        silent = self._search.passed_over.copy()
        if self.predecessor is not None and self.predecessor.silent:
            silent.add(self.predecessor.name)
        for name in silent:
            self._tasks.start(self._displace(name), name="succession: displace")
        for orphan in self._orphans:
            self._tasks.start(orphan.dismiss(), name="succession: retire")

    async def between(self) -> None:
        """Wait while a successor is just turning the rules to itself, but not for one that hangs."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                await self._steady.wait()

    def rival_lives(self) -> bool:
        """Whether a younger control process lives, and none speaks with us. OSError when the kernel does not tell."""
        return (
            self._socket.open
            and not self._has_successor
            and any(name > self._socket.name for name in self._socket.others())
        )

    def yield_to_rival(self) -> None:
        """The rules lead to a younger process, with which we could not speak: make way as if it had said ``take``."""
        if not self._yielding and not self.superseded.is_set():
            self._yielding = True
            self._tasks.start(self._make_way(), name="succession: yield")

    async def _make_way(self) -> None:
        log.warning("another kubeproxy's rules replaced ours", remedy="stop one of the two")
        self.release()
        await self._duties.yield_all()
        self.superseded.set()

    @property
    def orphans(self) -> int:
        """Workers of a dead control process that wait for our word."""
        return len(self._orphans)

    def release(self) -> None:
        """Give the name away for good; those who are connected stay so."""
        self._socket.close()

    async def close(self) -> None:
        """Let go of everything."""
        self.release()
        await self._tasks.close()

    # As newcomer.

    async def _displace(self, name: str) -> None:
        """A process that we have passed over still takes the rules for its own. When it answers again it makes way, and
        what it may have done to them until then is put right."""
        while name in self._socket.others() and self._socket.open:
            try:
                owner = await self._search.greet(name)
            except (BusyError, UnprovenError, OSError, ValueError, KeyError, TypeError, MemoryError):
                await asyncio.sleep(ANSWER_S)
                continue
            await owner.hold()
            await owner.take()
            owner.close()
            log.info("the process that did not answer has made way", pid=owner.pid)
            await self._duties.hold(False)
            return

    # As owner.

    @property
    def _follows(self) -> bool:
        """Whether the node is still our predecessor's."""
        return self.predecessor is not None and not self.predecessor.gone and not self._owns

    def _received(self, sock: socket.socket) -> None:
        while len(self._unproven) >= PEERS:
            self._unproven.pop(next(iter(self._unproven))).cancel()
        self._unproven[sock] = self._tasks.start(self._serve(sock), name="succession: talk")

    async def _serve(self, sock: socket.socket) -> None:
        """One who has come: an orphan, or a successor."""
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(ANSWER_S):
                message, descriptors = await receive_first(sock)
                if message is None:
                    return
                challenge = descriptors.pop() if descriptors else None
                takes_orphans = not self._looking and not self._follows and len(self._orphans) < ORPHANS
                if "orphan" in message and takes_orphans:
                    try:
                        reader, writer = await asyncio.open_unix_connection(sock=sock, limit=LINE_BYTES)
                    except BaseException:
                        close([challenge] if challenge is not None else [])
                        raise
                    orphan = OrphanedWorker(writer, message, challenge=challenge)
                elif message.get("do") == "hello" and challenge is not None:
                    net_admin.answer(challenge)
                    if (reply := self._unavailable()) is not None:
                        send_first(sock, reply)
                        return
                    reader, writer = await self._proven(sock, message)
                    orphan = None
                else:
                    close([challenge] if challenge is not None else [])
                    return
            self._unproven.pop(sock, None)
            if orphan is not None:
                is_here = pid_of(sock) == orphan.pid
                await self._serve_orphan(orphan, reader)
                if is_here:
                    self._tasks.start(_reap(orphan.pid), name="succession: reap")
            else:
                await self._serve_successor(message, reader, writer)
        except (OSError, ValueError, TypeError, UnprovenError) as error:
            log.debug("a takeover connection ended", reason=str(error) or repr(error))
        finally:
            self._unproven.pop(sock, None)
            if writer is not None:
                writer.close()
            else:
                sock.close()

    def _unavailable(self) -> Message | None:
        """What a newcomer hears of us in place of an answer; None: we own the node."""
        if self._looking:
            return {"looking": True}
        if self._follows or not self._answering or self._has_successor or not self._socket.open:
            return {"busy": True}
        return None

    async def _proven(self, sock: socket.socket, hello: Message) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The stream of a newcomer that has proven CAP_NET_ADMIN. UnprovenError for one that has not."""
        challenge = net_admin.Challenge()
        try:
            send_first(sock, {"prove": True}, [challenge.fileno()])
            try:
                proof, surplus = await receive_first(sock)
                close(surplus)
            finally:
                if not challenge.answered:
                    self._refuse(hello)
            if proof is None or not challenge.answered:
                raise UnprovenError("it has no CAP_NET_ADMIN")
        finally:
            challenge.close()
        return await asyncio.open_unix_connection(sock=sock, limit=LINE_BYTES)

    def _refuse(self, hello: Message) -> None:
        """Log it, but not as often as it may happen."""
        self._refusals += 1
        now = asyncio.get_running_loop().time()
        if now >= self._refusal_logged_at + REFUSALS_LOG_S:
            self._refusal_logged_at = now
            log.warning("takeover refused: no CAP_NET_ADMIN", pid=hello.get("pid"), refusals=self._refusals)

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

    async def _serve_successor(
        self, hello: Message, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        duties = self._duties
        if (reply := self._unavailable()) is not None:  # another one was quicker to prove itself
            await send(writer, reply)
            return
        self._has_successor = True
        held = taken = False
        log.info("a successor has come", pid=hello.get("pid"), version=hello.get("version"))
        try:
            duties.share(True)
            await send(writer, {"pid": os.getpid(), "version": self._version, "recalls": True})
            while (message := await self._next_word(reader, held=held and not taken)) is not None:
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
                        if (why := await self._why_not_yet()) is not None:
                            log.warning("takeover refused: rules lead here", reason=why, pid=hello.get("pid"))
                            await send(writer, {"refused": "take", "reason": why})
                            continue
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
            self._steady.set()
            if not (taken or self._yielding or not self._socket.open):
                log.warning("the successor has gone before it took over; goes on as before")
                duties.share(False)
                if held:
                    await duties.hold(False)

    async def _next_word(self, reader: asyncio.StreamReader, *, held: bool) -> Message | None:
        """The next message. TimeoutError from a successor that keeps us from our rules and says nothing."""
        async with asyncio.timeout(HOLD_S if held else None):
            return await receive(reader)

    async def _why_not_yet(self) -> str | None:
        """What the kernel's rules have against our leaving; None: nothing."""
        try:
            return "the kernel's rules still lead to this process" if await self._duties.leads_here() else None
        except KernelError as error:
            return f"the kernel's rules cannot be read: {error}"

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


async def _reap(pid: int) -> None:
    """After a re-execution an orphan is a child of ours, and would stay as a zombie."""
    with contextlib.suppress(ChildProcessError):
        for _ in range(REAPS):
            if os.waitpid(pid, os.WNOHANG) != (0, 0):  # noqa: ASYNC222 - does not wait
                return
            await asyncio.sleep(RETRY_S)
