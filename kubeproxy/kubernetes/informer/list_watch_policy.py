"""Decides a reflector's next request: whether it is a list or a watch, from which version, and after which delay. It is
pure."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from kubeproxy.kubernetes.client.errors import (
    AheadError,
    ApiError,
    ExpiredError,
    ForbiddenError,
    GarbageError,
    OverloadedError,
    UnauthorizedError,
    UnreachableError,
)
from kubeproxy.runtime.backoff import DecorrelatedJitter

MAX_BREAKS = 2
"""After this many incomplete lists in a row, lists are requested in pages, which become shorter with each further
failure."""
MAX_REFUSALS = 3
"""After this many refused watches in a row, the resource is listed again. Watches that did not reach the server do not
count."""


QUICK_TRIES = 40
"""The number of failures in a row with short delays. They cover about a minute, the usual time of a server's
restart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The time limits and intervals of a reflector, in seconds, and the size of a page."""

    watch_s: tuple[float, float] = (300.0, 600.0)
    """The range of a watch's random timeoutSeconds, as in client-go. It is random so that watches do not end at the
    same time."""
    margin_s: float = 15.0
    """A watch that is silent for this time longer than timeoutSeconds counts as broken."""
    patience_s: tuple[float, float, float] = (4.0, 20.0, 75.0)
    """The time limits for the headers of an answer: the first limit, the largest for a watch, and the largest for a
    list. The limit doubles with each timeout.

    A watch is answered at once, or after up to 15 s in the queue of API priority and fairness. The limit is needed
    because a server may accept a connection and never answer on it.
    """
    settle_s: float = 1.0
    """A watch without events counts as a success after this time. Before that, the server may still send an ERROR."""
    retry_s: tuple[float, float] = (0.2, 3.0)
    """The shortest and the longest delay of the backoff. A returning server is noticed after at most the longest delay,
    plus the time of an attempt in progress."""
    patient_retry_s: tuple[float, float] = (5.0, 30.0)
    """The shortest and the longest delay after `QUICK_TRIES` failures in a row, as in client-go. Thousands of nodes
    that ask every second would keep a server from starting."""
    retry_after_s: float = 30.0
    """The largest Retry-After that is used. Larger values are reduced to it."""
    relist_s: float = 2.0
    """The longest random delay of a list after a 410. A restarted server sends 410 to all nodes at the same time."""
    list_s: float = 300.0
    """The time limit of a list with all its pages."""
    page: int = 500
    """The largest number of objects in a page, as in client-go."""
    refill_s: float = 60.0
    """The shortest time between two lists if the second is made only to get objects that had been left out."""
    slice_s: float = 0.001
    """After this time of processing objects and events, other tasks of the event loop get a turn."""


class ListWatchPolicy:
    """The policy of one reflector. The reflector reports the results of its requests, and gets the next request and its
    delay."""

    def __init__(self, *, pace: Pace, random: Random) -> None:
        self._pace = pace
        self._random = random
        self._backoff = DecorrelatedJitter(base_s=pace.retry_s[0], cap_s=pace.retry_s[1], random=random)
        self._from_storage = False
        self._refusals = 0
        self._in_vain = 0
        self._patience_s = pace.patience_s[0]
        self._page = pace.page
        self._breaks = 0
        self.version = ""
        """The last resourceVersion that was seen, at which the next watch starts. It is empty before the first list."""
        self.must_list = True
        """Whether the next request is a list. Otherwise it is a watch."""
        self.doubtful = False
        """Whether the server was unreachable after `version` was seen, so that it may no longer know this version.

        If its storage was restored from a backup, its versions are older. It does not refuse a watch from a future
        version, but sends nothing until it reaches that version.
        """

    def list_query(self) -> dict[str, str]:
        """Return the query parameters of a list.

        The first list reads the server's cache (``resourceVersion=0``, as kube-proxy does), so it works without etcd,
        and a thousand starting nodes put no load on etcd. Later lists also read the cache, but no older version than
        the known one. Both are one page: the server ignores a limit for the first, and with a limit the second would
        mean exactly that version, which soon expires with a 410. If the cache fails, the list is read from storage,
        page by page.
        """
        if self._from_storage:
            return {"limit": str(self._page)}
        if not self.version:
            return {"resourceVersion": "0", "limit": str(self._pace.page)}
        return {"resourceVersion": self.version}

    def next_page_query(self, token: str) -> dict[str, str]:
        """Return the query parameters of the page with this continue token."""
        return {"limit": str(self._page), "continue": token}

    def probe_query(self) -> dict[str, str]:
        """Return the query parameters of a list of one object at `version` or newer. It is sent if `doubtful`: a server
        with an older version answers 504 (`AheadError`) after three seconds."""
        return {"resourceVersion": self.version, "resourceVersionMatch": "NotOlderThan", "limit": "1"}

    def known(self) -> None:
        """Note that the server knows `version`."""
        self.doubtful = False

    def watch_query(self) -> tuple[dict[str, str], float]:
        """Return the query parameters of the next watch, and the time in seconds after which a silent watch counts as
        broken."""
        timeout_s = max(1, round(self._random.uniform(*self._pace.watch_s)))
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self.version,
            "timeoutSeconds": str(timeout_s),
        }
        return query, timeout_s + self._pace.margin_s

    def patience_s(self) -> float:
        """Return the time limit for the headers of the next answer, in seconds. It doubles with each timeout, so that
        even a slow server can answer."""
        return min(self._patience_s, self._pace.patience_s[2 if self.must_list else 1])

    def listed(self, version: str) -> None:
        """Note that a whole list of this version was received."""
        self.version = version
        self.must_list = False
        self.doubtful = False
        self._breaks = 0
        # If pages had to become short, they grow again with each list, until lists are read from the cache again.
        self._from_storage = self._page < self._pace.page
        self._page = min(2 * self._page, self._pace.page)

    def list_broke(self) -> None:
        """Note that a list was incomplete: it broke off, or took too long.

        The first time, the server may just have stopped. If it happens again, the list is too long for this server,
        network or node.
        """
        self._breaks += 1
        if self._breaks >= MAX_BREAKS:
            self._page = max(1, self._page // 2) if self._from_storage else self._page
            self._from_storage = True

    def seen(self, version: str) -> None:
        """Note an event or bookmark with this version.

        Raise `GarbageError` if the version is older than the last one. The events then come from a server that is
        behind, and the objects may be outdated.
        """
        if _is_older(version, self.version):
            raise GarbageError(
                f"an event of version {version} after one of version {self.version}", cause="back in time"
            )
        self.version = version

    def settled(self) -> None:
        """Note that a watch works, so that the next failure begins with a short delay."""
        self._backoff.reset()
        self._backoff.range_s = self._pace.retry_s
        self._refusals = self._in_vain = 0
        self._patience_s = self._pace.patience_s[0]

    def list_failed(self, error: ApiError) -> float:
        """Note a failed list, and return the delay before the next attempt, in seconds.

        If the list from the server's cache fails, the next list is read from storage, and the other way round. An
        unreachable or overloaded server gets the same request again.
        """
        if isinstance(error, AheadError):
            self._from_storage = True
        elif not isinstance(error, UnreachableError | OverloadedError | UnauthorizedError | ForbiddenError):
            self._from_storage = not self._from_storage
        return self._delay(error)

    def watch_failed(self, error: ApiError) -> float:
        """Note a failed watch, and return the delay before the next attempt, in seconds. The next attempt is a watch
        from the same version if that may succeed, and otherwise a list."""
        delay_s = self._delay(error)
        match error:
            case ExpiredError():
                self.must_list = True
                return max(delay_s, self._random.uniform(0, self._pace.relist_s))
            case AheadError():
                self.must_list = self._from_storage = True
                return max(delay_s, self._random.uniform(0, self._pace.relist_s))
            case GarbageError():
                self.must_list = True
            case UnreachableError() | OverloadedError() | UnauthorizedError() | ForbiddenError():
                self.doubtful = True
            case _:
                self._refusals += 1
                self.must_list = error.status == 404 or self._refusals >= MAX_REFUSALS
        return delay_s

    def _delay(self, error: ApiError) -> float:
        if error.cause == "timeout":
            self._patience_s = min(2 * self._patience_s, self._pace.patience_s[2])
        self._in_vain += 1
        if self._in_vain > QUICK_TRIES and not isinstance(error, ExpiredError | AheadError | GarbageError):
            self._backoff.range_s = max(self._pace.retry_s, self._pace.patient_retry_s)
        delay_s = self._backoff.next()
        if error.retry_after_s is None:
            return delay_s
        return max(delay_s, min(error.retry_after_s, self._pace.retry_after_s) + self._random.uniform(0, delay_s))


def _is_older(version: str, known: str) -> bool:
    """Return whether a version is older than the known version. Return False if they are not numbers, which are the
    only comparable versions."""
    numbers = version.isascii() and version.isdecimal() and known.isascii() and known.isdecimal()
    return numbers and int(version) < int(known)
