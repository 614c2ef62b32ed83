"""The arithmetic of a rolling update: how far the new controller grows and the old one shrinks.

Two promises hold at every step. No step makes ready pods fewer than `Bounds.least_ready`, and the pods of both
controllers are never more than `Bounds.most`.
"""

from __future__ import annotations

from dataclasses import dataclass

from kubeproxy.controllers.surge import resolve


@dataclass(frozen=True, slots=True)
class Bounds:
    """The promises of one update, in pods."""

    desired: int
    """The number of pods of the new controller at the end."""
    surge: int
    unavailable: int

    @property
    def least_ready(self) -> int:
        """Return the least number of ready pods after a step."""
        return max(0, self.desired - self.unavailable)

    @property
    def most(self) -> int:
        """Return the largest number of pods of both controllers."""
        return self.desired + self.surge


def bounds(max_surge: int | str, max_unavailable: int | str, desired: int) -> Bounds:
    """Return the promises for this number of pods. Of percentages, the surge is rounded up and the unavailability down.
    If both are 0, one pod may be unavailable, because otherwise no step would be possible."""
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
    """The pods of either controller that are being deleted and still within their grace period. They take room."""


def scale_up(limits: Bounds, sizes: Sizes) -> int:
    """Return the size that the new controller may have now. It is the present size if there is no room."""
    room = limits.most - sizes.old - sizes.new - sizes.ending
    if sizes.new >= limits.desired or room <= 0:
        return sizes.new
    return min(limits.desired, sizes.new + room)


def scale_down(limits: Bounds, sizes: Sizes) -> int:
    """Return the size that the old controller may have now. It is the present size if no pod can be spared.

    All pods of the old controller count as ready, because it deletes those first that are not. So an old pod that never
    becomes ready cannot stop an update, nor the way back.
    """
    if sizes.new >= limits.desired and sizes.ready_new >= limits.desired:
        return 0
    spare = sizes.old + min(sizes.ready_new, sizes.new) - limits.least_ready
    return max(0, sizes.old - max(0, spare))


def trim(limits: Bounds, sizes: Sizes) -> int:
    """Return the size for a new controller that another client has made larger than wanted, as far as ready pods
    allow."""
    if sizes.new <= limits.desired:
        return sizes.new
    unready = max(0, sizes.new - sizes.ready_new)
    spare = max(0, sizes.ready_old + sizes.ready_new - limits.least_ready)
    return max(limits.desired, sizes.new - unready - spare)
