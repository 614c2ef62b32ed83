"""Splits a manifest into documents, and YAML lists into items, before they are parsed."""

from __future__ import annotations

import re
from collections.abc import Iterator

SEPARATOR = b"---"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def split(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the documents that are not empty, without their separators, each with the number of its first line."""
    data = data.removeprefix(_BYTE_ORDER_MARK)
    line, start = 1, 0
    while start < len(data):
        end = next_separator(data, start)
        text = data[start : end if end >= 0 else len(data)]
        if not is_empty(text):
            yield line, body(text)
        line += text.count(b"\n")
        start += len(text)


def next_separator(data: bytes | bytearray, start: int) -> int:
    """Return where the next separator after `start` begins, or -1 if there is none.

    A separator is only recognized at the beginning of a line, where it cannot be inside a string in YAML or JSON.
    """
    while (start := data.find(b"\n" + SEPARATOR, start)) >= 0:
        start += 1
        if is_separated(data, start):
            return start
    return -1


def body(text: bytes) -> bytes:
    """Return a document without its leading separator."""
    return text[len(SEPARATOR) :] if is_separated(text) else text


def is_separated(data: bytes | bytearray, start: int = 0) -> bool:
    """Return whether there is a document separator at `start`, and not a longer text that begins with the same
    characters."""
    end = start + len(SEPARATOR)
    return data[start:end] == SEPARATOR and (end == len(data) or data[end : end + 1].isspace())


def is_empty(text: bytes) -> bool:
    """Return whether a document has only white space, comments, directives and end marks."""
    position = len(SEPARATOR) if is_separated(text) else 0
    while position < len(text):
        end = text.find(b"\n", position)
        end = len(text) if end < 0 else end
        line = text[position:end].strip()
        if line and line != b"..." and not line.startswith((b"#", b"%")):
            return False
        position = end + 1
    return True


_ITEMS = re.compile(rb"^items:[ \t]*(?:#[^\n]*)?\r?\n", re.MULTILINE)
# The quantifiers are possessive. Otherwise the end of a comment would match in two ways, and N lines of comments in
# 2**N ways.
_FIRST_ITEM = re.compile(rb"(?:[ \t]*+(?:#[^\n]*+)?\r?\n)*+( *+)-(?=[ \r\n])")


def split_list(text: bytes) -> tuple[bytes, list[tuple[int, bytes]]] | None:
    """Separate the items from a YAML document that has block-style ``items`` at its top level.

    Return the document without the items, and each item as a document with the number of lines before it. Return None
    if the document has another form.

    Items are found by a dash at the column of the first item, where YAML allows nothing else to begin with a dash. A
    list may contain a whole cluster, and a parsed document uses thirty times the memory of its text, so lists are
    parsed item by item.
    """
    # This search is thirty times as fast as the pattern's, and few documents have items.
    if b"items:" not in text:
        return None
    key = _ITEMS.search(text)
    first = _FIRST_ITEM.match(text, key.end()) if key is not None else None
    if key is None or first is None:
        return None
    indent = len(first[1])
    if indent > _LONGEST // 2:
        return None
    less = rb"" if indent == 0 else rb" {0,%d}[^\s#]|" % (indent - 1)
    end = re.compile(rb"^(?:%s {%d}(?:[^\s#-]|-\S))" % (less, indent), re.MULTILINE)
    stop = next(_search(end, text, first.end()), len(text))
    starts = [first.end() - 1 - indent]
    dash = b"\n" + b" " * indent + b"-"
    position = first.end() - 1
    while (position := text.find(dash, position, stop)) >= 0:
        starts.append(position + 1)
        position += len(dash)
    items = []
    lines = text.count(b"\n", 0, starts[0])
    for start, following in zip(starts, [*starts[1:], stop], strict=True):
        items.append((lines, b" " * (indent + 1) + text[start + indent + 1 : following]))
        lines += text.count(b"\n", start, following)
    return text[: key.end()] + text[stop:], items


def _search(pattern: re.Pattern[bytes], text: bytes, start: int) -> Iterator[int]:
    """Yield the positions of a pattern. The text is searched piece by piece.

    A single search in a large text would block all other threads for a third of a second.
    """
    for piece in range(start, len(text), _PIECE):
        if found := pattern.search(text, piece, piece + _PIECE + _LONGEST):
            yield found.start()


_PIECE = 1 << 20
_LONGEST = 1 << 10
"""The overlap of two pieces in bytes, which is more than the longest match, so that a match is never divided."""
