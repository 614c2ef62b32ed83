"""A snapshot of both controllers and their pods, from which follows what the update waits for. It is pure; times are
Unix seconds."""

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
    """Return the pods that the controller owns, and the pods without an owner, which it is about to adopt. `pods` are
    the pods that its selector matches."""
    return [pod for pod in pods if (owner := controller_of(pod)) is None or owner.uid == controller.uid]


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two controllers, with its pods."""

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
        """Return the pods that are being deleted and within their grace period. After the grace period, the pod's node
        may be lost."""
        return [pod for pod in self.pods if is_terminating(pod) and _within_grace(pod, self.now)]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The controller that is scaled up, and the controller that is scaled down, which is None if it is already
    deleted."""

    up: Side
    down: Side | None

    @property
    def active(self) -> list[Pod]:
        """Return the active pods of both controllers."""
        return [*self.up.active, *([] if self.down is None else self.down.active)]

    @property
    def sizes(self) -> Sizes:
        """Return the numbers of pods from which the next step is computed."""
        down = self.down
        return Sizes(
            old=0 if down is None else down.controller.replicas,
            new=self.up.controller.replicas,
            ready_old=0 if down is None else down.ready,
            ready_new=self.up.ready,
            ending=len(self.up.ending) + (0 if down is None else len(down.ending)),
        )

    def is_done(self, limits: Bounds) -> bool:
        """Return whether both controllers have their final size, so that no step is left."""
        sizes = self.sizes
        return sizes.new == limits.desired and sizes.old == 0

    def waiting(self) -> Waiting | None:
        """Return what prevents the next step, or None if no reason is known."""
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
    """Make a snapshot from the server's answers, in which pods of other controllers are ignored."""
    return Snapshot(
        up=Side(up, tuple(own_pods(up, up_pods)), min_ready_s, now),
        down=None if down is None else Side(down, tuple(own_pods(down, down_pods)), min_ready_s, now),
    )


def _pods(number: int) -> str:
    return "1 pod" if number == 1 else f"{number} pods"


def _within_grace(pod: Pod, now: float) -> bool:
    """Return whether a pod's grace period is not over. It ends at deletionTimestamp. Return True if that is absent or
    invalid."""
    end = timestamps.parse(pod.metadata.deletion_timestamp)
    return end is None or now <= end
