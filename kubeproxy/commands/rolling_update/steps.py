"""The arithmetic of a rolling update: how far the new controller grows and the old one shrinks. Pure.

Two promises hold at every step: ready pods never become fewer than `Bounds.least_ready` by a step, and the pods of both
controllers are never more than `Bounds.most`.
"""

from __future__ import annotations

from dataclasses import dataclass

from kubeproxy.controllers.surge import resolve


@dataclass(frozen=True, slots=True)
class Bounds:
    """The promises of one update, in pods."""

    desired: int
    """Pods of the new controller at the end."""
    surge: int
    unavailable: int

    @property
    def least_ready(self) -> int:
        """Ready pods that a step leaves."""
        return max(0, self.desired - self.unavailable)

    @property
    def most(self) -> int:
        """Pods of both controllers at most."""
        return self.desired + self.surge


def bounds(max_surge: int | str, max_unavailable: int | str, desired: int) -> Bounds:
    """The promises for so many pods. Percentages: surge rounded up, unavailability down; both 0: one may be missing."""
    surge, unavailable = resolve(max_surge, max_unavailable, desired)
    return Bounds(desired, surge, unavailable)


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the decision about a step depends on, in pods."""

    old: int
    """``spec.replicas`` of the old controller."""
    new: int
    """``spec.replicas`` of the new controller."""
    ready_old: int = 0
    ready_new: int = 0
    ending: int = 0
    """Pods of either controller that are being deleted and still within their grace period: they take room."""


def scale_up(limits: Bounds, sizes: Sizes) -> int:
    """Return the size that the new controller may have now; its present one if there is no room."""
    room = limits.most - sizes.old - sizes.new - sizes.ending
    if sizes.new >= limits.desired or room <= 0:
        return sizes.new
    return min(limits.desired, sizes.new + room)


def scale_down(limits: Bounds, sizes: Sizes) -> int:
    """Return the size that the old controller may have now; its present one if no pod of it can be spared.

    Its pods count as ready, as the controller deletes those first that are not: an old pod that never becomes ready
    cannot stop an update, nor the way back.
    """
    if sizes.new >= limits.desired and sizes.ready_new >= limits.desired:
        return 0
    spare = sizes.old + min(sizes.ready_new, sizes.new) - limits.least_ready
    return max(0, sizes.old - max(0, spare))


def trim(limits: Bounds, sizes: Sizes) -> int:
    """The size for a new controller that another client has made larger than wanted, as far as ready pods allow."""
    if sizes.new <= limits.desired:
        return sizes.new
    unready = max(0, sizes.new - sizes.ready_new)
    spare = max(0, sizes.ready_old + sizes.ready_new - limits.least_ready)
    return max(limits.desired, sizes.new - unready - spare)
