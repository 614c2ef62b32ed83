"""The owner's side of a takeover, which answers new instances and orphaned workers.

An owner obeys a process of its own user that proves CAP_NET_ADMIN in this network namespace (`peer_capability`),
because such a process could change the rules anyway. A proof is valid for one purpose and one connection. So a proof
for `Take` does not count for `Stop`, and a process in the middle cannot relay it. A process with the proof may still be
faulty. So `Take` is refused while the kernel's rules redirect to the owner, and the total time of `Hold` is limited
(`owner.HOLD_S`).

Orphaned workers have no privileges and are not trusted (`orphaned_worker`). A worker may move its connections here only
if it shows the marker of its run, which only a process with CAP_NET_ADMIN can have made (`instances.is_marker`).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
from typing import Final

import structlog

from kubeproxy.daemon.takeover.connected_orphans import Orphans, reap, shows_marker
from kubeproxy.daemon.takeover.control_socket import ControlSocket
from kubeproxy.daemon.takeover.orphaned_worker import OrphanedWorker
from kubeproxy.daemon.takeover.owner import HoldTime, Owner
from kubeproxy.daemon.takeover.predecessor import ANSWER_S, Predecessor, UnprovenError
from kubeproxy.daemon.takeover.protocol import (
    HELLOS,
    PROOFS,
    REQUESTS,
    Accepted,
    Busy,
    Hello,
    Hold,
    Order,
    Prove,
    Refused,
    Request,
    Resume,
    Stop,
    Stopping,
    Take,
    close,
    receive,
    receive_first,
    send,
    send_first,
    type_of,
)
from kubeproxy.daemon.takeover.serves_enough import in_message
from kubeproxy.dataplane.balancing.affinity import freshest
from kubeproxy.dataplane.workers.takeover_messages import (
    LINE_BYTES,
    PROTOCOL,
    Bindings,
    Done,
    OrphanHello,
    Recall,
)
from kubeproxy.model.errors import KernelError
from kubeproxy.runtime import peer_capability
from kubeproxy.runtime.abstract_sockets import pid_of
from kubeproxy.runtime.peer_capability import Purpose
from kubeproxy.runtime.tasks import TaskSet

log = structlog.get_logger(__name__)

RECALL_S: Final = 1.0
"""How long the data plane may take to answer `Recall`. It is less than ANSWER_S, so that the owner does not seem to
hang."""
PEERS: Final = 256
"""The largest number of connections without a proof at a time. Beyond that the oldest is closed."""
REFUSALS_LOG_S: Final = 60.0
"""The shortest time between two log lines about refused takeovers."""


class TakeoverServer:
    """Answers on the control socket as long as the process lives."""

    def __init__(self, control: ControlSocket, owner: Owner, *, version: str) -> None:
        self._control = control
        self._owner = owner
        self._version = version
        self._tasks = TaskSet(self._crashed)
        self._unproven: dict[socket.socket, asyncio.Task[None]] = {}
        """The connections without a proof so far, the oldest first."""
        self._looking = True
        """Whether this instance is still searching for a predecessor."""
        self._predecessor: Predecessor | None = None
        self._owns = False
        self._answering = False
        """Whether new instances may take over."""
        self._has_new_instance = False
        self._steady = asyncio.Event()
        """Cleared while a new instance is redirecting clients to itself."""
        self._steady.set()
        self.superseded = asyncio.Event()
        """Set when the rules redirect to another instance, and the HTTP ports and the name are released."""
        self.stop_requested = asyncio.Event()
        """Set when an instance of another protocol version is waiting for this process to end."""
        self.successor = ""
        """The control socket of the instance that has taken over, to which our connections may move."""
        self._yielding = False
        self.orphans = Orphans(owner, self._tasks)
        self._refusals = 0
        self._refusal_logged_at = -math.inf

    # State.

    @property
    def take(self) -> Take:
        """Return the request that tells a predecessor to hand over to us."""
        return Take(successor=self._control.name)

    def listen(self) -> None:
        """Bind the name. New instances get `Busy` until `answer` is called."""
        self._control.listen(self._on_connection)

    def found(self, predecessor: Predecessor | None) -> None:
        """Record the result of the search for a predecessor."""
        self._predecessor = predecessor
        self._looking = False

    def answer(self) -> None:
        """Accept new instances from now on."""
        self._answering = True

    def own(self) -> None:
        """Become the owner of the node. The predecessor is no longer the owner."""
        self._owns = True

    async def between(self) -> None:
        """Wait while a new instance is redirecting clients to itself. A new instance that hangs is not waited for."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                await self._steady.wait()

    def rival_lives(self) -> bool:
        """Return whether a younger control process exists although no new instance is connected. Raise OSError if the
        kernel cannot list the names."""
        return (
            self._control.open
            and not self._has_new_instance
            and any(name > self._control.name for name in self._control.others())
        )

    def yield_to_rival(self) -> None:
        """Yield to a younger process that has not connected to this one, because the rules redirect to it. The effect
        is that of `Take`."""
        if not self._yielding and not self.superseded.is_set():
            self._yielding = True
            self._tasks.start(self._yield(), name="takeover: yield")

    async def _yield(self) -> None:
        log.warning("another kubeproxy's rules replaced ours", remedy="stop one of the two")
        self.release()
        await self._owner.yield_all()
        self.superseded.set()

    def release(self) -> None:
        """Release the name for good. Open connections stay."""
        self._control.close()

    async def close(self) -> None:
        """Close the socket and all connections."""
        self.release()
        await self._tasks.close()

    # Connections.

    @property
    def _follows(self) -> bool:
        """Return whether the predecessor still owns the node."""
        return self._predecessor is not None and not self._predecessor.gone and not self._owns

    def _on_connection(self, sock: socket.socket) -> None:
        while len(self._unproven) >= PEERS:
            self._unproven.pop(next(iter(self._unproven))).cancel()
        self._unproven[sock] = self._tasks.start(self._serve(sock), name="takeover: connection")

    async def _serve(self, sock: socket.socket) -> None:
        """Serve one connection: from an orphaned worker, a new instance, or an operator's command."""
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(ANSWER_S):
                hello, descriptors = await receive_first(sock, HELLOS)
                challenge = descriptors.pop() if descriptors else None
                takes_orphans = not self._looking and not self._follows and self.orphans.have_room
                if isinstance(hello, OrphanHello) and takes_orphans:
                    proven = challenge is not None and self._control.prove(challenge, Purpose.RETIRE)
                    can_move = proven and hello.common_moves is not None and await shows_marker(sock, hello.run)
                    reader, writer = await asyncio.open_unix_connection(sock=sock, limit=LINE_BYTES)
                elif isinstance(hello, Hello) and challenge is not None:
                    self._control.prove(challenge, Purpose.OWN)
                    if (busy := self._busy()) is not None:
                        send_first(sock, busy)
                        return
                    purpose = Purpose.TAKE if hello.protocol == PROTOCOL else Purpose.STOP
                    reader, writer = await self._proven(sock, purpose, hello.pid)
                elif isinstance(hello, Order):
                    close([challenge] if challenge is not None else [])
                    if self._busy() is not None:
                        send_first(sock, Busy(PROTOCOL))
                        return
                    reader, writer = await self._proven(sock, Purpose.ORDER, pid_of(sock))
                else:
                    close([challenge] if challenge is not None else [])
                    return
            self._unproven.pop(sock, None)
            if isinstance(hello, OrphanHello):
                await self.orphans.serve(OrphanedWorker(sock, reader, writer, hello, can_move=can_move))
                if pid_of(sock) == hello.pid:
                    self._tasks.start(reap(hello.pid), name="takeover: reap")
            elif isinstance(hello, Order):
                reason = await self._obeyed(hello, reader)
                await send(writer, Done("order") if reason is None else Refused("order", reason))
            elif (busy := self._busy()) is not None:  # Meanwhile another instance has proved itself first.
                await send(writer, busy)
            elif hello.protocol != PROTOCOL:
                await self._serve_other_protocol(hello, reader, writer)
            else:
                await self._serve_new_instance(hello, reader, writer)
        except (OSError, ValueError, UnprovenError) as error:
            log.debug("takeover connection ended", reason=str(error) or repr(error))
        finally:
            self._unproven.pop(sock, None)
            if writer is not None:
                writer.close()
            else:
                sock.close()

    async def _obeyed(self, order: Order, reader: asyncio.StreamReader) -> str | None:
        """Carry out an order, as long as its caller waits. Return None, or the reason if it is refused."""

        async def caller_leaves() -> None:
            with contextlib.suppress(OSError):
                await reader.read(1)

        obeying = self._tasks.start(self._owner.obey(order), name="takeover: order")
        leaving = self._tasks.start(caller_leaves(), name="takeover: caller of an order")
        await asyncio.wait((obeying, leaving), return_when=asyncio.FIRST_COMPLETED)
        is_obeyed = obeying.done()
        await self._tasks.end(obeying, leaving)
        if not is_obeyed:
            raise ConnectionAbortedError("its caller has disconnected")
        reason: str | None = obeying.result()
        return reason

    def _busy(self) -> Busy | None:
        """Return the answer `Busy` for a new instance that has to wait, or None if it may take over now."""
        if self._looking:
            return Busy(PROTOCOL, looking=True)
        if self._follows or not self._answering or self._has_new_instance or not self._control.open:
            return Busy(PROTOCOL)
        return None

    async def _proven(
        self, sock: socket.socket, purpose: Purpose, pid: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return the stream of a peer once it has proved CAP_NET_ADMIN. Raise UnprovenError if it does not."""
        challenge = peer_capability.Challenge(purpose, self._control.name)
        try:
            send_first(sock, Prove(PROTOCOL, os.getpid(), self._version), [challenge.fileno()])
            try:
                _, surplus = await receive_first(sock, PROOFS)
                close(surplus)
            finally:
                if not challenge.answered:
                    self._refuse(pid)
            if not challenge.answered:
                raise UnprovenError("it has no CAP_NET_ADMIN")
        finally:
            challenge.close()
        return await asyncio.open_unix_connection(sock=sock, limit=LINE_BYTES)

    def _refuse(self, pid: int) -> None:
        """Log a refusal, at most once per REFUSALS_LOG_S."""
        self._refusals += 1
        now = asyncio.get_running_loop().time()
        if now >= self._refusal_logged_at + REFUSALS_LOG_S:
            self._refusal_logged_at = now
            log.warning("takeover refused: no CAP_NET_ADMIN", pid=pid, refusals=self._refusals)

    async def _serve_other_protocol(
        self, hello: Hello, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve an instance of another protocol version, which can only ask this process to stop."""
        async with asyncio.timeout(ANSWER_S):
            await send(writer, self._accepted())
            request: Request | None = await receive(reader, REQUESTS)
            if not isinstance(request, Stop):
                return
            log.warning(
                "new instance: other takeover protocol, stopping",
                pid=hello.pid,
                version=hello.version,
                its=hello.protocol,
                ours=PROTOCOL,
            )
            await send(writer, Stopping(self._owner.grace_s()))
        self.stop_requested.set()

    async def _serve_new_instance(
        self, hello: Hello, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._has_new_instance = True
        patience = asyncio.timeout(None)
        hold = HoldTime(patience)
        log.info("new instance connected", pid=hello.pid, version=hello.version)
        try:
            self._owner.share(True)
            await send(writer, self._accepted())
            async with patience:
                while (request := await receive(reader, REQUESTS)) is not None:
                    if isinstance(request, Recall):
                        await self._send_bindings(writer)
                    reason = await self._obey(request, hold)
                    if reason is not None:
                        log.warning("takeover refused: rules lead here", reason=reason, pid=hello.pid)
                    word = type_of(request)
                    await send(writer, Done(word) if reason is None else Refused(word, reason))
        finally:
            self._has_new_instance = False
            self._steady.set()
            if self._control.open and not self._yielding:
                log.warning("new instance left before takeover", pid=hello.pid)
                self._owner.share(False)
                if hold.lasts:
                    await self._owner.hold(False)

    async def _obey(self, request: Request, hold: HoldTime) -> str | None:
        """Carry out a request of a new instance. Return None, or the reason if it is refused."""
        match request:
            case Hold():
                hold.begin()
                self._steady.clear()
                await self._owner.hold(True)
            case Resume():
                hold.end()
                await self._owner.hold(False)
                self._steady.set()
            case Take():
                if (reason := await self._obstacle()) is not None:
                    return reason
                hold.end()
                self.successor = request.successor
                self.release()
                await self._owner.yield_all()
                self.superseded.set()
                self._steady.set()
            case Stop():
                raise ValueError("stop is for other protocol versions")
        return None

    def _accepted(self) -> Accepted:
        offer = self._owner.offer()
        return Accepted(services=offer.services, sources=in_message(offer.sources))

    async def _obstacle(self) -> str | None:
        """Return why the present rules do not allow `Take`, or None if they do."""
        try:
            return "the kernel's rules still lead to this process" if await self._owner.leads_here() else None
        except KernelError as error:
            return f"the kernel's rules cannot be read: {error}"

    async def _send_bindings(self, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(RECALL_S):
                bindings = freshest(await self._owner.bindings())
        except Exception as error:  # No error may stop the takeover.
            log.warning("session affinity not sent", reason=repr(error))
            return
        for part in bindings:
            await send(writer, Bindings(part))
            await asyncio.sleep(0)  # Without workers this loop also serves clients, so let it run.

    def _crashed(self, task: str, error: BaseException) -> None:
        log.error("background task failed", task=task, exc_info=error)
