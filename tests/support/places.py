"""Every place in a value of JSON, and the value with something else in one place: objects of odd shapes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

Place = tuple[Any, ...]
"""Keys and indices that lead to a part of the value; empty for the whole of it."""


def places(value: Any, place: Place = ()) -> Iterator[Place]:
    """Yield every place, the whole first."""
    yield place
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield from places(part, (*place, key))


def replaced(value: Any, place: Place, new: object) -> Any:
    """Return a copy of the value with something else in one place."""
    if not place:
        return new
    copied = copy.deepcopy(value)
    at = copied
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = new
    return copied
