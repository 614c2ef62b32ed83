"""Decodes one page of a list while it arrives, so that only a piece of the page is in memory.

An API server sends a list from its cache as one page, even if a limit was requested, and tenants may make it very long
with annotations. So the length of a page is not limited, only its time and the length of each object.
"""

from __future__ import annotations

import re
from contextlib import suppress
from itertools import islice

import msgspec

from kubeproxy.kubernetes import api_types
from kubeproxy.kubernetes.client.decode import MAX_OBJECT_BYTES, Page, parse_page
from kubeproxy.kubernetes.client.errors import GarbageError

PIECE_BYTES = 1 << 20
"""The number of bytes that are decoded at once. That takes about a millisecond."""
_TRIES = 4
"""The number of positions at which the reader tries to cut one piece."""

_HEAD = re.compile(rb'"items"\s*:\s*\[')
_BETWEEN = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:metadata|kind|apiVersion)")')
"""Matches where one item may end and the next may begin.

The pattern cannot match inside a JSON string, because quotes inside a string are escaped. A match may also be inside an
item; the decoder finds that out.
"""

_decode = msgspec.json.Decoder(api_types.ObjectList[msgspec.Raw]).decode


class ListSplitter:
    """Splits the JSON text of a page into pieces of whole items.

    A piece, with the page's head before it and closing brackets after it, is decoded as a list. If the cut is not
    between two items, the text is not a valid list, and another cut is tried.
    """

    def __init__(self, *, max_object_bytes: int = MAX_OBJECT_BYTES, piece_bytes: int = PIECE_BYTES) -> None:
        self._max = max_object_bytes
        self._piece = self._look_at = piece_bytes
        self._head = b""
        """The text from the beginning of the page to the opening bracket of its items, or empty until the bracket has
        arrived."""
        self._rest = bytearray()

    def feed(self, data: bytes) -> Page | None:
        """Add bytes of the page. If there are enough for a piece, return its complete items, undecoded, and otherwise
        None.

        The returned page has no version and no token, and its kind only if that has arrived. Raise `GarbageError` if an
        object is too long.
        """
        self._rest += data
        if len(self._rest) < self._look_at:
            return None
        page = self._cut()
        if page is None and len(self._rest) > self._max:
            raise GarbageError(f"a list with an object of more than {self._max} bytes", cause="endless answer")
        self._look_at = self._piece if page is not None else 2 * len(self._rest)
        self._look_at = max(self._piece, min(self._look_at, self._max + 1))
        return page

    def end(self) -> Page:
        """Return the remaining items with the page's kind, version and token. Raise `GarbageError` if the text is not a
        list."""
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
        """Look for the head, and return whether it has arrived. A page without a recognizable head is decoded as a
        whole at its end."""
        for end in [found.end() for found in islice(_HEAD.finditer(self._rest), _TRIES)]:
            head = bytes(self._rest[:end])
            with suppress(*api_types.UNDECODABLE):
                _decode(head + b"]}")
                self._head = head
                del self._rest[:end]
                return True
        return False
