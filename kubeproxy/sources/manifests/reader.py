"""Many manifests, or large ones, read one after the other while helpers parse what comes next."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kubeproxy.sources.manifests.documents import Namespaces, Part, Reading, compose, outline, read

if TYPE_CHECKING:
    from kubeproxy.sources.manifests.parser_pool import ParserPool

LARGE = 1 << 20
"""Bytes in all; below, everything is parsed here, as helpers would hardly have begun before that is done."""
AHEAD = 2 << 20
"""Bytes that are cut into parts before their turn comes: what helpers have in hand, and enough to see that there is
something for them to do. A manifest that is larger is cut as a whole."""


@dataclass(frozen=True, slots=True)
class Reader:
    """How manifests are read: where their objects belong, and how many CPUs may be busy with it."""

    namespaces: Namespaces
    cpus: int

    def read_all(
        self, manifests: Iterable[tuple[str, bytes]], *, size: int, previous: Mapping[str, Reading], urgent: bool
    ) -> Iterator[tuple[str, Reading | MemoryError]]:
        """Each manifest's reading by its origin, or that there was not enough memory for it. `size`: the bytes of all,
        about; `previous`: what they said before; `urgent`: clients wait for it, so it yields to nobody."""
        if size < LARGE or self.cpus < 2:
            for origin, data in manifests:
                try:
                    yield origin, read(data, self.namespaces, previous.get(origin))
                except MemoryError as error:
                    yield origin, error
            return
        # Not needed where manifests are few; and what comes for the first answer comes first.
        from kubeproxy.sources.manifests.parser_pool import ParserPool

        with ParserPool(self.cpus, urgent=urgent) as crew:
            yield from self._read_ahead(crew, manifests, previous)

    def _read_ahead(
        self, crew: ParserPool, manifests: Iterable[tuple[str, bytes]], previous: Mapping[str, Reading]
    ) -> Iterator[tuple[str, Reading | MemoryError]]:
        ahead: deque[_Outlined] = deque()
        held = 0
        for origin, data in manifests:
            try:
                documents = list(outline(data))
            except MemoryError as error:
                yield origin, error
                continue
            known = previous[origin].texts if origin in previous else {}
            for part in (part for parts in documents for part in parts):
                if part.refused is None and part.digest not in known:
                    crew.submit(part)
            ahead.append(_Outlined(origin, len(data), documents))
            held += len(data)
            while held > AHEAD:
                held -= ahead[0].size
                yield self._compose(crew, ahead.popleft(), previous)
        while ahead:
            yield self._compose(crew, ahead.popleft(), previous)

    def _compose(
        self, crew: ParserPool, manifest: _Outlined, previous: Mapping[str, Reading]
    ) -> tuple[str, Reading | MemoryError]:
        try:
            reading = compose(manifest.documents, self.namespaces, previous.get(manifest.origin), crew.parse)
        except MemoryError as error:
            return manifest.origin, error
        return manifest.origin, reading


@dataclass(frozen=True, slots=True)
class _Outlined:
    """A manifest in parts, the size of its text beside it."""

    origin: str
    size: int
    documents: list[tuple[Part, ...]]
