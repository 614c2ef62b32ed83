"""Decides which tenant has the next turn when dials are short, so that no tenant takes the turns of others.

Dials of silent endpoints take most of a second each. If they ran in the order in which they become due, a thousand
silent endpoints of one tenant would keep the endpoints of all others waiting.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")

Tenants = frozenset[str]
"""The namespaces of the Services that have an endpoint. Any of them may be entitled to its dial."""


def next_turns(waiting: Mapping[T, Tenants], busy: Iterable[Tenants], at_most: int) -> list[T]:
    """Return at most `at_most` of those that wait: each time the first of the tenant with the fewest dials in progress.

    `busy` has the tenants of each dial in progress. A tenant that lists another's endpoint is charged for it, and the
    other does not wait longer for it.
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
    """Return whether another dial of these tenants may begin, if dials cannot wait: each tenant may have half of what
    the others leave."""
    for tenant in tenants:
        own = sum(tenant in each for each in busy)
        if own < (at_most - (len(busy) - own)) / 2:
            return True
    return False
