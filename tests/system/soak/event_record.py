"""A record of what really happened, and when. Times are those of `time.monotonic`."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from kubeproxy.model import Scheduler


@dataclass(slots=True)
class Span:
    """A stretch of time; without an end until it is set."""

    begin: float
    what: str
    target: str = ""
    end: float = math.inf
    done: float = 0.0
    """When a process that is killed was seen to have ended; 0 if that was not seen."""

    def meets(self, begin: float, end: float) -> bool:
        """Whether the two overlap."""
        return self.begin <= end and self.end >= begin


class State(NamedTuple):
    """The endpoints of a service from a time on. None: the service was not there."""

    since: float
    pods: tuple[int, ...] | None
    scheduler: Scheduler = Scheduler.ROUND_ROBIN


class Policy(NamedTuple):
    """The setting dataPath from a time on."""

    since: float
    data_path: str


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
    signalled: bool
    """Then the process takes new connections until a second before the end."""
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
    policies: list[Policy] = field(default_factory=list)
    without_slots: list[Span] = field(default_factory=list)
    """The removal of slots or spreads by a foreign program: workers serve meanwhile."""
    unforwarded: list[Span] = field(default_factory=list)
    """The node did not forward packets."""
    unattended: list[Span] = field(default_factory=list)
    """A part of the rescue did not work: what an endpoint did not answer, only the client itself sends again."""
    inert: list[Span] = field(default_factory=list)
    """The rules of the rescue may have been inert: a refusal reached its client."""
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

    def state(self, service: str, pods: tuple[int, ...] | None, scheduler: Scheduler = Scheduler.ROUND_ROBIN) -> None:
        """Record the endpoints and the scheduler of a service from now on."""
        with self.lock:
            self.services.setdefault(service, []).append(State(time.monotonic(), pods, scheduler))

    def policy(self, data_path: str) -> None:
        """Record the setting dataPath from now on."""
        with self.lock:
            self.policies.append(Policy(time.monotonic(), data_path))

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

    @contextmanager
    def unrescued(self, what: str, *, inert_after_s: float | None) -> Iterator[None]:
        """A part of the rescue does not work during the context. `inert_after_s`: from when the rules may be inert;
        None: they are not."""
        span = self.begin(self.unattended, what)
        inert = None
        if inert_after_s is not None:
            inert = Span(span.begin + inert_after_s, what)
            with self.lock:
                self.inert.append(inert)
        yield
        span.end = time.monotonic()
        if inert is not None:
            inert.end = max(inert.begin, span.end)
