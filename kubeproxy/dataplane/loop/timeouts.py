"""When the steps of all dials are over. Steps of one length end in the order in which they began, so a queue for each
length does what a heap of timers would do, at a fraction of the cost: nearly every dial is answered within its first
step, and then its place in the queue is simply passed by."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Protocol

from kubeproxy.dataplane.loop.reactor import Reactor


class Climber(Protocol):
    """Who is on a step."""

    def on_step_over(self) -> None:
        """The step is over. Said even when the climber has arrived meanwhile."""


_Queue = deque[tuple[float, Climber]]


class StepTimeouts:
    """All dials of one reactor."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._queues: dict[float, _Queue] = {}

    def step(self, climber: Climber, seconds: float) -> None:
        """Tell the climber when so many seconds are over."""
        queue = self._queues.get(seconds)
        if queue is None:
            queue = self._queues[seconds] = deque()
        queue.append((self._reactor.now + seconds, climber))
        if len(queue) == 1:
            self._reactor.after(seconds, partial(self._over, queue))

    def _over(self, queue: _Queue) -> None:
        now = self._reactor.now
        while queue and queue[0][0] <= now:
            queue.popleft()[1].on_step_over()
        if queue:
            self._reactor.after(queue[0][0] - now, partial(self._over, queue))
