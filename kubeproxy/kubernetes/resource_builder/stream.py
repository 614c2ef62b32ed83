"""Cuts bytes into documents, one at a time: YAML separated by ``---``, and JSON values one after another.

The splitter holds only the document that is not complete yet, so a stream of any length takes the memory of its longest
document. UTF-8 is read, and, with a byte order mark, UTF-16.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kubeproxy.kubernetes.manifests.json_text import JsonScanner, TextDecoder, after_space, is_json_object
from kubeproxy.kubernetes.manifests.split import SEPARATOR, body, is_empty, is_separated, next_separator
from kubeproxy.kubernetes.resource_builder.errors import Position, UnreadableError

MAX_DOCUMENT: Final = 256 << 20
"""The largest document, in bytes. A larger one ends the source with an error."""
_BRACE: Final = b"{"[0]


@dataclass(frozen=True, slots=True)
class Document:
    """The text of one document."""

    text: bytes
    number: int
    """The document's number, counted from 1 without empty documents."""
    line: int
    """The number of the document's first line."""
    is_json: bool = False
    """Whether the text is one JSON value and nothing else."""


class Splitter:
    """Cuts a stream into documents. Call `feed` with pieces of any size, then `end`."""

    def __init__(self, source: str, *, max_document: int = MAX_DOCUMENT) -> None:
        self._source = source
        self._max_document = max_document
        self._decoder = TextDecoder()
        self._buffer = bytearray()
        self._searched = 0
        """The position in the buffer before which there is no separator."""
        self._json: JsonScanner | None = None
        """The search for the end of the buffer's first JSON value, or None if the document is not read as JSON."""
        self._undecided = True
        """Whether it is still open whether the document is JSON or YAML."""
        self._number = 0
        self._line = 1

    def feed(self, data: bytes) -> Iterator[Document]:
        """Yield the documents that these bytes complete. Raise UnreadableError if the source has to end."""
        try:
            self._buffer += self._decoder.feed(data)
        except UnicodeDecodeError as error:
            raise UnreadableError(f"not UTF-16: {error.reason}", self._position()) from None
        yield from self._complete()
        if len(self._buffer) > self._max_document:
            raise UnreadableError(f"a document of more than {self._max_document} bytes", self._position())

    def end(self) -> Iterator[Document]:
        """Yield the documents that the end of the source completes."""
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
        """Return whether the buffer begins with JSON. This is undecided as long as the buffer has only white space."""
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
        """Return where the next document begins, or -1 if the buffer does not contain its beginning."""
        found = next_separator(self._buffer, self._searched)
        if 0 <= found < len(self._buffer) - len(SEPARATOR):
            return found
        # At the end of the buffer, the next byte decides, which has not come yet.
        self._searched = max(0, len(self._buffer) - len(SEPARATOR) - 1)
        return -1

    def _next_value(self) -> Document | None:
        """Return the JSON value at the buffer's beginning, or None if it is incomplete or not JSON."""
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
        """Remove bytes that are white space or were already returned."""
        self._line += self._buffer.count(b"\n", 0, size)
        del self._buffer[:size]

    def _document(self, text: bytes) -> Iterator[Document]:
        line = self._line
        self._line += text.count(b"\n")
        if is_empty(text):
            return
        self._number += 1
        yield Document(body(text), self._number, line)
