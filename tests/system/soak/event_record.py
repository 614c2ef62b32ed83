"""A record of what really happened, and when. Times are those of `time.monotonic`."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(slots=True)
class Span:
    """A stretch of time; without an end until it is set."""

    begin: float
    what: str
    target: str = ""
    end: float = math.inf

    def meets(self, begin: float, end: float) -> bool:
        """Whether the two overlap."""
        return self.begin <= end and self.end >= begin


class State(NamedTuple):
    """The endpoints of a service from a time on. None: the service was not there."""

    since: float
    pods: tuple[int, ...] | None


class Kill(NamedTuple):
    """The kill of a worker: it was stopped, its connections were listed, and it was killed."""

    stopped: float
    killed: float
    ports: frozenset[tuple[str, int]]
    """The host and port of every client of the worker, and of those not accepted yet."""


@dataclass(slots=True)
class Retired:
    """A process that lets its connections finish, and ends."""

    since: float
    """The order to end came then, or later."""
    until: float
    """The order to end had come by then."""
    pid: int
    told: bool
    """By a signal: then the process takes new connections until a second before the end."""
    ended: float = math.inf


@dataclass(slots=True)
class Chronicle:
    """Everything that explains a failure. Several threads write it."""

    services: dict[str, list[State]] = field(default_factory=dict)
    faults: list[Span] = field(default_factory=list)
    """Of pods: `what` is the fault, `target` is the pod."""
    blind: list[Span] = field(default_factory=list)
    """No process could learn of a change: no API server, or no control process."""
    gaps: list[Span] = field(default_factory=list)
    """From the order to end until the next process was ready: new clients wait."""
    robbed: list[Span] = field(default_factory=list)
    """From the removal of our rules by a foreign program until they were there again."""
    kills: list[Kill] = field(default_factory=list)
    retired: list[Retired] = field(default_factory=list)
    quiet: list[Span] = field(default_factory=list)
    """There was no traffic."""
    notes: list[tuple[float, str]] = field(default_factory=list)
    """Every event, when it was executed."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, what: str) -> None:
        """Record an event for the report."""
        with self.lock:
            self.notes.append((time.monotonic(), what))

    def state(self, service: str, pods: tuple[int, ...] | None) -> None:
        """Record the endpoints of a service from now on."""
        with self.lock:
            self.services.setdefault(service, []).append(State(time.monotonic(), pods))

    def begin(self, spans: list[Span], what: str, target: str = "") -> Span:
        """Open a span; the caller sets its end."""
        span = Span(time.monotonic(), what, target)
        with self.lock:
            spans.append(span)
        return span

    @contextmanager
    def during(self, spans: list[Span], what: str) -> Iterator[Span]:
        """A span as long as the context."""
        span = self.begin(spans, what)
        yield span
        span.end = time.monotonic()
