"""Mappings by traffic, made from those by destination, and taken apart again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from kubeproxy.model import Destination, Origin, Traffic

V = TypeVar("V")


def from_anywhere(values: Mapping[Destination, V]) -> dict[Traffic, V]:
    """Give these values to the traffic of all clients."""
    return {Traffic(destination): value for destination, value in values.items()}


def from_node(values: Mapping[Destination, V]) -> dict[Traffic, V]:
    """Give these values to the traffic of clients on this node."""
    return {Traffic(destination, Origin.NODE): value for destination, value in values.items()}


def of(origin: Origin, values: Mapping[Traffic, V]) -> dict[Destination, V]:
    """Return the values for clients of one origin."""
    return {destination: value for (destination, its), value in values.items() if its is origin}
