"""One page of a list, read while it arrives: what is in memory is a piece of it, however long the page is. Pure.

An API server answers a list from its cache in one piece, whatever limit was asked for, and a tenant may fill that piece
with annotations. So no bound on a page makes sense but the time that it takes; what is bounded is one object.
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
"""How much is collected before it is looked at: a millisecond of decoding."""
_TRIES = 4
"""Places at which one piece is tried to be cut."""

_HEAD = re.compile(rb'"items"\s*:\s*\[')
_BETWEEN = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:metadata|kind|apiVersion)")')
"""Where one item may end and the next begin. It cannot lie inside a string, where a quote has a backslash before it or
a mark of punctuation behind it; and whether it lies between two items, and not deeper, the decoder says."""

_decode = msgspec.json.Decoder(api_types.ObjectList[msgspec.Raw]).decode


class ListSplitter:
    """Cuts the text of a page at ends of items. Every piece, between the page's head and a closing bracket, is itself
    the text of a list, and is decoded as such: so a wrong cut is no list, and is not made."""

    def __init__(self, *, max_object_bytes: int = MAX_OBJECT_BYTES, piece_bytes: int = PIECE_BYTES) -> None:
        self._max = max_object_bytes
        self._piece = self._look_at = piece_bytes
        self._head = b""
        """From the page's beginning to the bracket that opens its items; empty: that has not come yet."""
        self._rest = bytearray()

    def feed(self, data: bytes) -> Page | None:
        """Return the items that have arrived whole, undecoded, once there is a piece of them. Of the page only the kind
        is filled in, as far as it is known. Raise `Garbage` if one object is longer than allowed."""
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
        """Return the page's last items, and its version and token. Raise `Garbage` if it is no page of a list."""
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
        """Return whether the head has come. If it cannot be found, the page is decoded in one piece at its end."""
        for end in [found.end() for found in islice(_HEAD.finditer(self._rest), _TRIES)]:
            head = bytes(self._rest[:end])
            with suppress(*api_types.UNDECODABLE):
                _decode(head + b"]}")
                self._head = head
                del self._rest[:end]
                return True
        return False
