"""Computes the sizes of the new and the old controller in each step of a rolling update.

No step leaves fewer ready pods than `Bounds.least_ready`, or makes more pods than `Bounds.most` in both controllers
together.
"""

from __future__ import annotations

from dataclasses import dataclass

from kubeproxy.controllers.surge import resolve


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of one update, in pods."""

    desired: int
    """The final size of the new controller."""
    surge: int
    unavailable: int

    @property
    def least_ready(self) -> int:
        """Return the smallest number of ready pods that a step may leave."""
        return max(0, self.desired - self.unavailable)

    @property
    def most(self) -> int:
        """Return the largest number of pods that both controllers together may have."""
        return self.desired + self.surge


def bounds(max_surge: int | str, max_unavailable: int | str, desired: int) -> Bounds:
    """Return the limits for an update to `desired` pods. Percentages of `desired` are rounded up for `max_surge` and
    down for `max_unavailable`. If both are 0, one pod may be unavailable, because otherwise no step would be
    possible."""
    surge, unavailable = resolve(max_surge, max_unavailable, desired)
    return Bounds(desired, surge, unavailable)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The numbers of pods from which a step is computed."""

    old: int
    """``spec.replicas`` of the old controller."""
    new: int
    """``spec.replicas`` of the new controller."""
    ready_old: int = 0
    ready_new: int = 0
    ending: int = 0
    """The number of pods of both controllers that are being deleted and within their grace period. They count towards
    `Bounds.most`."""


def scale_up(limits: Bounds, sizes: Sizes) -> int:
    """Return the largest size that the new controller may have now, at least its present size."""
    room = limits.most - sizes.old - sizes.new - sizes.ending
    if sizes.new >= limits.desired or room <= 0:
        return sizes.new
    return min(limits.desired, sizes.new + room)


def scale_down(limits: Bounds, sizes: Sizes) -> int:
    """Return the smallest size that the old controller may have now, at most its present size.

    The controller deletes unready pods first, so unready pods of the old controller never prevent a step, in either
    direction of the update.
    """
    if sizes.new >= limits.desired and sizes.ready_new >= limits.desired:
        return 0
    spare = sizes.old + min(sizes.ready_new, sizes.new) - limits.least_ready
    return max(0, sizes.old - max(0, spare))


def trim(limits: Bounds, sizes: Sizes) -> int:
    """Return the size to which a new controller may be reduced now, if another client has scaled it above the desired
    size."""
    if sizes.new <= limits.desired:
        return sizes.new
    unready = max(0, sizes.new - sizes.ready_new)
    spare = max(0, sizes.ready_old + sizes.ready_new - limits.least_ready)
    return max(limits.desired, sizes.new - unready - spare)
