"""How this process goes: told to stop, or followed by another; and what becomes of its clients and of the rules."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from enum import Enum, auto
from typing import Any, Final

import structlog

from kubeproxy.daemon.process_limits import CONTAINER_INIT
from kubeproxy.daemon.signals import Signals
from kubeproxy.daemon.takeover.server import TakeoverServer
from kubeproxy.dataplane.in_process import LocalDataPlane
from kubeproxy.dataplane.workers.pool import WorkerDataPlane
from kubeproxy.model.errors import KernelError
from kubeproxy.observability.logs.access_log import AccessLog
from kubeproxy.proxier.proxier import Proxier
from kubeproxy.runtime.tasks import TaskSet

log = structlog.get_logger(__name__)

LAST_S: Final = 1.0
"""How much of the grace is kept for the clients who came last."""
RULES_S: Final = 10.0
"""How long the packet filter may take for what becomes of the rules. Whoever told us to stop is patient for 30 s or so,
as Kubernetes is, and then cuts everybody off."""
ARRIVAL_S: Final = 0.5
"""How long a client whose packets were on the way to us when the rules changed may take to arrive: a round trip."""


class RulesAtExit(Enum):
    """What is done to the packet filter's rules at the end."""

    LEAVE = auto()
    """They are others', who serve."""
    REMOVE = auto()
    """Clients find nobody."""
    PAUSE = auto()
    """Clients wait for the next process."""


def rules_at_exit(*, ours: bool, cleanup_on_exit: bool) -> RulesAtExit:
    """Pure. `ours`: the rules lead to us, or to nobody."""
    if not ours:
        return RulesAtExit.LEAVE
    return RulesAtExit.REMOVE if cleanup_on_exit else RulesAtExit.PAUSE


def last_s(grace_s: float) -> float:
    """The end of the grace, in which nobody new is led to us. Pure."""
    return min(LAST_S, grace_s / 2)


def arrival_s(grace_s: float) -> float:
    """How much of what is left of the grace those on the way get to arrive. Pure."""
    return min(ARRIVAL_S, grace_s / 2)


class Shutdown:
    """The end of a life, from the word to stop, or from when the rules lead to a successor. To be gone through once:
    either `wind_down`, during which a successor may still come, and then `leave`; or `make_way`."""

    def __init__(
        self,
        *,
        signals: Signals,
        takeover: TakeoverServer,
        proxier: Proxier,
        data_plane: LocalDataPlane | WorkerDataPlane,
        access_log: AccessLog,
        tasks: TaskSet,
    ) -> None:
        self._signals = signals
        self._takeover = takeover
        self._proxier = proxier
        self._data_plane = data_plane
        self._access_log = access_log
        self._tasks = tasks

    async def wind_down(self, grace_s: float) -> None:
        """Let the connections that are open finish. The node has no other proxy, so new ones are still taken."""
        log.info("draining", open=self._data_plane.open_connections, grace_s=grace_s)
        patience = self._drain(grace_s - last_s(grace_s))
        await self._tasks.first_of(patience, self._takeover.superseded.wait())
        await self._takeover.between()

    async def leave(self, rules: RulesAtExit, *, within_s: float) -> None:
        """Nobody follows yet. Who came last gets a moment, too."""
        if rules is RulesAtExit.LEAVE:
            log.info("rules stay: another instance serves")
        try:
            async with asyncio.timeout(RULES_S):
                await self._proxier.stop(cleanup=rules is RulesAtExit.REMOVE, pause=rules is RulesAtExit.PAUSE)
        except KernelError as error:
            log.error("cannot change rules at exit", reason=str(error))
        except TimeoutError:
            log.error("cannot change rules at exit", reason=f"it was not done within {RULES_S:g} s")
        await self._let_go(within_s)

    async def make_way(self, grace_s: float) -> None:
        """The rules lead to our successor. Who was on the way to us still arrives; then what is open may finish."""
        log.info("new instance has taken over, draining", open=self._data_plane.open_connections, grace_s=grace_s)
        await self._proxier.stop(cleanup=False)
        self._proxier.release_claims()
        await self._let_go(grace_s)
        await self.remain_if_container_init()

    async def remain_if_container_init(self) -> None:
        """As a container's first process wait for SIGTERM: if it ended now, the kubelet would start the container
        again, and it would take over in its turn."""
        if os.getpid() == CONTAINER_INIT:
            log.info("container init: waiting for SIGTERM")
            await self._signals.stop.wait()

    async def _let_go(self, grace_s: float) -> None:
        """Let those arrive whose packets were on the way to us; then accept no more, and give what is open so long."""
        await self._hurried(asyncio.sleep(arrival_s(grace_s)))
        await self._data_plane.retire()
        await self._drain(grace_s)
        if left := self._data_plane.open_connections:
            log.warning("connections are cut off", open=left)
        await self._access_log.flush()
        await self._data_plane.close()
        self._proxier.close()

    async def _drain(self, grace_s: float) -> None:
        """Wait for the connections open now."""
        await self._hurried(self._data_plane.drain(grace_s))

    async def _hurried(self, patience: Coroutine[Any, Any, Any]) -> None:
        """Wait, unless a second signal says at once."""
        await self._tasks.first_of(patience, self._signals.at_once.wait())
