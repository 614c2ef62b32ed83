"""What really happened, and when. Times are those of `time.monotonic`."""

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
    """Something that lasted; for ever, until it ends."""

    begin: float
    what: str
    target: str = ""
    end: float = math.inf

    def meets(self, begin: float, end: float) -> bool:
        """Whether the two overlap."""
        return self.begin <= end and self.end >= begin


class State(NamedTuple):
    """What a service was from a time on. None: it was not there."""

    since: float
    pods: tuple[int, ...] | None


class Kill(NamedTuple):
    """A worker was stopped, its connections were listed, and it was killed."""

    stopped: float
    killed: float
    ports: frozenset[tuple[str, int]]
    """The host and port of every client it had, and of those who waited to be accepted by anybody."""


@dataclass(slots=True)
class Retired:
    """A process that is told to let its connections finish, and ends."""

    since: float
    """It was told so then, or later."""
    until: float
    """It was told so by then."""
    pid: int
    told: bool
    """By a signal: then new ones are taken until a second before the end."""
    ended: float = math.inf


@dataclass(slots=True)
class Chronicle:
    """Everything that explains a failure. Written by several threads."""

    services: dict[str, list[State]] = field(default_factory=dict)
    faults: list[Span] = field(default_factory=list)
    """Of pods: what is the fault, target is the pod."""
    blind: list[Span] = field(default_factory=list)
    """Nobody could learn of a change: no API server, or no control process."""
    gaps: list[Span] = field(default_factory=list)
    """From the word to stop until the next process was ready: new clients wait."""
    robbed: list[Span] = field(default_factory=list)
    """From the removal of our rules by somebody until they were there again."""
    kills: list[Kill] = field(default_factory=list)
    retired: list[Retired] = field(default_factory=list)
    quiet: list[Span] = field(default_factory=list)
    """Nobody asked."""
    notes: list[tuple[float, str]] = field(default_factory=list)
    """Every event, as it was done."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, what: str) -> None:
        """For the report."""
        with self.lock:
            self.notes.append((time.monotonic(), what))

    def state(self, service: str, pods: tuple[int, ...] | None) -> None:
        """From now on."""
        with self.lock:
            self.services.setdefault(service, []).append(State(time.monotonic(), pods))

    def begin(self, spans: list[Span], what: str, target: str = "") -> Span:
        """It has begun; whoever began it says when it ends."""
        span = Span(time.monotonic(), what, target)
        with self.lock:
            spans.append(span)
        return span

    @contextmanager
    def during(self, spans: list[Span], what: str) -> Iterator[Span]:
        """As long as this lasts."""
        span = self.begin(spans, what)
        yield span
        span.end = time.monotonic()
