"""Ends steps of dials that got no answer in time.

Steps of equal length end in the order in which they began. So a queue for each length is enough, at a fraction of the
cost of a heap of timers. Nearly every dial is answered within its first step, and its entry in the queue is then
ignored.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Protocol

from kubeproxy.dataplane.loop.reactor import Reactor


class Step(Protocol):
    """A dial or probe, whose steps have timeouts."""

    def on_step_over(self) -> None:
        """Handle the timeout of a step. This is also called if the dial has finished meanwhile."""


_Queue = deque[tuple[float, Step]]


class StepTimeouts:
    """The step timeouts of one reactor."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._queues: dict[float, _Queue] = {}

    def step(self, step: Step, seconds: float) -> None:
        """Call `step.on_step_over` after this many seconds."""
        queue = self._queues.get(seconds)
        if queue is None:
            queue = self._queues[seconds] = deque()
        queue.append((self._reactor.now + seconds, step))
        if len(queue) == 1:
            self._reactor.after(seconds, partial(self._over, queue))

    def _over(self, queue: _Queue) -> None:
        now = self._reactor.now
        while queue and queue[0][0] <= now:
            queue.popleft()[1].on_step_over()
        if queue:
            self._reactor.after(queue[0][0] - now, partial(self._over, queue))
