"""Converts maxSurge and maxUnavailable to numbers of pods, and computes the size that a new ReplicaSet may have."""

from __future__ import annotations

import math
import re
from fractions import Fraction

from kubeproxy.controllers.api_types import Deployment

_PERCENT = re.compile(r"0*([0-9]{1,9})%")
_MORE_THAN_ALL = re.compile(r"[0-9]+%")
"""A percentage with any number of digits. An API server accepts more digits than Python converts."""
_LARGEST = 10**9


def scaled(value: int | str | None, total: int, *, up: bool) -> int:
    """Return `value` if it is a number. If it is a percentage, return that part of `total`, rounded up or down. Raise
    ValueError for any other text."""
    if value is None:
        return 0
    if isinstance(value, int):
        return value
    match = _PERCENT.fullmatch(value)
    if match is None and not _MORE_THAN_ALL.fullmatch(value):
        raise ValueError(f"invalid value for IntOrString: invalid type: string is not a percentage: {value[:80]!r}")
    share = Fraction((_LARGEST if match is None else int(match[1])) * total, 100)
    return math.ceil(share) if up else math.floor(share)


def resolve(max_surge: int | str | None, max_unavailable: int | str | None, desired: int) -> tuple[int, int]:
    """Return maxSurge and maxUnavailable as numbers of pods. If both are 0, return 1 for maxUnavailable, because
    otherwise no step would be possible."""
    surge = scaled(max_surge, desired, up=True)
    unavailable = scaled(max_unavailable, desired, up=False)
    if surge == 0 and unavailable == 0:
        unavailable = 1
    return surge, unavailable


def _fenceposts(deployment: Deployment) -> tuple[int, int]:
    update = deployment.spec.strategy.rolling_update
    return resolve(update.max_surge, update.max_unavailable, deployment.spec.replicas)


def max_surge(deployment: Deployment) -> int:
    """Return how many pods the Deployment may have above its size. The result is 0 unless the strategy is
    RollingUpdate."""
    return _fenceposts(deployment)[0] if deployment.rolling else 0


def max_unavailable(deployment: Deployment) -> int:
    """Return how many of the Deployment's pods may be unavailable, at most its size. The result is 0 unless the
    strategy is RollingUpdate."""
    if not deployment.rolling or deployment.spec.replicas == 0:
        return 0
    return min(_fenceposts(deployment)[1], deployment.spec.replicas)


def min_available(deployment: Deployment) -> int:
    """Return how many pods must stay available during a rolling update, or 0 for other strategies."""
    return deployment.spec.replicas - max_unavailable(deployment) if deployment.rolling else 0


def max_total(deployment: Deployment) -> int:
    """Return how many pods the old and new ReplicaSets together may have."""
    return deployment.spec.replicas + max_surge(deployment)


def new_replica_set_size(deployment: Deployment, total: int, current: int) -> int:
    """Return the size that the new ReplicaSet may have. `total` is the sum of the sizes of all ReplicaSets, `current`
    the size of the new ReplicaSet."""
    wanted = deployment.spec.replicas
    if not deployment.rolling:
        return wanted
    room = max_total(deployment) - total
    if room <= 0:
        return current
    return current + min(room, wanted - current)
