"""The steps of a shutdown for clients, rules and data plane, after a request to stop or after a takeover."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from enum import Enum, auto
from typing import Any, Final

import structlog

from kubeproxy.daemon.data_plane_choice import AnyDataPlane
from kubeproxy.daemon.signals import Signals
from kubeproxy.daemon.takeover.server import TakeoverServer
from kubeproxy.model.errors import KernelError
from kubeproxy.observability.logs.access_log import AccessLog
from kubeproxy.proxier.proxier import Proxier
from kubeproxy.runtime.tasks import TaskSet

log = structlog.get_logger(__name__)

LAST_S: Final = 1.0
"""The part of the grace period, in seconds, that is kept for the last clients."""
RULES_S: Final = 10.0
"""How long the last transaction may take. Kubernetes and others send SIGKILL some 30 s after SIGTERM."""
MOVE_S: Final = 30.0
"""How long connections may take to move before the remaining ones are drained. Workers keep moving them during the
drain."""
ARRIVAL_S: Final = 0.5
"""How long packets that are on their way may take to arrive after the rules have changed: one round trip."""


class RulesAtExit(Enum):
    """What happens to the packet filter's rules at the end."""

    LEAVE = auto()
    """Keep the rules, because they redirect to another instance."""
    REMOVE = auto()
    """Remove the rules. Service addresses no longer answer."""
    PAUSE = auto()
    """Drop first packets of new clients until the next process serves, except for clients whom the kernel sends
    straight to endpoints."""


def rules_at_exit(*, ours: bool, cleanup_on_exit: bool) -> RulesAtExit:
    """Return what to do with the rules. `ours` is true if the rules redirect to this process, or to none."""
    if not ours:
        return RulesAtExit.LEAVE
    return RulesAtExit.REMOVE if cleanup_on_exit else RulesAtExit.PAUSE


def last_s(grace_s: float) -> float:
    """Return the last part of the grace period in seconds, in which no new clients are accepted."""
    return min(LAST_S, grace_s / 2)


def arrival_s(grace_s: float) -> float:
    """Return how many seconds to wait for packets that are on their way: at most half of the grace period that is
    left."""
    return min(ARRIVAL_S, grace_s / 2)


class Shutdown:
    """The steps of a shutdown: either `wind_down` and then `leave`, or `drain_after_takeover`.

    A new instance may still take over during `wind_down`. Then `drain_after_takeover` follows.
    """

    def __init__(
        self,
        *,
        signals: Signals,
        takeover: TakeoverServer,
        proxier: Proxier,
        data_plane: AnyDataPlane,
        access_log: AccessLog,
        tasks: TaskSet,
    ) -> None:
        self._signals = signals
        self._takeover = takeover
        self._proxier = proxier
        self._data_plane = data_plane
        self._access_log = access_log
        self._tasks = tasks

    async def wind_down(self, grace_s: float, *, until: Iterable[asyncio.Event]) -> None:
        """Drain until one of these events is set or the time is over. New connections are still accepted, because the
        node has no other proxy."""
        log.info("draining", open=self._data_plane.open_connections, grace_s=grace_s)
        patience = self._drain(grace_s - last_s(grace_s))
        await self._tasks.first_of(patience, *(event.wait() for event in until))
        await self._takeover.between()

    async def leave(self, rules: RulesAtExit, *, within_s: float) -> None:
        """Change the rules for the time without a proxy, stop accepting, and drain the last clients for at most
        `within_s` seconds."""
        if rules is RulesAtExit.LEAVE:
            log.info("rules stay: another instance serves")
        try:
            async with asyncio.timeout(RULES_S):
                await self._proxier.stop(cleanup=rules is RulesAtExit.REMOVE, pause=rules is RulesAtExit.PAUSE)
        except KernelError as error:
            log.error("cannot change rules at exit", reason=str(error))
        except TimeoutError:
            log.error("cannot change rules at exit", reason=f"no answer within {RULES_S:g} s")
        await self._drain_last(within_s)

    async def drain_after_takeover(self, grace_s: float) -> None:
        """After a takeover, move connections to the new instance and drain the others."""
        log.info("new instance has taken over, draining", open=self._data_plane.open_connections, grace_s=grace_s)
        if successor := self._takeover.successor:
            await self._hurried(self._move(successor))
        await self._proxier.stop(cleanup=False)
        self._proxier.release_claims()
        await self._drain_last(grace_s)

    async def _move(self, successor: str) -> None:
        """Move connections to the instance with this control socket. If that instance hangs, the move ends after
        `MOVE_S` seconds."""
        try:
            async with asyncio.timeout(MOVE_S):
                moved, left = await self._data_plane.move(successor)
        except TimeoutError:
            log.warning("connections have not all moved", reason=f"the new instance took more than {MOVE_S:g} s")
        else:
            log.info("connections moved", moved=moved, left=left)

    async def _drain_last(self, grace_s: float) -> None:
        """Accept the packets that are on their way. Then stop accepting, and drain for at most `grace_s` seconds."""
        await self._hurried(asyncio.sleep(arrival_s(grace_s)))
        # A client whose first packet was dropped sends it again, and its conntrack entry still redirects it to our
        # port. That port is closed by then, and would refuse the client. So entries without a socket are deleted three
        # times: now, after the listeners have closed, and after the last connections have ended.
        await self._proxier.kernel.forget_ended(ours=True)
        await self._data_plane.retire()
        await self._proxier.kernel.forget_ended(ours=True)
        await self._drain(grace_s)
        if left := self._data_plane.open_connections:
            log.warning("connections are cut off", open=left)
        await self._access_log.flush()
        await self._data_plane.close()
        await self._proxier.kernel.forget_ended(ours=True)
        self._proxier.close()

    async def _drain(self, grace_s: float) -> None:
        """Wait until the connections that are open now have ended, for at most `grace_s` seconds."""
        await self._hurried(self._data_plane.drain(grace_s))

    async def _hurried(self, patience: Coroutine[Any, Any, Any]) -> None:
        """Wait for `patience`, or until a second signal to stop."""
        await self._tasks.first_of(patience, self._signals.at_once.wait())
