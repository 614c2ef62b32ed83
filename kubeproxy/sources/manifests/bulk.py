"""Many manifests, or large ones, read one after the other while helpers parse what comes next."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping

from kubeproxy.sources.manifests.documents import Namespaces, Part, Reading, compose, outline, read

LARGE = 1 << 20
"""Bytes in all; below, everything is parsed here, as helpers could not have begun before that is done."""
AHEAD = 4 << 20
"""Bytes that are cut into parts before their turn comes: what helpers have in hand, and enough to see that there is
something for them to do. A manifest that is larger is cut as a whole."""


def read_all(
    manifests: Iterable[tuple[str, bytes]],
    *,
    size: int,
    namespaces: Namespaces,
    previous: Mapping[str, Reading],
    cpus: int,
) -> Iterator[tuple[str, Reading | MemoryError]]:
    """Each manifest's reading by its origin, in their order, or that there was not enough memory for it. `size`: the
    bytes of all; `previous`: what they said before; `cpus`: how many may be busy."""
    if size < LARGE or cpus < 2:
        for origin, data in manifests:
            try:
                yield origin, read(data, namespaces, previous.get(origin))
            except MemoryError as error:
                yield origin, error
        return
    from kubeproxy.sources.manifests.crew import Crew

    ahead: deque[tuple[str, list[tuple[Part, ...]]]] = deque()
    with Crew(cpus) as crew:

        def take() -> tuple[str, Reading | MemoryError]:
            origin, documents = ahead.popleft()
            try:
                return origin, compose(documents, namespaces, previous.get(origin), crew.parse)
            except MemoryError as error:
                return origin, error

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
            ahead.append((origin, documents))
            while ahead and crew.outstanding > AHEAD:
                yield take()
        while ahead:
            yield take()
