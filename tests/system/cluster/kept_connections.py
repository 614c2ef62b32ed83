"""Connections that are kept: idle, chatting, bulk for a slow reader, and half-closed; every byte is compared.

The server is `tests.system.e2e.backend`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

PATIENCE_S: Final = 10.0
"""An answer that comes later is a broken connection."""
PAUSE_S: Final = 0.5
"""Between two words of a chatting connection, and between two lines to a half-closed one."""
READ_BYTES, READ_PAUSE_S = 1 << 16, 0.1
"""What a bulk connection reads, and how often."""
AHEAD_BYTES: Final = 1 << 20
"""What it has written and not read: more than its own receive buffer takes, so the rest waits in the proxy."""
ENDING_S: Final = 60.0
"""How long the bytes on the way may take at its end."""

Kind = Callable[["KeptConnection"], Awaitable[None]]


class KeptConnection:
    """One connection. Each of `KINDS` goes on until `leaving` is set, and raises an error if the connection breaks."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seed: int, leaving: asyncio.Event
    ) -> None:
        self.longest_silence_s = 0.0
        """The longest that an answer took."""
        self._reader = reader
        self._writer = writer
        self._random = random.Random(seed)
        self._leaving = leaving

    async def idle(self) -> None:
        """Say nothing until the end, when one word must come back."""
        self._writer.write(b"echo\n")
        await self._word()
        heard, left = asyncio.create_task(self._reader.read(1)), asyncio.create_task(self._leaving.wait())
        await asyncio.wait((heard, left), return_when=asyncio.FIRST_COMPLETED)
        if heard.done():
            left.cancel()
            raise EOFError(f"{heard.result()!r} came")
        heard.cancel()
        await asyncio.wait((heard,))
        await self._word()

    async def chatting(self) -> None:
        """Say a word again and again, which must come back."""
        self._writer.write(b"echo\n")
        while not self._leaving.is_set():
            await self._word()
            await self._pause(PAUSE_S)
        await self._word()

    async def bulk(self) -> None:
        """Read slowly what comes back, and write as much as was read."""
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, READ_BYTES)
        self._writer.write(b"echo\n")
        ahead = bytearray(self._say(AHEAD_BYTES))
        while not self._leaving.is_set():
            data = await self._timed(self._reader.read(READ_BYTES))
            if not data or ahead[: len(data)] != data:
                raise ValueError("other bytes came back")
            del ahead[: len(data)]
            ahead += self._say(len(data))
            await self._pause(READ_PAUSE_S)
        self._writer.write_eof()
        async with asyncio.timeout(ENDING_S):
            if await self._reader.read() != ahead:
                raise ValueError("other bytes came back at the end")

    async def half_closed(self) -> None:
        """Say all at once, and listen to what goes on to come."""
        self._writer.write(b"drip 1000000 %.1f\n" % PAUSE_S)
        self._writer.write_eof()
        name = await self._timed(self._reader.readline())
        while not self._leaving.is_set():
            line = await self._timed(self._reader.readline(), PAUSE_S)
            if line != name:
                raise ValueError(f"{line!r} came")

    async def _word(self) -> None:
        word = self._say(self._random.randrange(1, 2000))
        if await self._timed(self._reader.readexactly(len(word))) != word:
            raise ValueError("other bytes came back")

    def _say(self, count: int) -> bytes:
        data = self._random.randbytes(count)
        self._writer.write(data)
        return data

    async def _timed(self, answer: Awaitable[bytes], due_s: float = 0.0) -> bytes:
        """Wait for an answer that is due in so long."""
        began = time.monotonic()
        async with asyncio.timeout(PATIENCE_S):
            data = await answer
        self.longest_silence_s = max(self.longest_silence_s, time.monotonic() - began - due_s)
        return data

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._leaving.wait(), seconds)


KINDS: Final[Mapping[str, Kind]] = {
    "idle": KeptConnection.idle,
    "chatting": KeptConnection.chatting,
    "half-closed": KeptConnection.half_closed,
    "bulk": KeptConnection.bulk,
}
_CYCLE: Final = (*("idle", "chatting", "half-closed") * 3, "bulk")


def kind_of(number: int) -> str:
    """The kind of the connection with that number: one of ten is bulk, and the others are as many of each."""
    return _CYCLE[number % len(_CYCLE)]
