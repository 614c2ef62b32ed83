"""Old pods are taken out of service by the proxies before they are deleted: no request is lost, no sleep is guessed.

The pods that are to go are chosen first, those with the fewest open connections, and named to the proxies. Every proxy
stops sending them new connections and goes on with open ones. When none is open any more, or the time is over, the pods
get a deletion cost by which the controller deletes exactly them.

Controllers of servers before 1.22 do not regard the cost. There the pods are deleted directly before the controller is
scaled down. It may begin a pod in their place first, which then is the one that it deletes: it is not ready yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final, Protocol

from kubeproxy.commands.rolling_update.progress_output import ProgressOutput
from kubeproxy.commands.rolling_update.requests import ControllerRequests
from kubeproxy.controllers.deployments.rollout_status import Waiting
from kubeproxy.controllers.objects import Pod
from kubeproxy.controllers.pod_ranking import choose_pods_to_delete
from kubeproxy.controllers.pod_state import is_ready
from kubeproxy.kubernetes.client.errors import ApiError

DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
FIRST_TO_GO: Final = "-2147483648"
"""The lowest cost that there is."""
COST_MINOR: Final = 22
"""The Kubernetes version, 1.22, from which on upstream's controllers regard the cost."""
MOST_AT_ONCE: Final = 300
"""Pods of one step; a Service has room for the requests of a thousand, those of other rollouts included."""
CLEAN_UP_S: Final = 10.0
"""How long the end of drained pods is waited for at the end of an update. After that their requests expire."""
CACHES_S: Final = 0.2
"""How far the controller's view of pods may be behind its view of sizes."""
_NAMED: Final = 3


class Drained(Protocol):
    """How far the proxies are with one pod."""

    @property
    def waiting(self) -> Collection[str]:
        """Nodes that may still send it new connections."""

    @property
    def connections(self) -> int:
        """Open connections to it, of all nodes."""


class Proxies(Protocol):
    """The proxies of all nodes, as far as they report. Every request raises ApiError."""

    async def proxies(self) -> Collection[str]:
        """Return the live nodes with a proxy that reports; empty: there is none."""

    async def connections(self, pods: Sequence[Pod]) -> Mapping[str, int]:
        """Open connections by the name of the pod."""

    async def start(self, pods: Sequence[Pod]) -> None:
        """Ask every proxy to send these pods no new connections."""

    async def wait(
        self, pods: Sequence[Pod], timeout_s: float, on_change: Callable[[Mapping[str, Drained]], None] | None = None
    ) -> Mapping[str, Drained]:
        """Until every proxy has followed and no connection is open, or the time is over; the last state."""

    async def withdraw(self, pods: Sequence[Pod]) -> None:
        """Let these pods have new connections again."""

    async def clean_up(self, timeout_s: float = 0.0) -> None:
        """Remove the requests of drained pods that no EndpointSlice has any more; wait so long for that."""


class ProxyRetirement:
    """Chooses pods, drains them, and steers the controller to them."""

    def __init__(
        self,
        proxies: Proxies,
        requests: ControllerRequests,
        progress: ProgressOutput,
        *,
        drain_timeout_s: float,
        minor: Callable[[], Awaitable[int]],
    ) -> None:
        """`minor` returns the second number of the server's version; 0: unknown."""
        self._proxies = proxies
        self._requests = requests
        self._progress = progress
        self._drain_timeout_s = drain_timeout_s
        self._minor = minor
        self._noted = False
        self._drained = False

    async def retire(self, pods: Sequence[Pod], number: int) -> Sequence[Pod]:
        """Choose so many of these pods, and return when they serve no connection any more, or the time is over.

        Of very many only the first `MOST_AT_ONCE` are returned. Empty: they go without draining.
        """
        if number <= 0:
            return ()
        try:
            nodes = await self._proxies.proxies()
            if not nodes:
                self._note("no proxy reports open connections (kubeproxy.drainReports): pods go without draining")
                return ()
            if self._drained:  # a new pod may get the address of one that was drained before
                await self._proxies.clean_up(0.0)
            chosen = await self._choose(pods, min(number, MOST_AT_ONCE))
            self._drained = True
            await self._drain(chosen, len(nodes))
        except (ApiError, ValueError) as error:  # ValueError: other rollouts have filled the Service's annotation
            self._note(f"the proxies cannot be asked to drain pods: {error}")
            return ()
        for pod in chosen:
            await self._requests.change_pod(pod, {"annotations": {DELETION_COST: FIRST_TO_GO}})
        await asyncio.sleep(CACHES_S)
        return chosen

    async def delete(self, pods: Sequence[Pod]) -> None:
        """The controller is scaled down now: see to it that these pods go."""
        if pods and await self._minor() < COST_MINOR:
            for pod in pods:
                await self._requests.delete_pod(pod)

    async def put_back(self, pods: Sequence[Pod]) -> None:
        """These pods stay: they get new connections again, and are no longer the first to be deleted."""
        if not pods:
            return
        for pod in pods:
            cost = pod.metadata.annotations.deletion_cost
            await self._requests.change_pod(
                pod, {"annotations": {DELETION_COST: None if cost == FIRST_TO_GO else cost}}
            )
        await self._withdraw(pods)

    async def begin(self, pods: Sequence[Pod]) -> None:
        """An earlier run may have ended between the draining of pods and their deletion: put them back."""
        await self.put_back([pod for pod in pods if pod.metadata.annotations.deletion_cost == FIRST_TO_GO])

    async def end(self) -> None:
        """The update is complete, and no request is needed any more."""
        if not self._drained:
            return
        try:
            await self._proxies.clean_up(CLEAN_UP_S)
        except ApiError as error:
            self._note(f"requests to drain pods are left until they expire: {error}")

    async def _withdraw(self, pods: Sequence[Pod]) -> None:
        try:
            await self._proxies.withdraw(pods)
        except ApiError as error:
            self._note(f"requests to drain pods are left until they expire: {error}")

    async def _choose(self, pods: Sequence[Pod], number: int) -> list[Pod]:
        """Those that are not ready, which every controller deletes first, then those with the fewest connections."""
        ready = [pod for pod in pods if is_ready(pod)]
        unready = [pod for pod in pods if not is_ready(pod)]
        if number <= len(unready):
            return choose_pods_to_delete(unready, number, related=pods, now=self._requests.now())
        open_now = await self._proxies.connections(ready)
        ready.sort(key=lambda pod: (open_now.get(pod.metadata.name, 0), pod.metadata.name))
        return [*unready, *ready[: number - len(unready)]]

    async def _drain(self, pods: Sequence[Pod], nodes: int) -> None:
        names = _names(pods)
        self._progress.event("drain", f"Draining {names}", pods=[pod.metadata.name for pod in pods], nodes=nodes)
        await self._proxies.start(pods)
        states = await self._proxies.wait(pods, self._drain_timeout_s, self._show)
        behind = sorted({node for state in states.values() for node in state.waiting})
        left = sum(state.connections for state in states.values())
        if behind:
            self._progress.warning(
                f"{names}: {len(behind)} of {nodes} nodes have not followed within {self._drain_timeout_s:.0f} s"
                f" (--drain-timeout): {', '.join(behind[:_NAMED])}{', …' if len(behind) > _NAMED else ''}"
            )
        if left:
            self._progress.warning(
                f"{names}: {left} connections are still open after {self._drain_timeout_s:.0f} s (--drain-timeout)"
            )

    def _show(self, states: Mapping[str, Drained]) -> None:
        behind = {node for state in states.values() for node in state.waiting}
        if behind:
            node = min(behind)
            more = f" (and {len(behind) - 1} more)" if len(behind) > 1 else ""
            self._progress.waits(Waiting(f"the proxy of node {node}{more} to stop sending new connections", None))
        else:
            left = sum(state.connections for state in states.values())
            self._progress.waits(Waiting(f"{left} open connections of pods that are drained to end", None))

    def _note(self, text: str) -> None:
        """Once: every step would have the same reason."""
        if not self._noted:
            self._noted = True
            self._progress.note(text)


def _names(pods: Sequence[Pod]) -> str:
    names = sorted(pod.metadata.name for pod in pods)
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
