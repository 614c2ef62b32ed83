"""Those who serve until the rules lead to us, as we see them: an owner whom we follow, or workers whose control process
has died. Whatever becomes of them, or does not, is no obstacle."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

import structlog

from kubeproxy.daemon.takeover.protocol import Message, heard, receive, send
from kubeproxy.dataplane.messages import RestoreBindings

log = structlog.get_logger(__name__)

ANSWER_S: Final = 5.0
"""How long an incumbent has for an answer; one that takes longer hangs, and is passed over."""


class Predecessor:
    """The owner that is still there, as its successor sees it. One that dies or hangs is no obstacle."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Message) -> None:
        """`answer` is what it said to ``hello``. KeyError, TypeError, ValueError: it makes no sense."""
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
        return await self._ask("recall") if self._recalls else []

    async def hold(self) -> None:
        """Have it leave the rules alone."""
        await self._ask("hold")

    async def resume(self) -> None:
        """Have it look after the rules again, because we could not."""
        await self._ask("resume")

    async def take(self) -> None:
        """Tell it that the rules are ours; back when it has given everything away."""
        await self._ask("take")

    @property
    def gone(self) -> bool:
        """Whether it has ended."""
        return self._reader.at_eof() or self._writer.is_closing()

    async def _ask(self, word: str) -> list[RestoreBindings]:
        """Back when it has done so, with what it told meanwhile."""
        remembered: list[RestoreBindings] = []
        try:
            async with asyncio.timeout(ANSWER_S):
                await send(self._writer, {"do": word})
                while (answer := await receive(self._reader)) is not None:
                    if answer.get("done") == word:
                        return remembered
                    if (piece := heard(answer)) is not None:
                        remembered.append(piece)
            log.warning("the process that served before has gone", pid=self.pid, asked=word)
        except ConnectionError:
            log.warning("the process that served before has gone", pid=self.pid, asked=word)
        except (OSError, ValueError) as error:
            self.silent = isinstance(error, TimeoutError)
            log.warning("the process that served before does not answer", pid=self.pid, asked=word, reason=repr(error))
        return remembered

    def close(self) -> None:
        """Nothing more is asked of it."""
        self._writer.close()


class OrphanedWorker:
    """A worker of a dead control process, which serves until it is told that others do."""

    def __init__(self, writer: asyncio.StreamWriter, introduction: Message) -> None:
        """TypeError, ValueError: what it said of itself makes no sense."""
        self.pid = int(introduction["orphan"])
        self._recalls = bool(introduction.get("recalls"))
        """Whether it knows the word; an older one does not, and would say nothing."""
        self._writer = writer
        self._remembered: list[RestoreBindings] = []
        self._told = asyncio.Event()
        """Set when it has told all, or never will."""

    async def recall(self) -> list[RestoreBindings]:
        """What it knows of clients, as far as it tells that in time."""
        if self._recalls:
            self._told.clear()
            self._remembered.clear()
            with contextlib.suppress(OSError):  # it may end, or hang, at any time
                async with asyncio.timeout(ANSWER_S):
                    await send(self._writer, {"recall": True})
                    await self._told.wait()
        return self._remembered

    async def dismiss(self) -> None:
        """The rules lead to others."""
        with contextlib.suppress(OSError):  # it may end at any time
            await send(self._writer, {"retire": True})

    def hear(self, message: Message) -> None:
        """It says something."""
        if message.get("told"):
            self._told.set()
        elif (piece := heard(message)) is not None:
            self._remembered.append(piece)

    def gone(self) -> None:
        """It has ended, and says nothing more."""
        self._told.set()
