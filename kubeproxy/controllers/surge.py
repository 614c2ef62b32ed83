"""Computes maxSurge and maxUnavailable in pods, and the size that a new ReplicaSet may have."""

from __future__ import annotations

import math
import re
from fractions import Fraction

from kubeproxy.controllers.api_types import Deployment

_PERCENT = re.compile(r"0*([0-9]{1,9})%")
_MORE_THAN_ALL = re.compile(r"[0-9]+%")
"""The value of a percentage with too many digits, which an API server accepts, too."""
_LARGEST = 10**9


def scaled(value: int | str | None, total: int, *, up: bool) -> int:
    """Return a number, or a percentage of `total` rounded up or down. Raise ValueError for any other text."""
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
    """Return surge and unavailability in pods. If both are 0, one pod may be unavailable, because otherwise no step
    would be possible."""
    surge = scaled(max_surge, desired, up=True)
    unavailable = scaled(max_unavailable, desired, up=False)
    if surge == 0 and unavailable == 0:
        unavailable = 1
    return surge, unavailable


def _fenceposts(deployment: Deployment) -> tuple[int, int]:
    update = deployment.spec.strategy.rolling_update
    return resolve(update.max_surge, update.max_unavailable, deployment.spec.replicas)


def max_surge(deployment: Deployment) -> int:
    """Return how many pods are allowed above the wanted number. It is 0 unless the strategy is RollingUpdate."""
    return _fenceposts(deployment)[0] if deployment.rolling else 0


def max_unavailable(deployment: Deployment) -> int:
    """Return how many pods may be missing. It is 0 unless the strategy is RollingUpdate, and never above the wanted
    number."""
    if not deployment.rolling or deployment.spec.replicas == 0:
        return 0
    return min(_fenceposts(deployment)[1], deployment.spec.replicas)


def min_available(deployment: Deployment) -> int:
    """Return how many pods must stay available during a rolling update."""
    return deployment.spec.replicas - max_unavailable(deployment) if deployment.rolling else 0


def max_total(deployment: Deployment) -> int:
    """Return how many pods are allowed in all."""
    return deployment.spec.replicas + max_surge(deployment)


def new_replica_set_size(deployment: Deployment, total: int, current: int) -> int:
    """Return the size that the new ReplicaSet may have. `total` is the number of wanted pods of all sets, `current` its
    own."""
    wanted = deployment.spec.replicas
    if not deployment.rolling:
        return wanted
    room = max_total(deployment) - total
    if room <= 0:
        return current
    return current + min(room, wanted - current)
