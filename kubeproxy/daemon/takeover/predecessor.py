"""The predecessor: the instance that owns the node, as a new instance sees it.

The takeover continues even if the predecessor hangs or ends at any point.
"""

from __future__ import annotations

import asyncio
import os
from typing import Final

import structlog

from kubeproxy.daemon.takeover.control_socket import connect
from kubeproxy.daemon.takeover.protocol import (
    ANSWERS,
    FIRST_ANSWERS,
    Accepted,
    Answer,
    Busy,
    Hello,
    Hold,
    Proof,
    Prove,
    Refused,
    Resume,
    Stop,
    Stopping,
    Take,
    receive,
    receive_first,
    send,
    send_first,
    type_of,
)
from kubeproxy.daemon.takeover.serves_enough import Offer, offer_in
from kubeproxy.dataplane.balancing.affinity import AFFINITY_ENTRIES
from kubeproxy.dataplane.messages import RestoreBindings
from kubeproxy.dataplane.workers.takeover_messages import (
    LINE_BYTES,
    Bindings,
    Done,
    Recall,
    TakeoverMessage,
)
from kubeproxy.runtime import peer_capability
from kubeproxy.runtime.abstract_sockets import uid_of
from kubeproxy.runtime.peer_capability import Purpose

log = structlog.get_logger(__name__)

ANSWER_S: Final = 5.0
"""How long a process may take to answer. A slower one counts as hanging, and is skipped."""


class BusyError(Exception):
    """Raised if nobody can take over from the process now. `looking` says that the process itself is looking for an
    owner."""

    def __init__(self, *, looking: bool) -> None:
        super().__init__("it looks for an owner, too" if looking else "it is busy")
        self.looking = looking


class UnprovenError(Exception):
    """Raised if the peer has not proved that it has CAP_NET_ADMIN."""


async def greet(name: str, hello: Hello, *, within_s: float = ANSWER_S, waits_for_room: bool = False) -> Predecessor:
    """Connect to a control process, say hello, and prove CAP_NET_ADMIN in both directions.

    With `waits_for_room`, wait a moment in a thread if the process's queue is full. Raise FullError if the process
    accepts no connection now, ConnectionError if it has ended, and TimeoutError if it does not answer. Raise BusyError
    if nobody can take over from it now, UnprovenError if it belongs to another user or does not prove CAP_NET_ADMIN,
    and OSError or ValueError if its answer does not follow this protocol.
    """
    sock = await connect(name, waits_for_room=waits_for_room)
    end = sock.close
    challenge = None
    try:
        if (uid := uid_of(sock)) != os.geteuid():
            raise UnprovenError(f"it belongs to user {uid}")
        challenge = peer_capability.Challenge(Purpose.OWN, name)
        async with asyncio.timeout(within_s):
            send_first(sock, hello, [challenge.fileno()])
            first, descriptors = await receive_first(sock, FIRST_ANSWERS)
            same_protocol = first.protocol == hello.protocol
            for descriptor in descriptors:
                peer_capability.answer(descriptor, Purpose.TAKE if same_protocol else Purpose.STOP, name)
            if not challenge.answered:
                raise UnprovenError
            if isinstance(first, Busy):
                raise BusyError(looking=first.looking)
            reader, writer = await asyncio.open_unix_connection(sock=sock, limit=LINE_BYTES)
            end = writer.close
            await send(writer, Proof())
            match await receive(reader, ANSWERS):
                case Accepted() as accepted:
                    offer = offer_in(accepted)
                case Busy(looking=looking):
                    raise BusyError(looking=looking)
                case None:
                    raise ConnectionResetError
                case other:
                    raise ValueError(f"expected accepted, got {type_of(other)}")
            return Predecessor(reader, writer, first, offer, name=name, same_protocol=same_protocol)
    except BaseException:
        end()
        raise
    finally:
        if challenge is not None:
            challenge.close()


class Predecessor:
    """The connection to the owner. Each method returns when the owner has answered, has ended, or is found to hang."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        first: Prove,
        offer: Offer,
        *,
        name: str,
        same_protocol: bool,
    ) -> None:
        """If `same_protocol` is false, only `stop` works."""
        self.name = name
        self.pid = first.pid
        self.version = first.version
        self.protocol = first.protocol
        self.offer = offer
        self.same_protocol = same_protocol
        self._reader = reader
        self._writer = writer
        self.silent = False
        """Whether the owner has not answered in time although it still exists."""

    def __str__(self) -> str:
        return f"the running kubeproxy (pid {self.pid}, version {self.version})"

    async def recall(self) -> list[RestoreBindings]:
        """Return the session affinity bindings that arrive in time."""
        bindings: list[RestoreBindings] = []
        await self._ask(Recall(), bindings)
        return bindings

    async def hold(self) -> None:
        """Ask the owner to stop changing the rules."""
        await self._ask(Hold())

    async def resume(self) -> None:
        """Ask the owner to maintain the rules again, because this instance could not take them over."""
        await self._ask(Resume())

    async def take(self, take: Take) -> str | None:
        """Tell the owner that the rules redirect to this instance, so that it releases its ports and name and moves its
        connections. Return None, or the reason if the owner refuses."""
        return await self._ask(take)

    async def stop(self) -> float:
        """Ask the owner to stop as after SIGTERM, and return its grace period in seconds. Raise OSError or ValueError
        if it does not agree."""
        async with asyncio.timeout(ANSWER_S):
            await send(self._writer, Stop())
            match await receive(self._reader, ANSWERS):
                case Stopping(within_s=within_s):
                    return within_s
                case None:
                    raise ConnectionResetError("it closed the connection")
                case other:
                    raise ValueError(f"expected stopping, got {type_of(other)}")

    @property
    def gone(self) -> bool:
        """Return whether the predecessor has ended."""
        return self._reader.at_eof() or self._writer.is_closing()

    async def _ask(self, request: TakeoverMessage, bindings: list[RestoreBindings] | None = None) -> str | None:
        """Send a request and wait until it is done. Return None, or the reason if the request was refused. Bindings
        that arrive meanwhile are appended to `bindings`."""
        word = type_of(request)
        known = 0
        try:
            async with asyncio.timeout(ANSWER_S):
                await send(self._writer, request)
                while (answer := await self._receive()) is not None:
                    match answer:
                        case Done(request=done) if done == word:
                            return None
                        case Refused(request=refused, reason=reason) if refused == word:
                            return reason
                        case Bindings(bound=part) if bindings is not None and known < AFFINITY_ENTRIES:
                            known += len(part.bindings)
                            bindings.append(part)
                        case _:
                            pass  # A late answer to an earlier request.
            log.warning("predecessor has ended", pid=self.pid, asked=word)
        except ConnectionError:
            log.warning("predecessor has ended", pid=self.pid, asked=word)
        except (OSError, ValueError) as error:
            self.silent = isinstance(error, TimeoutError)
            log.warning("predecessor does not answer", pid=self.pid, asked=word, reason=repr(error))
        return None

    async def _receive(self) -> Answer | None:
        return await receive(self._reader, ANSWERS)

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()
