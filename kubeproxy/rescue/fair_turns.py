"""Decides which tenant has the next turn when dials are scarce, so that no tenant can use up the turns of others.

A dial of a silent endpoint takes most of a second. In the order in which they are due, a thousand silent endpoints of
one tenant would keep the endpoints of all others waiting.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")

Tenants = frozenset[str]
"""The namespaces of the Services that have an endpoint. Each of them may be the one for which the endpoint is
dialed."""


def next_turns(waiting: Mapping[T, Tenants], busy: Iterable[Tenants], at_most: int) -> list[T]:
    """Return at most `at_most` of the waiting items: repeatedly the first item of the tenant with the fewest dials in
    progress.

    `busy` has the tenants of each dial in progress. If a tenant lists another tenant's endpoint, the dial counts for
    it, and the other tenant does not wait longer.
    """
    if len(waiting) <= at_most:
        return list(waiting)
    load = Counter[str]()
    for tenants in busy:
        load.update(tenants)
    queues: dict[Tenants, deque[T]] = {}
    for each, tenants in waiting.items():
        queues.setdefault(tenants, deque()).append(each)
    found: list[T] = []
    while len(found) < at_most:
        tenants = min(queues, key=lambda queue: min((load[tenant] for tenant in queue), default=0))
        found.append(queues[tenants].popleft())
        load.update(tenants)
        if not queues[tenants]:
            del queues[tenants]
    return found


def has_room(tenants: Tenants, busy: Collection[Tenants], at_most: int) -> bool:
    """Return whether another dial of these tenants may begin, if dials cannot wait: each tenant may use half of the
    room that the others have left."""
    for tenant in tenants:
        own = sum(tenant in each for each in busy)
        if own < (at_most - (len(busy) - own)) / 2:
            return True
    return False
