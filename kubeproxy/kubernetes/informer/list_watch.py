"""List or watch, from where, and how soon: what a reflector does next. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from kubeproxy.kubernetes.client.backoff import Backoff
from kubeproxy.kubernetes.client.errors import (
    Ahead,
    ApiError,
    Expired,
    Forbidden,
    Garbage,
    Overloaded,
    Unauthorized,
    Unreachable,
)

MAX_BREAKS = 2
"""Lists in a row whose answer began and did not end, before pages are asked for, and shorter ones each time."""
MAX_REFUSALS = 3
"""Watches that the server refused in a row (not: that did not reach it) before there is a new list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast a reflector goes about its work; times in seconds."""

    watch_s: tuple[float, float] = (300.0, 600.0)
    """The span from which a watch's timeoutSeconds is drawn (client-go's): reflectors must not end together."""
    margin_s: float = 15.0
    """How much longer than timeoutSeconds a watch may be silent before it is taken for dead."""
    patience_s: tuple[float, float, float] = (4.0, 20.0, 75.0)
    """How long the head of an answer may be in coming: at first, at most for a watch (whose head comes at once, or
    after 15 s in the queue of a server's priority and fairness), at most for a list. A server may take a connection and
    say nothing on it for ever, and answer all others."""
    settle_s: float = 1.0
    """A watch without events counts as a success after this time: the server may still say ERROR at once."""
    retry_s: tuple[float, float] = (0.2, 3.0)
    """Backoff: shortest delay, longest delay. The longest, and what is left of an attempt under way, bound how late a
    returning server is noticed."""
    retry_after_s: float = 30.0
    """A Retry-After is honoured up to this."""
    relist_s: float = 2.0
    """A list after a 410 is put off by up to this: a restarted server sends one to every node at the same time."""
    list_s: float = 300.0
    """A list with all its pages."""
    page: int = 500
    """Objects per page at most (client-go's)."""
    refill_s: float = 60.0
    """A list for the sake of objects that had been left out comes this long after the one before."""
    slice_s: float = 0.001
    """How long objects and events are handled before others in the event loop get their turn."""


class ListWatchPolicy:
    """Where one reflector stands. Told what happened, it says what comes next."""

    def __init__(self, *, pace: Pace, random: Random) -> None:
        self._pace = pace
        self._random = random
        self._backoff = Backoff(base_s=pace.retry_s[0], cap_s=pace.retry_s[1], random=random)
        self._from_storage = False
        self._refusals = 0
        self._patience_s = pace.patience_s[0]
        self._page = pace.page
        self._breaks = 0
        self.version = ""
        """The resourceVersion seen last; a watch goes on behind it. Empty before the first list."""
        self.must_list = True
        """A list comes next, not a watch."""
        self.doubtful = False
        """The server went away since `version` was seen. It may come back with storage restored from a backup, that is
        with older versions; a watch from one of the future is not refused, but silent until that one is reached."""

    def list_query(self) -> dict[str, str]:
        """How to ask for the list.

        The first one takes what the server's cache has (``resourceVersion=0``, as kube-proxy): a thousand nodes that
        start together cost etcd nothing, and it works while etcd does not. Later ones ask the cache for nothing older
        than what is known here. Both come in one piece (the server ignores the limit of the first; a limit on the
        second would mean exactly that version, soon a 410). Where the cache fails, storage is asked, page by page.
        """
        if self._from_storage:
            return {"limit": str(self._page)}
        if not self.version:
            return {"resourceVersion": "0", "limit": str(self._pace.page)}
        return {"resourceVersion": self.version}

    def next_page_query(self, token: str) -> dict[str, str]:
        """How to ask for the page after the one that carried `token`."""
        return {"limit": str(self._page), "continue": token}

    def probe_query(self) -> dict[str, str]:
        """How to ask, when `doubtful`, whether the server knows `version`: by one object from its cache. A server that
        does not answers 504 (`Ahead`) after three seconds."""
        return {"resourceVersion": self.version, "resourceVersionMatch": "NotOlderThan", "limit": "1"}

    def known(self) -> None:
        """The server knows `version`."""
        self.doubtful = False

    def watch_query(self) -> tuple[dict[str, str], float]:
        """How to watch on from here, and how long the stream may be silent, in seconds."""
        timeout_s = max(1, round(self._random.uniform(*self._pace.watch_s)))
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self.version,
            "timeoutSeconds": str(timeout_s),
        }
        return query, timeout_s + self._pace.margin_s

    def patience_s(self) -> float:
        """How long to wait for the head of the next answer, in seconds: longer each time that it was too short, so
        that a slow server is not asked the same for ever without hearing its answer."""
        return min(self._patience_s, self._pace.patience_s[2 if self.must_list else 1])

    def listed(self, version: str) -> None:
        """A whole list arrived."""
        self.version = version
        self.must_list = False
        self.doubtful = False
        self._breaks = 0
        # Pages that had to be short grow from list to list, until the cache is asked for all at once again.
        self._from_storage = self._page < self._pace.page
        self._page = min(2 * self._page, self._pace.page)

    def list_broke(self) -> None:
        """An answer began, and did not end: it was cut off, or took too long. Once may be the server's end; again, and
        it is too long for this server, this network or this node."""
        self._breaks += 1
        if self._breaks >= MAX_BREAKS:
            self._page = max(1, self._page // 2) if self._from_storage else self._page
            self._from_storage = True

    def seen(self, version: str) -> None:
        """An event or bookmark of that version arrived. `Garbage` when it is older than what was seen before: then it
        comes from a server that does not know what we know, and its objects may be older than ours."""
        if _is_older(version, self.version):
            raise Garbage(f"an event of version {version} after one of version {self.version}", cause="back in time")
        self.version = version

    def settled(self) -> None:
        """A watch works."""
        self._backoff.reset()
        self._refusals = 0
        self._patience_s = self._pace.patience_s[0]

    def list_failed(self, error: ApiError) -> float:
        """The delay before the next try, in seconds. Where the cache cannot give a list storage may, and the other way
        round; who could not be reached, or has no time for us, is asked again for the same."""
        if isinstance(error, Ahead):
            self._from_storage = True
        elif not isinstance(error, Unreachable | Overloaded | Unauthorized | Forbidden):
            self._from_storage = not self._from_storage
        return self._delay(error)

    def watch_failed(self, error: ApiError) -> float:
        """The delay before the next try, in seconds, which is a watch from the same version where that makes sense."""
        delay_s = self._delay(error)
        match error:
            case Expired():
                self.must_list = True
                return max(delay_s, self._random.uniform(0, self._pace.relist_s))
            case Ahead():
                self.must_list = self._from_storage = True
                return max(delay_s, self._random.uniform(0, self._pace.relist_s))
            case Garbage():
                self.must_list = True
            case Unreachable() | Overloaded() | Unauthorized() | Forbidden():
                self.doubtful = True
            case _:
                self._refusals += 1
                self.must_list = error.status == 404 or self._refusals >= MAX_REFUSALS
        return delay_s

    def _delay(self, error: ApiError) -> float:
        if error.cause == "timeout":
            self._patience_s = min(2 * self._patience_s, self._pace.patience_s[2])
        delay_s = self._backoff.next()
        if error.retry_after_s is None:
            return delay_s
        return max(delay_s, min(error.retry_after_s, self._pace.retry_after_s) + self._random.uniform(0, delay_s))


def _is_older(version: str, known: str) -> bool:
    """By number where both are numbers, as they are in every server so far; others cannot be compared."""
    numbers = version.isascii() and version.isdecimal() and known.isascii() and known.isdecimal()
    return numbers and int(version) < int(known)
