"""Tracks the creations and deletions that a controller has requested and that its cache does not show yet.

Without that, a controller that counts pods in a cache that is behind its own writes would create or delete pods twice.
It is pure: `now` is in seconds of any monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

EXPIRY_S: Final = 300.0
"""The time in seconds after which expectations count as satisfied, as in upstream. It matters only if resourceVersions
cannot be compared."""


@dataclass(slots=True)
class _Expected:
    creations: int
    deletions: set[str]
    since: float
    newest: str = ""
    """The resourceVersion of the object that was created last, or empty if none was created."""


class Expectations:
    """The outstanding creations and deletions of all controllers. A controller is identified by its key."""

    def __init__(self) -> None:
        self._expected: dict[str, _Expected] = {}

    def __len__(self) -> int:
        return len(self._expected)

    def expect_creations(self, key: str, number: int, now: float) -> None:
        """Expect this number of creations. Earlier expectations of the controller are replaced."""
        self._expected[key] = _Expected(number, set(), now)

    def expect_deletions(self, key: str, objects: Iterable[str], now: float) -> None:
        """Expect the deletion of these objects. Earlier expectations of the controller are replaced."""
        self._expected[key] = _Expected(0, set(objects), now)

    def created(self, key: str, version: str) -> None:
        """Note that an object was created with this resourceVersion."""
        if (expected := self._expected.get(key)) is not None:
            expected.newest = max(expected.newest, version, key=lambda text: int(text) if text.isdecimal() else 0)

    def creation_observed(self, key: str, number: int = 1) -> None:
        """Note that this number of creations has been seen in the cache, or will never be seen."""
        if (expected := self._expected.get(key)) is not None:
            expected.creations -= number

    def deletion_observed(self, key: str, object_key: str) -> None:
        """Note that the deletion of an object has been seen in the cache, or will never be seen. Repeated calls for an
        object count once."""
        if (expected := self._expected.get(key)) is not None:
            expected.deletions.discard(object_key)

    def satisfied(self, key: str, now: float, includes: Callable[[str], bool] = lambda version: False) -> bool:
        """Return whether the cache shows all that was written: nothing is outstanding, or the expectations have
        expired.

        `includes` returns whether the cache has reached a resourceVersion. If it has reached the version of the last
        creation, outstanding creations will never be seen, because the objects were deleted or lost their owner before
        the cache saw them. Call this only while no request is in progress.
        """
        expected = self._expected.get(key)
        if expected is None or now - expected.since > EXPIRY_S:
            return True
        return not expected.deletions and (expected.creations <= 0 or includes(expected.newest))

    def expires_in(self, key: str, now: float) -> float:
        """Return the seconds until the controller's expectations expire."""
        expected = self._expected.get(key)
        return 0.0 if expected is None else max(0.0, expected.since + EXPIRY_S - now) + 0.001

    def outstanding(self, key: str) -> tuple[int, int]:
        """Return the numbers of outstanding creations and deletions of a controller."""
        expected = self._expected.get(key)
        return (0, 0) if expected is None else (expected.creations, len(expected.deletions))

    def unfulfilled(self) -> list[str]:
        """Return the keys of the controllers with outstanding creations or deletions."""
        return [key for key in self._expected if self.outstanding(key) > (0, 0)]

    def forget(self, key: str) -> None:
        """Remove the expectations of a controller that was deleted."""
        self._expected.pop(key, None)
