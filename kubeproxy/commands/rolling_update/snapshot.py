"""Both controllers and their pods at one moment, and what the update waits for. It is pure; times are Unix seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kubeproxy.commands.rolling_update.controller import Controller
from kubeproxy.commands.rolling_update.step_sizes import Bounds, Sizes
from kubeproxy.controllers.api_types import Pod
from kubeproxy.controllers.deployments.rollout_status import Waiting, pod_trouble
from kubeproxy.controllers.pod_state import is_active, is_available, is_ready, is_terminating
from kubeproxy.kubernetes import timestamps
from kubeproxy.kubernetes.metadata import controller_of


def own_pods(controller: Controller, pods: Sequence[Pod]) -> list[Pod]:
    """Return the pods, of those that the selector matches, that the controller owns or is about to adopt as orphans."""
    return [pod for pod in pods if (owner := controller_of(pod)) is None or owner.uid == controller.uid]


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two controllers."""

    controller: Controller
    pods: tuple[Pod, ...]
    """The controller's own pods, in every phase."""
    min_ready_s: float
    now: float

    @property
    def active(self) -> list[Pod]:
        """Return the pods that are neither finished nor being deleted."""
        return [pod for pod in self.pods if is_active(pod)]

    @property
    def ready(self) -> int:
        """Return the number of pods that have been ready for the required time."""
        return sum(is_available(pod, round(self.min_ready_s), self.now) for pod in self.active)

    @property
    def ending(self) -> list[Pod]:
        """Return the pods that are being deleted. A pod past its grace period does not count, because its node may be
        gone."""
        return [pod for pod in self.pods if is_terminating(pod) and _within_grace(pod, self.now)]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The controller that grows and the one that shrinks, which is None if it is deleted already."""

    up: Side
    down: Side | None

    @property
    def active(self) -> list[Pod]:
        """Return the active pods of both controllers."""
        return [*self.up.active, *([] if self.down is None else self.down.active)]

    @property
    def sizes(self) -> Sizes:
        """Return the numbers from which the next step is computed."""
        down = self.down
        return Sizes(
            old=0 if down is None else down.controller.replicas,
            new=self.up.controller.replicas,
            ready_old=0 if down is None else down.ready,
            ready_new=self.up.ready,
            ending=len(self.up.ending) + (0 if down is None else len(down.ending)),
        )

    def is_done(self, limits: Bounds) -> bool:
        """Return whether no step is left."""
        sizes = self.sizes
        return sizes.new == limits.desired and sizes.old == 0

    def waiting(self, limits: Bounds) -> Waiting | None:
        """Return the nearest reason why no step is possible now, or None if there is no known reason."""
        up = self.up
        if failure := up.controller.failure:
            return Waiting(f"{up.controller.name}: pods cannot be created: {failure}", None)
        unready = [pod for pod in up.active if not is_ready(pod)]
        if unready:
            oldest = min(unready, key=lambda pod: pod.metadata.creation_timestamp or "")
            more = f" (and {len(unready) - 1} more)" if len(unready) > 1 else ""
            since = timestamps.parse(oldest.metadata.creation_timestamp)
            return Waiting(f"pod {oldest.metadata.name}{more} to become ready: {pod_trouble(oldest)}", since)
        early = len(up.active) - up.ready
        if early > 0:
            return Waiting(f"{_pods(early)} of {up.controller.name} to be ready for {up.min_ready_s:.0f} s", None)
        if len(up.active) < up.controller.replicas:
            missing = up.controller.replicas - len(up.active)
            return Waiting(f"the controller manager to create {_pods(missing)} of {up.controller.name}", None)
        ending = [*up.ending, *([] if self.down is None else self.down.ending)]
        if ending:
            names = ", ".join(sorted(pod.metadata.name for pod in ending)[:3])
            return Waiting(f"{_pods(len(ending))} to end: {names}{', …' if len(ending) > 3 else ''}", None)
        return None


def take(
    up: Controller,
    up_pods: Sequence[Pod],
    down: Controller | None,
    down_pods: Sequence[Pod],
    *,
    min_ready_s: float,
    now: float,
) -> Snapshot:
    """Make a snapshot of the server's answers, without pods of other controllers."""
    return Snapshot(
        up=Side(up, tuple(own_pods(up, up_pods)), min_ready_s, now),
        down=None if down is None else Side(down, tuple(own_pods(down, down_pods)), min_ready_s, now),
    )


def _pods(number: int) -> str:
    return "1 pod" if number == 1 else f"{number} pods"


def _within_grace(pod: Pod, now: float) -> bool:
    """Return whether a pod's grace period is still running. It ends at deletionTimestamp; if that is absent or cannot
    be read, it counts as running."""
    end = timestamps.parse(pod.metadata.deletion_timestamp)
    return end is None or now <= end
