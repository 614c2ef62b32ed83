"""Carries out the rolling step of a Deployment that waits for the node proxies.

`drain_plan` decides what the step is. Marks are written before requests, and requests before deletions. So if the
controller ends between two writes, the next leader continues the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from kubeproxy.controllers import conditions, event_reporter
from kubeproxy.controllers.api_types import Condition, Deployment, DeploymentStatus, Pod, ReplicaSet
from kubeproxy.controllers.deployments import drain_plan
from kubeproxy.controllers.deployments.drain_plan import (
    DrainOptions,
    DrainPlan,
    DrainView,
    is_marked,
    needs_drain,
    plan,
    victims,
)
from kubeproxy.controllers.deployments.revisions import active
from kubeproxy.controllers.deployments.rolling_update import Scale
from kubeproxy.controllers.deployments.writes import DeploymentWrites
from kubeproxy.controllers.pod_state import is_active
from kubeproxy.controllers.proxy_requests.deployment_drains import DeploymentDrains, owner_of
from kubeproxy.controllers.proxy_requests.reports import PodDrain, Reports, number_and_names
from kubeproxy.kubernetes import timestamps

FOLLOWED: Final = "ProxiesFollowed"
"""The type of the condition that a Deployment has while its rollout waits for proxies. The status is False, and the
message names the nodes that have not carried out their requests."""
WAITS: Final = "WaitingForProxies"
LOOK_S: Final = 1.0
"""How often a waiting rollout is synced, even if nothing happens."""
REWRITE_S: Final = 10.0
"""The shortest time between two writes of the condition."""
LATE_S: Final = 5.0
"""A node is named in the condition if it has not carried out a request after this time."""


@dataclass(slots=True)
class DrainStep:
    """Drains the pods of one rollout during one sync. Call `begin` first, then `shrink`."""

    drains: DeploymentDrains
    writes: DeploymentWrites
    deployment: Deployment
    old: Sequence[ReplicaSet]
    options: DrainOptions
    view: DrainView
    reports: Reports
    plan: DrainPlan
    progressed: bool = False
    """Whether this step marked or released pods."""
    marked: list[Pod] = field(default_factory=list)

    @classmethod
    async def begin(
        cls,
        drains: DeploymentDrains,
        writes: DeploymentWrites,
        deployment: Deployment,
        new: ReplicaSet,
        old: Sequence[ReplicaSet],
        pods_of: Callable[[ReplicaSet], Sequence[Pod]],
        now: float,
    ) -> DrainStep | None:
        """Make the plan, and update the requests to the proxies. Return None if the rollout does not wait for proxies.
        Raise `NotAskedError` if the requests cannot be written."""
        try:
            options = drain_plan.options_of(deployment)
        except ValueError as error:
            writes.report(deployment, "Warning", event_reporter.DRAIN_OPTIONS, f"{error}; proxies are not waited for")
            options = None
        if options is None or not active(list(old)) or drains.does_without(deployment):
            return None
        if not drains.proxies.ready:
            if drains.first_unknown(deployment):
                text = "Services or drain reports cannot be read; proxies are not waited for"
                writes.report(deployment, "Warning", event_reporter.PROXIES_UNKNOWN, text)
            return None
        reports = drains.proxies.reports()
        if not reports.nodes:
            return None
        view = DrainView(
            pods_of=pods_of,
            exposed=drains.proxies.exposures(deployment.metadata.namespace),
            states=drains.proxies.states(deployment.metadata.namespace, owner_of(deployment), reports),
            in_service=frozenset(drains.used(deployment)),
            now=now,
        )
        found = plan(deployment, new, old, options, view)
        step = cls(drains, writes, deployment, old, options, view, reports, found)
        step._note_used()
        await drains.unmark(found.put_back)
        await step._ask(())
        return step

    def _note_used(self) -> None:
        """Remember the pods that count, and report an Event for each pod that counts only because `use_s` is over."""
        used = self.drains.used(self.deployment)
        for pod in self.plan.late:
            state = self.view.states.get(pod.metadata.name)
            waiting = state.waiting if state is not None else frozenset(self.reports.nodes)
            text = (
                f"Pod {pod.metadata.name} counts although the proxies of {number_and_names(waiting)} do not use it"
                f" after {self.options.use_s:g} s"
            )
            self.writes.report(self.deployment, "Warning", event_reporter.PROXIES_LATE, text)
        used.update(pod.metadata.uid for pod in (*self.plan.in_service, *self.plan.late))

    async def _ask(self, more: Sequence[Pod]) -> None:
        """Write the requests for the awaited new pods, and for the pods that drain or have drained."""
        marked = [*self.plan.draining, *self.plan.drained, *more]
        await self.drains.ask(
            self.deployment,
            self.plan.awaited,
            [pod for pod in marked if needs_drain(pod, self.view)],
            {pod.metadata.name for pod in self.plan.put_back},
        )

    async def shrink(self) -> list[ReplicaSet]:
        """Mark the pods to be deleted next, scale the old ReplicaSets down by their drained pods, and return the
        ReplicaSets that have changed.

        Drained pods get the lowest deletion cost first. A ReplicaSet is scaled down only when its controller's cache
        contains that cost, because otherwise the controller would delete another pod. Raise `NotAskedError` if the
        requests cannot be written.
        """
        chosen = victims(self.deployment, self.plan, self.old, self.view)
        fresh = [pod for _, pods in chosen for pod in pods]
        going = [*self.plan.drained, *(pod for pod in fresh if not needs_drain(pod, self.view))]
        released = {pod.metadata.uid for pod in going if self.drains.is_released(pod)}
        await self._drain(fresh)
        await self.drains.release(pod for pod in going if pod.metadata.uid not in released)
        scaled = []
        for replica_set in self.old:
            pods = [pod for pod in self.view.pods_of(replica_set) if is_active(pod)]
            leaving = [pod for pod in pods if pod.metadata.uid in released]
            # The ReplicaSet's controller already deletes pods above the size.
            number = len(leaving) - max(0, len(pods) - replica_set.spec.replicas)
            if number > 0:
                self._report_cut(leaving)
                size = max(0, replica_set.spec.replicas - number)
                scaled.append(await self.writes.scale(self.deployment, Scale(replica_set, size)))
        self.progressed = bool(fresh or scaled)
        return scaled

    async def _drain(self, pods: Sequence[Pod]) -> None:
        """Mark pods, and ask the proxies to drain those that may have connections."""
        await self.drains.mark(pods)
        draining = [pod for pod in pods if needs_drain(pod, self.view)]
        if draining:
            await self._ask(draining)
            names = ", ".join(pod.metadata.name for pod in draining)
            self.writes.report(self.deployment, "Normal", event_reporter.DRAINING, f"Draining pods: {names}")

    def _report_cut(self, pods: Sequence[Pod]) -> None:
        for pod in pods:
            state = self.view.states.get(pod.metadata.name)
            if state is not None and state.since is not None and not state.done:
                what = f"{state.connections} open connections" if state.connections else _unfollowed(state)
                text = f"Pod {pod.metadata.name} is deleted after {self.options.drain_s:g} s with {what}"
                self.writes.report(self.deployment, "Warning", event_reporter.DRAIN_TIMED_OUT, text)

    @property
    def waits(self) -> bool:
        """Return whether the rollout waits for proxies, or for connections to end."""
        return self.plan.waits or bool(self.plan.drained) or self.progressed

    @property
    def look_in_s(self) -> float | None:
        """Return the seconds until the next sync, or None if the rollout waits for nothing."""
        if not self.waits:
            return None
        due = self.plan.due
        return LOOK_S if due is None else min(LOOK_S, max(0.05, due - self.view.now))

    def condition(self) -> Condition | None:
        """Return the condition that names the pods and nodes that the rollout waits for, or None if no node takes too
        long."""
        late = {
            pod.metadata.name: state
            for pod in (*self.plan.awaited, *self.plan.draining)
            if (state := self.view.states.get(pod.metadata.name)) is not None
            and state.since is not None
            and state.waiting
            and self.view.now - state.since > LATE_S
        }
        if not late:
            return None
        text = "; ".join(f"pod {name}: {_unfollowed(state)}" for name, state in sorted(late.items())[:3])
        more = f"; and {len(late) - 3} more pods" if len(late) > 3 else ""
        return conditions.new(FOLLOWED, conditions.FALSE, WAITS, f"{text}{more}", self.view.now)


def with_proxies(status: DeploymentStatus, step: DrainStep | None) -> DeploymentStatus:
    """Return the status with the condition that names the proxies that are waited for. Replace that condition only if
    the nodes or pods in it have changed, and at most once every `REWRITE_S` seconds."""
    found = None if step is None else step.condition()
    current = conditions.find(status.conditions, FOLLOWED)
    if found is None:
        stated = status.conditions if current is None else conditions.without(status.conditions, FOLLOWED)
    elif current is None:
        stated = [*status.conditions, found]
    elif current.message == found.message or _recent(current, found):
        return status
    else:
        found = msgspec.structs.replace(found, last_transition_time=current.last_transition_time)
        stated = [*conditions.without(status.conditions, FOLLOWED), found]
    return msgspec.structs.replace(status, conditions=stated)


def _recent(current: Condition, found: Condition) -> bool:
    before, now = timestamps.parse(current.last_update_time), timestamps.parse(found.last_update_time)
    return before is not None and now is not None and now - before < REWRITE_S


def marked_pods(pods: Sequence[Pod]) -> list[Pod]:
    """Return the pods that are marked as draining."""
    return [pod for pod in pods if is_marked(pod)]


def _unfollowed(state: PodDrain) -> str:
    return f"the proxies of {number_and_names(state.waiting)} have not followed"
