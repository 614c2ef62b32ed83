"""A server that replays recorded answers byte for byte, for any request."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from tests.support.apiserver.recordings import Exchange, Stream

Answer = Exchange | Stream | bytes
"""A recorded exchange, or raw bytes that are sent before the connection is closed."""


class ReplayServer:
    """Sends `answers` in order, then repeats the last one. `pieces`: sizes of a watch's chunks on the wire, repeated;
    empty: one chunk per line, like the real server."""

    def __init__(self, answers: Sequence[Answer], *, pieces: Sequence[int] = ()) -> None:
        self._answers = list(answers)
        self._pieces = pieces
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.requests: list[tuple[str, Mapping[str, str]]] = []
        """Paths with their queries, and headers in lower case."""
        self.connections = 0
        self.port = 0

    @property
    def url(self) -> str:
        """The server's URL."""
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self._one(reader, writer):
                    pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {key.lower(): value for key, _, value in (line.partition(": ") for line in head[1:] if line)}
        self.requests.append((head[0].split(" ")[1], headers))
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        match answer:
            case bytes():
                writer.write(answer)
                await writer.drain()
                return False
            case Exchange(status=0):
                return False
            case Exchange():
                chunked = "Transfer-Encoding" in answer.headers
                length = {} if chunked else {"Content-Length": str(len(answer.body))}
                writer.write(_head(answer.status, {**answer.headers, **length}))
                writer.write(_chunk(answer.body) + b"0\r\n\r\n" if chunked else answer.body)
                await writer.drain()
                return answer.headers.get("Connection") != "close"
            case Stream():
                return await self._stream(writer, answer)

    async def _stream(self, writer: asyncio.StreamWriter, answer: Stream) -> bool:
        if "Transfer-Encoding" not in answer.headers:  # a refused watch
            writer.write(_head(answer.status, answer.headers) + answer.body)
            return True
        writer.write(_head(answer.status, answer.headers))
        for chunk in self._cut_up(answer.body):
            writer.write(_chunk(chunk))
            await writer.drain()
            if self._pieces:
                await asyncio.sleep(0)  # makes one read per piece more likely
        if answer.cut:
            return False
        writer.write(b"0\r\n\r\n")
        return True

    def _cut_up(self, body: bytes) -> list[bytes]:
        if not self._pieces:
            return body.splitlines(keepends=True)
        found, at, number = [], 0, 0
        while at < len(body):
            size = self._pieces[number % len(self._pieces)]
            found.append(body[at : at + size])
            at, number = at + size, number + 1
        return found


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Recorded", *(f"{key}: {value}" for key, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)
