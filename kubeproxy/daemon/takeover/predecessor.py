"""The predecessor: the instance that owns the node, as a new instance sees it; and the search for it.

A predecessor that hangs or ends at any point does not stop the takeover.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from kubeproxy.daemon.takeover.comparison import Offer, TakeoverRefusedError, offer_in
from kubeproxy.daemon.takeover.control_socket import ControlSocket, connect
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

log = structlog.get_logger(__name__)

ANSWER_S: Final = 5.0
"""How long a process has for an answer; one that takes longer hangs, and is passed over."""
RETRY_S: Final = 0.1
"""How often busy processes are asked again. The new instance waits for them without limit, because they serve."""
ENDINGS: Final = 10
"""How often a name may end connections without an answer before it counts for nothing."""
NAMES: Final = 32
"""Names asked at a time, the newest first."""
STOP_MARGIN_S: Final = 30.0
"""How long a process that was asked to stop may take after its grace period: its last clients, and the rules."""


class BusyError(Exception):
    """The process cannot be followed now, or is `looking` for an owner, too."""

    def __init__(self, *, looking: bool) -> None:
        super().__init__("it looks for an owner, too" if looking else "it is busy")
        self.looking = looking


class UnprovenError(Exception):
    """The peer has not proven CAP_NET_ADMIN."""


async def greet(name: str, hello: Hello) -> Predecessor:
    """Connect to a control process, say hello, and prove CAP_NET_ADMIN in both directions.

    BusyError, UnprovenError; ConnectionError when it has ended; TimeoutError when it does not answer; OSError,
    ValueError when its answer is not of this protocol.
    """
    sock = await connect(name)
    end = sock.close
    challenge = peer_capability.Challenge()
    try:
        if (uid := uid_of(sock)) != os.geteuid():
            raise UnprovenError(f"it belongs to user {uid}")
        async with asyncio.timeout(ANSWER_S):
            send_first(sock, hello, [challenge.fileno()])
            first, descriptors = await receive_first(sock, FIRST_ANSWERS)
            for descriptor in descriptors:
                peer_capability.answer(descriptor)
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
            same_protocol = first.protocol == hello.protocol
            return Predecessor(reader, writer, first, offer, name=name, same_protocol=same_protocol)
    except BaseException:
        end()
        raise
    finally:
        challenge.close()


class Search:
    """The search for the owner of the node among the control processes of this network namespace."""

    def __init__(
        self, control: ControlSocket, hello: Hello, obstacle: Callable[[Offer], str | None] = lambda owner: None
    ) -> None:
        """`obstacle`: why we must not take over from an owner with that offer; None: we may."""
        self._control = control
        self._hello = hello
        self._obstacle = obstacle
        self.passed_over: set[str] = set()
        """Names of those that may own the node and did not answer."""
        self._unproven: set[str] = set()
        """Names of those without CAP_NET_ADMIN."""
        self._ended: dict[str, int] = {}
        """How often a connection to each name ended without an answer."""
        self._stopping: dict[str, float] = {}
        """Names of those that stop at our request, and until when, in time of the loop."""

    async def greet(self, name: str) -> Predecessor:
        """See `greet`."""
        return await greet(name, self._hello)

    async def find(self, given_up: Callable[[], bool]) -> Predecessor | None:
        """The owner; None: the node is ours (or `given_up` says so). TakeoverRefusedError: `obstacle` forbids it.

        An owner of another protocol version is asked to stop, and waited for. The caller has to answer accordingly
        from then on, and must not await anything in between.
        """
        logged = False
        while not given_up():
            names = [name for name in self._names() if name not in self._stopping][:NAMES]
            answers = await asyncio.gather(*map(self.greet, names), return_exceptions=True)
            found = [answer for answer in answers if isinstance(answer, Predecessor)]
            busy = False
            for name, answer in zip(names, answers, strict=True):
                if isinstance(answer, BaseException):
                    busy |= self._note(name, answer)
            self._require_no_obstacle(found)
            others = [one for one in found if not one.same_protocol]
            await asyncio.gather(*map(self._stop, others))
            found = [one for one in found if one.same_protocol]
            for surplus in found[1:]:
                self.passed_over.add(surplus.name)
                surplus.close()
            if found:
                return found[0]
            # Nothing is awaited from here to where we answer as the owner: an older process that has come meanwhile
            # is seen here, and a later one gets our answer.
            waits = bool(others) or self._waits_for_stopping()
            if not busy and not waits and not any(name < self._control.name for name in self._names()):
                return None
            if busy and not logged:
                log.info("another process takes over; waiting")
                logged = True
            await asyncio.sleep(RETRY_S)
        return None

    def _names(self) -> list[str]:
        return [name for name in self._control.others() if name not in self.passed_over | self._unproven]

    def _require_no_obstacle(self, found: Sequence[Predecessor]) -> None:
        for owner in found:
            if (reason := self._obstacle(owner.offer)) is not None:
                for one in found:
                    one.close()
                raise TakeoverRefusedError(str(owner), reason)

    async def _stop(self, owner: Predecessor) -> None:
        """Ask an owner of another protocol version to stop; one that does not is passed over."""
        seen = {"pid": owner.pid, "version": owner.version, "its": owner.protocol, "ours": self._hello.protocol}
        try:
            grace_s = await owner.stop()
        except (OSError, ValueError) as error:
            self.passed_over.add(owner.name)
            log.warning("predecessor: other protocol, cannot stop it", **seen, reason=str(error) or repr(error))
            return
        finally:
            owner.close()
        self._stopping[owner.name] = asyncio.get_running_loop().time() + grace_s + STOP_MARGIN_S
        log.warning("predecessor: other takeover protocol, stops first", **seen, within_s=grace_s)

    def _waits_for_stopping(self) -> bool:
        """Whether a process that was asked to stop is still there; one that takes too long is passed over."""
        now, left = asyncio.get_running_loop().time(), set(self._control.others())
        for name, until in list(self._stopping.items()):
            if name not in left or now >= until:
                del self._stopping[name]
            if name in left and now >= until:
                self.passed_over.add(name)
                log.warning("predecessor does not stop in time", name=name, remedy="end it")
        return bool(self._stopping)

    def _note(self, name: str, error: BaseException) -> bool:
        """Record a failed greeting; whether to try again."""
        match error:
            case BusyError():
                return not error.looking
            case MemoryError():  # no thread for the connect: there may be one later
                return True
            case ConnectionError():
                # It has just ended, perhaps because another instance took over: what the others answered is older.
                self._ended[name] = self._ended.get(name, 0) + 1
                return self._ended[name] <= ENDINGS
            case UnprovenError():
                self._unproven.add(name)
                log.warning("not a kubeproxy: no CAP_NET_ADMIN", name=name)
                return False
            case OSError() | ValueError():
                self.passed_over.add(name)
                log.warning(
                    "another kubeproxy does not answer",
                    name=name,
                    reason=str(error) or repr(error),
                    remedy="end it; it yields by itself when it sees our rules",
                )
                return False
            case _:
                raise error


class Predecessor:
    """The connection to the owner. Its methods return when the owner has answered, has ended or hangs."""

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
        """With another protocol version `stop` is all that works."""
        self.name = name
        self.pid = first.pid
        self.version = first.version
        self.protocol = first.protocol
        self.offer = offer
        self.same_protocol = same_protocol
        self._reader = reader
        self._writer = writer
        self.silent = False
        """Whether it did not answer in time, though it has not ended."""

    def __str__(self) -> str:
        return f"the running kubeproxy (pid {self.pid}, version {self.version})"

    async def recall(self) -> list[RestoreBindings]:
        """The clients of session affinity, as far as the answer comes in time."""
        bindings: list[RestoreBindings] = []
        await self._ask(Recall(), bindings)
        return bindings

    async def hold(self) -> None:
        """Have it leave the rules alone."""
        await self._ask(Hold())

    async def resume(self) -> None:
        """Have it maintain the rules again, because we could not."""
        await self._ask(Resume())

    async def take(self) -> str | None:
        """The rules are ours: have it release the ports and its name. The reason of a refusal, or None."""
        return await self._ask(Take())

    async def stop(self) -> float:
        """Have it stop as after SIGTERM; its grace period in seconds. OSError, ValueError: it does not."""
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
        """Whether it has ended."""
        return self._reader.at_eof() or self._writer.is_closing()

    async def _ask(self, request: TakeoverMessage, bindings: list[RestoreBindings] | None = None) -> str | None:
        """Send a request and wait for its end: the reason of a refusal, or None. Fills `bindings` meanwhile."""
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
                            pass  # a late answer to an earlier request
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
        """End the connection."""
        self._writer.close()
