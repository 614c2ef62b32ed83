"""Reads one page of a list while it arrives, so that only a piece of it is in memory, however long the page is.

An API server answers a list from its cache in one piece, whatever limit was asked for, and a tenant may fill that piece
with annotations. So only the time of a page is bounded, and the length of each object.
"""

from __future__ import annotations

import re
from contextlib import suppress
from itertools import islice

import msgspec

from kubeproxy.kubernetes import api_types
from kubeproxy.kubernetes.client.decode import MAX_OBJECT_BYTES, Page, parse_page
from kubeproxy.kubernetes.client.errors import Garbage

PIECE_BYTES = 1 << 20
"""How many bytes are collected before they are decoded, which takes about a millisecond."""
_TRIES = 4
"""At how many places the reader tries to cut one piece."""

_HEAD = re.compile(rb'"items"\s*:\s*\[')
_BETWEEN = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:metadata|kind|apiVersion)")')
"""Where one item may end and the next begin.

The pattern cannot match inside a string, where a quote follows a backslash or precedes a punctuation mark. The decoder
finds out whether a match lies between two items, and not deeper.
"""

_decode = msgspec.json.Decoder(api_types.ObjectList[msgspec.Raw]).decode


class ListSplitter:
    """Cuts the text of a page at the ends of items.

    With the page's head before it and a closing bracket after it, every piece becomes the text of a list, and is
    decoded as such. A wrong cut does not make a valid list, so it is never used.
    """

    def __init__(self, *, max_object_bytes: int = MAX_OBJECT_BYTES, piece_bytes: int = PIECE_BYTES) -> None:
        self._max = max_object_bytes
        self._piece = self._look_at = piece_bytes
        self._head = b""
        """The text from the page's beginning to the bracket that opens its items. It is empty until it has arrived."""
        self._rest = bytearray()

    def feed(self, data: bytes) -> Page | None:
        """Return the items that have arrived completely, undecoded, once there are enough bytes for a piece.

        Of the page only the kind is filled in, as far as it is known. Raise `Garbage` if one object is longer than
        allowed.
        """
        self._rest += data
        if len(self._rest) < self._look_at:
            return None
        page = self._cut()
        if page is None and len(self._rest) > self._max:
            raise Garbage(f"a list with an object of more than {self._max} bytes", cause="endless answer")
        self._look_at = self._piece if page is not None else 2 * len(self._rest)
        self._look_at = max(self._piece, min(self._look_at, self._max + 1))
        return page

    def end(self) -> Page:
        """Return the page's last items, its version and its token. Raise `Garbage` if the text is no page of a list."""
        page = parse_page(self._head + self._rest)
        self._rest.clear()
        return page

    def _cut(self) -> Page | None:
        if not self._head and not self._find_head():
            return None
        ends = [found.span() for found in _BETWEEN.finditer(self._rest)]
        for closing, opening in reversed(ends[-_TRIES:]):
            with memoryview(self._rest) as view:
                text = b"".join((self._head, view[: closing + 1], b"]}"))
            try:
                page = _decode(text)
            except api_types.UNDECODABLE:
                continue
            del self._rest[:opening]
            return Page(page.kind or "", page.items or [], "", "")
        return None

    def _find_head(self) -> bool:
        """Return whether the head has arrived. If it cannot be found, the page is decoded in one piece at its end."""
        for end in [found.end() for found in islice(_HEAD.finditer(self._rest), _TRIES)]:
            head = bytes(self._rest[:end])
            with suppress(*api_types.UNDECODABLE):
                _decode(head + b"]}")
                self._head = head
                del self._rest[:end]
                return True
        return False
