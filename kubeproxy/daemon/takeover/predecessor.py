"""Those who serve until the rules lead to us, as we see them: an owner whom we follow, or workers whose control process
has died. Whatever becomes of them, or does not, is no obstacle."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import Final

import structlog

from kubeproxy.daemon.takeover.control_socket import ControlSocket, connect
from kubeproxy.daemon.takeover.protocol import (
    LINE_BYTES,
    Message,
    close,
    heard,
    receive,
    receive_first,
    send,
    send_first,
)
from kubeproxy.dataplane.messages import RestoreBindings
from kubeproxy.runtime import net_admin
from kubeproxy.runtime.unix_names import uid_of

log = structlog.get_logger(__name__)

ANSWER_S: Final = 5.0
"""How long an incumbent has for an answer; one that takes longer hangs, and is passed over."""
BINDINGS: Final = 65_536
"""Clients that one process may tell of, as many as an owner tells a successor."""


RETRY_S: Final = 0.1
"""At what pace those are asked again that are busy with another successor. They are waited for as long as it takes, for
they serve."""
ASKED: Final = 32
"""Names asked at a time, the newest first."""


class BusyError(Exception):
    """The process serves another successor, or is not ready; or it `looks` for an owner, as we do."""

    def __init__(self, *, looks: bool) -> None:
        super().__init__("it looks for an owner, too" if looks else "it is busy")
        self.looks = looks


class UnprovenError(Exception):
    """The peer has not proven CAP_NET_ADMIN."""


async def greet(name: str, hello: Message) -> Predecessor:
    """Say hello to a control process, and prove that we may.

    BusyError, UnprovenError; ConnectionError when it has gone; TimeoutError when it does not answer; OSError,
    ValueError, KeyError, TypeError when its answer makes no sense.
    """
    sock = await connect(name)
    end = sock.close
    challenge = net_admin.Challenge()
    try:
        if (uid := uid_of(sock)) != os.geteuid():
            raise UnprovenError(f"it belongs to user {uid}")
        async with asyncio.timeout(ANSWER_S):
            send_first(sock, hello, [challenge.fileno()])
            answer, descriptors = await receive_first(sock)
            proves = [net_admin.answer(descriptor) for descriptor in descriptors]
            if answer is None:
                raise ConnectionResetError
            if not challenge.answered:
                raise UnprovenError
            if proves:
                reader, writer = await asyncio.open_unix_connection(sock=sock, limit=LINE_BYTES)
                end = writer.close
                await send(writer, {"proved": proves[0]})
                answer = await receive(reader)
                if answer is None:
                    raise ConnectionResetError
            if answer.get("busy") or answer.get("looking"):
                raise BusyError(looks=bool(answer.get("looking")))
            if not proves:
                raise ValueError(f"expected a challenge, got {answer!r}")
            return Predecessor(reader, writer, answer, name=name)
    except BaseException:
        end()
        raise
    finally:
        challenge.close()


class Search:
    """Looks for the owner of the node among the control processes of this network namespace."""

    def __init__(self, control: ControlSocket, hello: Message) -> None:
        self._control = control
        self._hello = hello
        self.passed_over: set[str] = set()
        """Names of those that may own the node and did not answer."""
        self._no_proxies: set[str] = set()
        """Names of those that have proven nothing."""

    async def greet(self, name: str) -> Predecessor:
        """See `greet`."""
        return await greet(name, self._hello)

    async def find(self, given_up: Callable[[], bool]) -> Predecessor | None:
        """The owner; None: the node is ours (or `given_up` says so). Whatever is asked of us from then on has to be
        answered so: nothing may be awaited in between."""
        waits_its_turn = False
        while not given_up():
            names = self._names()[:ASKED]
            answers = await asyncio.gather(*map(self.greet, names), return_exceptions=True)
            found = [answer for answer in answers if isinstance(answer, Predecessor)]
            busy = False
            for name, answer in zip(names, answers, strict=True):
                if isinstance(answer, BaseException):
                    busy |= self._note(name, answer)
            for surplus in found[1:]:
                self.passed_over.add(surplus.name)
                surplus.close()
            if found:
                return found[0]
            # Nothing is awaited from here to where we answer as the owner: a process that has come meanwhile and is
            # older is seen here, and a later one is told.
            if not busy and not any(name < self._control.name for name in self._names()):
                return None
            if busy and not waits_its_turn:
                log.info("another process is just taking over; waits for its turn")
                waits_its_turn = True
            await asyncio.sleep(RETRY_S)
        return None

    def _names(self) -> list[str]:
        return [name for name in self._control.others() if name not in self.passed_over | self._no_proxies]

    def _note(self, name: str, error: BaseException) -> bool:
        """What became of a greeting; whether it is to be tried again."""
        match error:
            case BusyError():
                return not error.looks
            case MemoryError():  # no thread to ask it in: there may be one later
                return True
            case ConnectionError():  # it has just ended
                return False
            case UnprovenError():
                self._no_proxies.add(name)
                log.warning("not a kubeproxy: it has no CAP_NET_ADMIN", name=name)
                return False
            case OSError() | ValueError() | KeyError() | TypeError():
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
    """The owner that is still there, as its successor sees it. One that dies or hangs is no obstacle."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Message, *, name: str
    ) -> None:
        """`answer` is what it said to ``hello``. KeyError, TypeError, ValueError: it makes no sense."""
        self.name = name
        self._reader = reader
        self._writer = writer
        self._recalls = bool(answer.get("recalls"))
        """Whether it knows the word; an older one does not, and would hang up."""
        self.silent = False
        """Whether it did not answer in time, though it has not ended."""
        self.pid = int(answer["pid"])
        self.version = str(answer["version"])

    async def recall(self) -> list[RestoreBindings]:
        """What it knows of clients, as far as it tells that in time."""
        remembered: list[RestoreBindings] = []
        if self._recalls:
            await self._ask("recall", remembered)
        return remembered

    async def hold(self) -> None:
        """Have it leave the rules alone."""
        await self._ask("hold")

    async def resume(self) -> None:
        """Have it look after the rules again, because we could not."""
        await self._ask("resume")

    async def take(self) -> str | None:
        """Tell it that the rules are ours; back when it has given everything away. Why it does not, or None."""
        return await self._ask("take")

    @property
    def gone(self) -> bool:
        """Whether it has ended."""
        return self._reader.at_eof() or self._writer.is_closing()

    async def _ask(self, word: str, remembered: list[RestoreBindings] | None = None) -> str | None:
        """Back when it has done so, or has gone: None; or with the reason for which it refuses. What it tells of
        clients meanwhile is put into `remembered`."""
        known = 0
        try:
            async with asyncio.timeout(ANSWER_S):
                await send(self._writer, {"do": word})
                while (answer := await receive(self._reader)) is not None:
                    if answer.get("done") == word:
                        return None
                    if answer.get("refused") == word:
                        return str(answer.get("reason"))
                    if remembered is not None and known < BINDINGS and (piece := heard(answer)) is not None:
                        known += len(piece.bindings)
                        remembered.append(piece)
            log.warning("the process that served before has gone", pid=self.pid, asked=word)
        except ConnectionError:
            log.warning("the process that served before has gone", pid=self.pid, asked=word)
        except (OSError, ValueError) as error:
            self.silent = isinstance(error, TimeoutError)
            log.warning("the process that served before does not answer", pid=self.pid, asked=word, reason=repr(error))
        return None

    def close(self) -> None:
        """Nothing more is asked of it."""
        self._writer.close()


class OrphanedWorker:
    """A worker of a dead control process, which serves until it is told that others do.

    It has no privileges, so any process of our user may claim to be one: what it tells is bounded, and counts for our
    frontends and endpoints only, as `RestoreBindings` does."""

    def __init__(self, writer: asyncio.StreamWriter, introduction: Message, *, challenge: int | None) -> None:
        """`challenge`: what it sent for us to prove ourselves on; it is ours to close. TypeError, ValueError: what it
        said of itself makes no sense."""
        try:
            self.pid = int(introduction["orphan"])
        except (TypeError, ValueError):
            close([challenge] if challenge is not None else [])
            raise
        self._challenge = challenge
        self._recalls = bool(introduction.get("recalls"))
        """Whether it knows the word; an older one does not, and would say nothing."""
        self._writer = writer
        self._remembered: list[RestoreBindings] = []
        self._told = asyncio.Event()
        """Set when it has told all, or never will."""
        self._room = 0
        """How many clients more it may tell of."""

    async def recall(self) -> list[RestoreBindings]:
        """What it knows of clients, as far as it tells that in time."""
        if self._recalls:
            self._told.clear()
            self._remembered.clear()
            self._room = BINDINGS
            with contextlib.suppress(OSError):  # it may end, or hang, at any time
                async with asyncio.timeout(ANSWER_S):
                    await send(self._writer, {"recall": True})
                    await self._told.wait()
            self._room = 0
        return self._remembered

    async def dismiss(self) -> None:
        """The rules lead to others; with the proof that we may say so."""
        if self._challenge is not None:
            net_admin.answer(self._challenge)
            self._challenge = None
        with contextlib.suppress(OSError):  # it may end at any time
            await send(self._writer, {"retire": True})

    def hear(self, message: Message) -> None:
        """It says something."""
        if message.get("told"):
            self._told.set()
        elif self._room > 0 and (piece := heard(message)) is not None:
            self._room -= len(piece.bindings)
            self._remembered.append(piece)

    def gone(self) -> None:
        """It has ended, and says nothing more."""
        self._told.set()
        close([self._challenge] if self._challenge is not None else [])
        self._challenge = None
