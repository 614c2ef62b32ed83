"""What a controller has asked of the API server and has not yet seen in its cache.

A controller that counts pods in a cache that lags behind its own writes would create or delete pods twice. It is pure:
`now` is in seconds of any monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

EXPIRY_S: Final = 300.0
"""The time after which expectations count as satisfied, as upstream's. It is the last resort if versions cannot be
compared."""


@dataclass(slots=True)
class _Expected:
    creations: int
    deletions: set[str]
    since: float
    newest: str = ""
    """The resourceVersion of the object that was created last. It is empty if none was."""


class Expectations:
    """For each controller, how many creations have not been seen yet, and which objects' deletions."""

    def __init__(self, *, expiry_s: float = EXPIRY_S) -> None:
        self._expiry_s = expiry_s
        self._expected: dict[str, _Expected] = {}

    def __len__(self) -> int:
        return len(self._expected)

    def expect_creations(self, key: str, number: int, now: float) -> None:
        """Expect this number of creations, instead of what was expected before."""
        self._expected[key] = _Expected(number, set(), now)

    def expect_deletions(self, key: str, objects: Iterable[str], now: float) -> None:
        """Expect these objects to be deleted, instead of what was expected before."""
        self._expected[key] = _Expected(0, set(objects), now)

    def created(self, key: str, version: str) -> None:
        """Note that a request to create succeeded. The object got this resourceVersion."""
        if (expected := self._expected.get(key)) is not None:
            expected.newest = max(expected.newest, version, key=lambda text: int(text) if text.isdecimal() else 0)

    def creation_observed(self, key: str, number: int = 1) -> None:
        """Note that this number of creations was seen, or will never be seen."""
        if (expected := self._expected.get(key)) is not None:
            expected.creations -= number

    def deletion_observed(self, key: str, object_key: str) -> None:
        """Note that a deletion was seen, or will never be seen. An object counts once, however often it is reported."""
        if (expected := self._expected.get(key)) is not None:
            expected.deletions.discard(object_key)

    def satisfied(self, key: str, now: float, includes: Callable[[str], bool] = lambda version: False) -> bool:
        """Return whether the cache shows what was written: nothing was expected, all of it was seen, or it is too old
        to wait for.

        `includes` returns whether the cache has reached a resourceVersion. A creation up to there that was not observed
        never will be: the object was deleted, or lost its owner, before the cache saw it. Ask only while no request is
        in progress.
        """
        expected = self._expected.get(key)
        if expected is None or now - expected.since > self._expiry_s:
            return True
        return not expected.deletions and (expected.creations <= 0 or includes(expected.newest))

    def expires_in(self, key: str, now: float) -> float:
        """Return the seconds until the expectations count as satisfied in any case."""
        expected = self._expected.get(key)
        return 0.0 if expected is None else max(0.0, expected.since + self._expiry_s - now) + 0.001

    def outstanding(self, key: str) -> tuple[int, int]:
        """Return the numbers of creations and deletions that are still expected."""
        expected = self._expected.get(key)
        return (0, 0) if expected is None else (expected.creations, len(expected.deletions))

    def unfulfilled(self) -> list[str]:
        """Return the controllers for which something is still expected."""
        return [key for key in self._expected if self.outstanding(key) > (0, 0)]

    def forget(self, key: str) -> None:
        """Drop everything expected for a controller that is gone."""
        self._expected.pop(key, None)
