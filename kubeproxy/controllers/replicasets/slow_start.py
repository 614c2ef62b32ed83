"""Makes requests in batches of 1, 2, 4, 8 and so on, so that only one request is made if a quota refuses all of
them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

INITIAL: Final = 1
BURST: Final = 500
"""The largest number of pods that one sync creates or deletes (upstream's BurstReplicas)."""


def batches(number: int) -> Iterator[int]:
    """Yield the sizes of the batches for `number` requests."""
    size = INITIAL
    while number > 0:
        size = min(size, number)
        yield size
        number -= size
        size *= 2


async def slow_start(number: int, request: Callable[[], Awaitable[None]]) -> tuple[int, BaseException | None]:
    """Make `number` requests in growing batches. The requests of a batch run in parallel. Stop after a batch with an
    error. Return how many requests succeeded, and the first error."""
    succeeded = 0
    for size in batches(number):
        results = await asyncio.gather(*(request() for _ in range(size)), return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        succeeded += size - len(errors)
        if errors:
            return succeeded, errors[0]
    return succeeded, None
