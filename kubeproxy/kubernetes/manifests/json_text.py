"""Splits bytes into JSON values before they are parsed, and converts UTF-16 to UTF-8."""

from __future__ import annotations

import codecs
import re
from typing import Final

import msgspec

from kubeproxy.kubernetes.manifests.parse import is_json

_UTF8_MARK: Final = codecs.BOM_UTF8
_UTF16_MARKS: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_OUTSIDE: Final = re.compile(rb'["{}\[\]]')
_INSIDE: Final = re.compile(rb'["\\]')
_SPACES: Final = re.compile(rb"[ \t\r\n]*")
_QUOTE, _ESCAPE, _OPENING = b'"'[0], b"\\"[0], b"{["


def as_utf8(data: bytes) -> bytes:
    """Return a text as UTF-8 without byte order mark. Text with a UTF-16 mark is converted. Invalid text is returned
    unchanged."""
    decoder = TextDecoder()
    try:
        return decoder.feed(data) + decoder.end()
    except UnicodeDecodeError:
        return data


def json_values(text: bytes, line: int) -> list[tuple[int, bytes]]:
    """Return the JSON values of a document, each with the number of its first line. `line` is the number of the
    document's first line.

    Return an empty list if the document is a single value or is not JSON.
    """
    if not is_json(text) or is_json_object(text):
        return []
    found: list[tuple[int, bytes]] = []
    position = 0
    while (start := after_space(text, position)) < len(text):
        end = JsonScanner(start).scan(text)
        if end is None or not is_json_object(text[start:end]):
            return []
        line += text.count(b"\n", position, start)
        found.append((line, text[start:end]))
        line += text.count(b"\n", start, end)
        position = end
    return found


def after_space(text: bytes | bytearray, start: int) -> int:
    """Return the position of the first byte from `start` on that is not white space."""
    match = _SPACES.match(text, start)
    assert match is not None  # The text may be empty.
    return match.end()


class JsonScanner:
    """Finds the end of a JSON value by counting brackets, while the text arrives in pieces."""

    def __init__(self, start: int = 0) -> None:
        self._position = start
        self._depth = 0
        self._inside = False

    def scan(self, buffer: bytearray | bytes) -> int | None:
        """Return the position after the value, or None if the value is not complete. The next call continues the
        search."""
        position, depth = self._position, self._depth
        while True:
            found = (_INSIDE if self._inside else _OUTSIDE).search(buffer, position)
            if found is None:
                self._position, self._depth = len(buffer), depth
                return None
            position = found.end()
            character = buffer[position - 1]
            if self._inside:
                if character == _ESCAPE:
                    if position == len(buffer):  # The escaped character has not arrived yet.
                        self._position, self._depth = position - 1, depth
                        return None
                    position += 1
                else:
                    self._inside = False
            elif character == _QUOTE:
                self._inside = True
            elif character in _OPENING:
                depth += 1
            else:
                depth -= 1
                if depth <= 0:
                    return position


def is_json_object(text: bytes) -> bool:
    """Return whether a text is exactly one JSON object. YAML in braces may begin in the same way."""
    if not is_json(text):
        return False
    try:
        msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


class TextDecoder:
    """Converts a stream to UTF-8: removes the byte order mark, and converts UTF-16 that has one."""

    def __init__(self) -> None:
        self._head: bytes | None = b""
        """The first bytes, as long as they are too few to tell the encoding. It is None once the encoding is known."""
        self._utf16: codecs.IncrementalDecoder | None = None

    def feed(self, data: bytes) -> bytes:
        """Add bytes, and return the text that can be converted, as UTF-8."""
        if self._head is None:
            return self._convert(data)
        self._head += data
        if len(self._head) < len(_UTF8_MARK):
            return b""
        return self._begin()

    def end(self) -> bytes:
        """End the stream, and return the rest of the text."""
        rest = self._begin() if self._head is not None else b""
        return rest + (self._utf16.decode(b"", final=True).encode() if self._utf16 is not None else b"")

    def _begin(self) -> bytes:
        head, self._head = self._head or b"", None
        if head.startswith(_UTF16_MARKS):
            self._utf16 = codecs.getincrementaldecoder("utf-16")()
        return self._convert(head.removeprefix(_UTF8_MARK))

    def _convert(self, data: bytes) -> bytes:
        return data if self._utf16 is None else self._utf16.decode(data).encode()
