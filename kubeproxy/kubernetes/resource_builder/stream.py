"""Splits a stream of bytes into documents: YAML documents separated by ``---``, or JSON values one after the other.

Only the incomplete document is in memory, so a stream of any length uses the memory of its longest document. The text
is UTF-8, or UTF-16 with a byte order mark.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kubeproxy.kubernetes.manifests.json_text import JsonScanner, TextDecoder, after_space, is_json_object
from kubeproxy.kubernetes.manifests.split import SEPARATOR, body, is_empty, is_separated, next_separator
from kubeproxy.kubernetes.resource_builder.errors import Position, UnreadableError

MAX_DOCUMENT: Final = 256 << 20
"""The largest document, in bytes. A larger document ends the reading of its source with an error."""
_BRACE: Final = b"{"[0]


@dataclass(frozen=True, slots=True)
class Document:
    """The text of one document, with its position."""

    text: bytes
    number: int
    """The number of the document, counted from 1 without empty documents."""
    line: int
    """The number of the document's first line."""
    is_json: bool = False
    """Whether the text is exactly one JSON value."""


class Splitter:
    """Splits a stream into documents. Call `feed` with pieces of any size, and then `end`."""

    def __init__(self, source: str, *, max_document: int = MAX_DOCUMENT) -> None:
        self._source = source
        self._max_document = max_document
        self._decoder = TextDecoder()
        self._buffer = bytearray()
        self._searched = 0
        """The position in the buffer up to which there is no separator."""
        self._json: JsonScanner | None = None
        """The scanner for the end of the first JSON value in the buffer, or None if the document is not read as
        JSON."""
        self._undecided = True
        """Whether too little has arrived to tell JSON from YAML."""
        self._number = 0
        self._line = 1

    def feed(self, data: bytes) -> Iterator[Document]:
        """Add bytes, and yield the documents that are now complete. Raise UnreadableError if a document is too
        large."""
        try:
            self._buffer += self._decoder.feed(data)
        except UnicodeDecodeError as error:
            raise UnreadableError(f"not UTF-16: {error.reason}", self._position()) from None
        yield from self._complete()
        if len(self._buffer) > self._max_document:
            raise UnreadableError(f"a document of more than {self._max_document} bytes", self._position())

    def end(self) -> Iterator[Document]:
        """End the stream, and yield the remaining documents."""
        try:
            self._buffer += self._decoder.end()
        except UnicodeDecodeError as error:
            raise UnreadableError(f"not UTF-16: {error.reason}", self._position()) from None
        yield from self._complete()
        end = next_separator(self._buffer, 0)
        rest = bytes(self._buffer if end < 0 else self._buffer[:end])
        self._buffer.clear()
        yield from self._document(rest)

    def _position(self) -> Position:
        return Position(self._source, self._number + 1, self._line)

    def _complete(self) -> Iterator[Document]:
        while True:
            if self._undecided and self._decide():
                self._json = JsonScanner()
            if self._json is not None:
                document = self._next_value()
                if document is not None:
                    yield document
                    continue
            end = self._separator()
            if end < 0:
                return
            text = bytes(self._buffer[:end])
            del self._buffer[:end]
            self._restart()
            yield from self._document(text)

    def _restart(self) -> None:
        self._searched, self._json, self._undecided = 0, None, True

    def _decide(self) -> bool:
        """Return whether the buffer begins with JSON. If the buffer has only white space, return False and leave that
        undecided."""
        if SEPARATOR.startswith(self._buffer):
            return False
        first = after_space(self._buffer, len(SEPARATOR) if is_separated(self._buffer) else 0)
        if first >= len(self._buffer):
            return False
        self._undecided = False
        if self._buffer[first] != _BRACE:
            return False
        self._skip(first)
        return True

    def _separator(self) -> int:
        """Return the position of the next document's separator, or -1 if there is none in the buffer."""
        found = next_separator(self._buffer, self._searched)
        if 0 <= found < len(self._buffer) - len(SEPARATOR):
            return found
        # At the end of the buffer, the next byte decides, which has not come yet.
        self._searched = max(0, len(self._buffer) - len(SEPARATOR) - 1)
        return -1

    def _next_value(self) -> Document | None:
        """Return the JSON value at the beginning of the buffer, or None if it is incomplete or not JSON."""
        assert self._json is not None
        end = self._json.scan(self._buffer)
        if end is None:
            return None
        text = bytes(self._buffer[:end])
        if not is_json_object(text):
            self._json = None
            return None
        self._number += 1
        document = Document(text, self._number, self._line, is_json=True)
        self._skip(end)
        self._restart()
        return document

    def _skip(self, size: int) -> None:
        """Remove bytes from the beginning of the buffer, and count their lines."""
        self._line += self._buffer.count(b"\n", 0, size)
        del self._buffer[:size]

    def _document(self, text: bytes) -> Iterator[Document]:
        line = self._line
        self._line += text.count(b"\n")
        if is_empty(text):
            return
        self._number += 1
        yield Document(body(text), self._number, line)
