"""Dials endpoints that have failed, to confirm a failure, or to find out whether an ejected endpoint works again.

A dial of a silent endpoint takes most of a second, and only a few dials run at a time. So tenants take turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from kubeproxy.model import Protocol, Target
from kubeproxy.rescue.ejector import Ejector
from kubeproxy.rescue.fair_turns import Tenants, next_turns
from kubeproxy.rescue.probe import Outcome, dial
from kubeproxy.rescue.protocol import Reason
from kubeproxy.runtime.tasks import TaskSet

DIALS_MAX: Final = 64
"""How many dials run at once."""
REFUSED_AGAIN_S: Final = 0.25
"""For how long after a successful dial the failure of a client does not cause another dial of the same endpoint."""
REACHED_MAX: Final = 16_384
"""For how many endpoints the last successful dial is remembered. The rules cannot report more endpoints within
`REFUSED_AGAIN_S`."""
_TCP: Final = Protocol.TCP


class _Unconfirmed(NamedTuple):
    """Why an endpoint is to be dialed, and the namespaces of the Services that have it."""

    reason: Reason
    tenants: Tenants


class Dials:
    """The dials of one guardian."""

    def __init__(self, ejector: Ejector, tasks: TaskSet, *, on_answered: Callable[[Target, float], None]) -> None:
        """`on_answered` is called with an endpoint that a dial has reached, and the seconds that the dial took."""
        self._ejector = ejector
        self._tasks = tasks
        self._on_answered = on_answered
        self._dialing: dict[Target, Tenants] = {}
        self._unconfirmed: dict[Target, _Unconfirmed] = {}
        """The endpoints that have failed a client or lost a route and wait for a dial, the oldest first."""
        self._reached: dict[Target, float] = {}
        """When a dial has last reached an endpoint, the oldest first."""

    def reached_at(self, target: Target) -> float:
        """Return when a dial last reached an endpoint, in monotonic seconds."""
        return self._reached.get(target, float("-inf"))

    @property
    def waiting(self) -> int:
        """Return how many endpoints that have failed wait for a dial."""
        return len(self._unconfirmed)

    def confirm(self, failed: Iterable[Target], reason: Reason, *, anew: bool = False) -> None:
        """Dial endpoints that may have failed, as soon as there is room, and eject those that do not answer.

        With `anew`, ignore a dial that has just ended or is in progress. It proves nothing about this failure, which
        will not be reported again.
        """
        now = asyncio.get_running_loop().time()
        for target in failed:
            answers = target in self._dialing or now - self.reached_at(target) < REFUSED_AGAIN_S
            if (anew or not answers) and not (target in self._unconfirmed or self._ejector.is_ejected(_TCP, target)):
                self._unconfirmed[target] = _Unconfirmed(reason, self._ejector.tenants(_TCP, target))
        self.next()

    def next(self) -> None:
        """Dial the endpoints that wait, as long as there is room. The tenants take turns."""
        room = DIALS_MAX - len(self._dialing)
        if room <= 0:
            return
        due = {target: tenants for protocol, target, tenants in self._ejector.due() if protocol is _TCP}
        waiting = {**{target: it.tenants for target, it in self._unconfirmed.items()}, **due}
        for target in self._dialing.keys() & waiting.keys():
            del waiting[target]
        for target in next_turns(waiting, self._dialing.values(), room):
            unconfirmed = self._unconfirmed.pop(target, None)
            if target in due:
                self._ejector.dialed(_TCP, target)
                self._dialing[target] = waiting[target]
                self._tasks.start(self._probe(target), name="probe")
            elif (
                unconfirmed is not None
                and self._ejector.knows(_TCP, target)
                and not self._ejector.is_ejected(_TCP, target)
            ):
                self._dialing[target] = waiting[target]
                self._tasks.start(self._confirm(target, unconfirmed.reason), name="confirm a failure")

    async def _confirm(self, target: Target, reason: Reason) -> None:
        outcome = await self._dial(target)
        if outcome.answered is False:
            await self._ejector.failed(_TCP, target, reason)

    async def _probe(self, target: Target) -> None:
        outcome = await self._dial(target)
        if outcome.answered:
            await self._ejector.answered(_TCP, target)
        elif outcome.answered is False:
            self._ejector.unanswered(_TCP, target)

    async def _dial(self, target: Target) -> Outcome:
        try:
            outcome = await dial(target)
        finally:
            del self._dialing[target]
        if outcome.answered:
            self._reached.pop(target, None)
            self._reached[target] = asyncio.get_running_loop().time()
            if len(self._reached) > REACHED_MAX:
                del self._reached[next(iter(self._reached))]
            self._on_answered(target, outcome.took_s)
        # A queue forms only if dials take long. Then each check of the guardian finds some dials that have ended, and
        # starts the next ones.
        if len(self._dialing) <= DIALS_MAX // 2:
            self.next()
        return outcome
