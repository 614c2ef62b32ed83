"""Decides a reflector's next request: list or watch, from which version, and how soon."""

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
"""After this many lists in a row that began and did not end, lists are asked for in pages, which become shorter each
time."""
MAX_REFUSALS = 3
"""After this many watches in a row that the server refused, a new list follows. Watches that did not reach the server
do not count."""


QUICK_TRIES = 40
"""How many failures in a row have short delays. Together they take about a minute, in which a server is restarted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The time limits and intervals of a reflector, in seconds."""

    watch_s: tuple[float, float] = (300.0, 600.0)
    """The range of a watch's random timeoutSeconds (client-go's). Watches must not end at the same time."""
    margin_s: float = 15.0
    """How long a watch may be silent beyond timeoutSeconds before it counts as dead."""
    patience_s: tuple[float, float, float] = (4.0, 20.0, 75.0)
    """The limits for the head of an answer: the first one, the longest of a watch, and the longest of a list.

    A watch's head comes at once, or after 15 s in the queue of a server's priority and fairness. A server may accept a
    connection and never answer on it while it answers all others.
    """
    settle_s: float = 1.0
    """How long a watch must last without an event to count as a success, because the server may still send ERROR at
    once."""
    retry_s: tuple[float, float] = (0.2, 3.0)
    """The shortest and the longest delay of the back-off. The longest delay, and the rest of a running attempt, limit
    how late a returning server is noticed."""
    patient_retry_s: tuple[float, float] = (5.0, 30.0)
    """The delays after `QUICK_TRIES` failures in a row of a server that is away or refuses. The longest is client-go's.
    Thousands of nodes that ask every second would keep a server from coming up."""
    retry_after_s: float = 30.0
    """The longest Retry-After that is honoured."""
    relist_s: float = 2.0
    """The longest random delay of a list after a 410, which a restarted server sends to every node at the same time."""
    list_s: float = 300.0
    """The time limit of a list with all its pages."""
    page: int = 500
    """The largest number of objects in a page (client-go's)."""
    refill_s: float = 60.0
    """The shortest time between a list and a new one that is made only because objects had been left out."""
    slice_s: float = 0.001
    """For how long objects and events are handled before other tasks of the event loop run."""


class ListWatchPolicy:
    """The state of one reflector: takes outcomes, returns the next request and its delay."""

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
        """The last resourceVersion that was seen. The next watch starts after it. It is empty before the first list."""
        self.must_list = True
        """Whether the next request is a list, and not a watch."""
        self.doubtful = False
        """Whether the server was away after `version` was seen.

        It may return with storage restored from a backup, and so with older versions. It does not refuse a watch from a
        future version, but stays silent until it reaches that version.
        """

    def list_query(self) -> dict[str, str]:
        """Return the query of a list.

        The first list reads the server's cache (``resourceVersion=0``, as kube-proxy does), so a thousand nodes that
        start together cost etcd nothing, and it works without etcd. Later lists ask the cache for nothing older than
        the known version. Both come in one piece: the server ignores a limit on the first one, and a limit on the
        second would mean exactly that version, which soon leads to a 410. If the cache fails, the list comes from
        storage, page by page.
        """
        if self._from_storage:
            return {"limit": str(self._page)}
        if not self.version:
            return {"resourceVersion": "0", "limit": str(self._pace.page)}
        return {"resourceVersion": self.version}

    def next_page_query(self, token: str) -> dict[str, str]:
        """Return the query of the page after the one with `token`."""
        return {"limit": str(self._page), "continue": token}

    def probe_query(self) -> dict[str, str]:
        """Return the query, if `doubtful`, for one object from the cache at `version` or newer. A server with an older
        version answers 504 (`AheadError`) after three seconds."""
        return {"resourceVersion": self.version, "resourceVersionMatch": "NotOlderThan", "limit": "1"}

    def known(self) -> None:
        """Note that the server knows `version`."""
        self.doubtful = False

    def watch_query(self) -> tuple[dict[str, str], float]:
        """Return the query of the next watch, and the longest silence of its stream in seconds."""
        timeout_s = max(1, round(self._random.uniform(*self._pace.watch_s)))
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self.version,
            "timeoutSeconds": str(timeout_s),
        }
        return query, timeout_s + self._pace.margin_s

    def patience_s(self) -> float:
        """Return the time limit for the head of the next answer, in seconds. It doubles with each timeout, so that a
        slow server can answer at last."""
        return min(self._patience_s, self._pace.patience_s[2 if self.must_list else 1])

    def listed(self, version: str) -> None:
        """Note that a whole list arrived."""
        self.version = version
        self.must_list = False
        self.doubtful = False
        self._breaks = 0
        # Pages that had to be short grow from list to list, until the cache is asked for all at once again.
        self._from_storage = self._page < self._pace.page
        self._page = min(2 * self._page, self._pace.page)

    def list_broke(self) -> None:
        """Note that an answer began and did not end: it was cut off, or took too long.

        If that happens once, the server may have ended. If it happens again, the list is too long for this server,
        network or node.
        """
        self._breaks += 1
        if self._breaks >= MAX_BREAKS:
            self._page = max(1, self._page // 2) if self._from_storage else self._page
            self._from_storage = True

    def seen(self, version: str) -> None:
        """Note an event or bookmark of that version.

        Raise `GarbageError` if it is older than the last one: its server is behind, and its objects may be older than
        the known ones.
        """
        if _is_older(version, self.version):
            raise GarbageError(
                f"an event of version {version} after one of version {self.version}", cause="back in time"
            )
        self.version = version

    def settled(self) -> None:
        """Note that a watch works."""
        self._backoff.reset()
        self._backoff.range_s = self._pace.retry_s
        self._refusals = self._in_vain = 0
        self._patience_s = self._pace.patience_s[0]

    def list_failed(self, error: ApiError) -> float:
        """Return the delay before the next try, in seconds.

        If the server's cache cannot give a list, storage may, and the reverse. An unreachable or overloaded server gets
        the same request again.
        """
        if isinstance(error, AheadError):
            self._from_storage = True
        elif not isinstance(error, UnreachableError | OverloadedError | UnauthorizedError | ForbiddenError):
            self._from_storage = not self._from_storage
        return self._delay(error)

    def watch_failed(self, error: ApiError) -> float:
        """Return the delay before the next try, in seconds. The next try is a watch from the same version if that can
        work."""
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
    """Return whether a version is older. Only numbers can be compared, which every server so far uses."""
    numbers = version.isascii() and version.isdecimal() and known.isascii() and known.isdecimal()
    return numbers and int(version) < int(known)
