"""Drains old pods through the node proxies before the pods are deleted, so that no request is lost.

The pods with the fewest open connections are chosen, and the proxies are asked to drain them: to send them no new
connections, and to serve the open connections to their end. When no connection is left, or the drain timeout is over,
the pods get the lowest deletion cost, so that the controller deletes exactly these pods.

Controllers before Kubernetes 1.22 ignore the deletion cost. There, the update deletes the pods itself, and scales the
controller down immediately afterwards. If the controller has created a pod in between, the controller then deletes this
pod, because it is not ready.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from kubeproxy.commands.rolling_update.progress_output import ProgressOutput
from kubeproxy.commands.rolling_update.requests import ControllerRequests
from kubeproxy.controllers.api_types import Pod
from kubeproxy.controllers.deployments.rollout_status import Waiting
from kubeproxy.controllers.pod_ranking import choose_pods_to_delete
from kubeproxy.controllers.pod_state import is_ready
from kubeproxy.controllers.proxy_requests.proxy_drain import ProxyDrain
from kubeproxy.controllers.proxy_requests.reports import PodDrain
from kubeproxy.kubernetes.client.errors import ApiError

DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
FIRST_TO_GO: Final = "-2147483648"
"""The lowest deletion cost that the API allows."""
COST_MINOR: Final = 22
"""The minor version of Kubernetes, 1.22, since which upstream's controllers use the deletion cost."""
MOST_AT_ONCE: Final = 300
"""The largest number of pods that drain in one step. A Service has room for requests about a thousand pods, of all
rollouts together."""
CLEAN_UP_S: Final = 10.0
"""How long an update waits at its end for the last drained pods to be deleted. Requests about pods that still exist
expire later."""
CACHES_S: Final = 0.2
"""How far the controller's cache of pods may be behind its cache of ReplicationControllers."""
_NAMED: Final = 3


class DrainedDeletion:
    """Chooses pods, drains them, and makes the controller delete these pods first."""

    def __init__(
        self,
        proxies: ProxyDrain,
        requests: ControllerRequests,
        progress: ProgressOutput,
        *,
        drain_timeout_s: float,
        minor: Callable[[], Awaitable[int]],
    ) -> None:
        """`minor` returns the minor version of the server, or 0 if it is unknown."""
        self._proxies = proxies
        self._requests = requests
        self._progress = progress
        self._drain_timeout_s = drain_timeout_s
        self._minor = minor
        self._noted = False
        self._drained = False

    async def retire(self, pods: Sequence[Pod], number: int) -> Sequence[Pod]:
        """Choose `number` of these pods, at most `MOST_AT_ONCE`, and drain them. Return them when they are drained or
        the drain timeout is over.

        Return an empty sequence if the proxies cannot be asked. The pods are then deleted without draining.
        """
        if number <= 0:
            return ()
        try:
            nodes = await self._proxies.proxies()
            if not nodes:
                self._note("no proxy reports open connections (kubeproxy.drainReports): pods go without draining")
                return ()
            if self._drained:  # A new pod may get the address of a pod that was drained before.
                await self._proxies.clean_up(0.0)
            chosen = await self._choose(pods, min(number, MOST_AT_ONCE))
            self._drained = True
            await self._drain(chosen, len(nodes))
        # ValueError is raised if the requests of other rollouts fill the Service's annotation.
        except (ApiError, ValueError) as error:
            self._note(f"the proxies cannot be asked to drain pods: {error}")
            return ()
        for pod in chosen:
            await self._requests.change_pod(pod, {"annotations": {DELETION_COST: FIRST_TO_GO}})
        await asyncio.sleep(CACHES_S)
        return chosen

    async def delete(self, pods: Sequence[Pod]) -> None:
        """Delete these pods if the cluster's controllers ignore the deletion cost. The caller scales the controller
        down next."""
        if pods and await self._minor() < COST_MINOR:
            for pod in pods:
                await self._requests.delete_pod(pod)

    async def put_back(self, pods: Sequence[Pod]) -> None:
        """Undo the draining of these pods: withdraw the requests, and remove the deletion cost."""
        if not pods:
            return
        for pod in pods:
            cost = pod.metadata.annotations.deletion_cost
            await self._requests.change_pod(
                pod, {"annotations": {DELETION_COST: None if cost == FIRST_TO_GO else cost}}
            )
        await self._withdraw(pods)

    async def begin(self, pods: Sequence[Pod]) -> None:
        """Undo the draining of pods that an earlier run drained but did not delete."""
        await self.put_back([pod for pod in pods if pod.metadata.annotations.deletion_cost == FIRST_TO_GO])

    async def end(self) -> None:
        """Remove the requests to the proxies at the end of the update."""
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
        """Choose pods that are not ready first, as controllers do, and then the pods with the fewest connections."""
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

    def _show(self, states: Mapping[str, PodDrain]) -> None:
        behind = {node for state in states.values() for node in state.waiting}
        if behind:
            node = min(behind)
            more = f" (and {len(behind) - 1} more)" if len(behind) > 1 else ""
            self._progress.waits(Waiting(f"the proxy of node {node}{more} to stop sending new connections", None))
        else:
            left = sum(state.connections for state in states.values())
            self._progress.waits(Waiting(f"{left} open connections of pods that are drained to end", None))

    def _note(self, text: str) -> None:
        """Print a note, but only once, because every step would repeat it."""
        if not self._noted:
            self._noted = True
            self._progress.note(text)


def _names(pods: Sequence[Pod]) -> str:
    names = sorted(pod.metadata.name for pod in pods)
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
