"""Checks the values of JSON texts that come from annotations."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from kubeproxy.model.address import Address, parse_address


def to_text(value: object) -> str:
    """Return a value as compact JSON."""
    return json.dumps(value, separators=(",", ":"))


def parsed(text: str) -> object:
    """Parse a JSON text. Raise ValueError, with what was found, for anything else."""
    try:
        parsed: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"found {shown(text)}; allowed is JSON: {error}") from None
    return parsed


def object_in(value: object, where: str) -> dict[str, Any]:
    """Check that a value is an object. `where` names its place in the ValueError for anything else."""
    if not isinstance(value, dict):
        raise ValueError(f"{where or 'the value'}: found {shown(value)}; allowed is an object")
    return value


def word_in(value: object, where: str) -> str:
    """Check that a value is a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{where}: found {shown(value)}; allowed is a text that is not empty")
    return value


def whole_in(value: object, where: str) -> int:
    """Check that a value is a whole number, 0 or more."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise ValueError(f"{where}: found {shown(value)}; allowed is a whole number from 0")
    return value


def number_in(value: object, where: str) -> float:
    """Check that a value is a number, 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1 << 53:
        raise ValueError(f"{where}: found {shown(value)}; allowed is a number from 0")
    return float(value)


def addresses_in(value: object, where: str) -> Iterable[Address]:
    """Check that a value is a list of IP addresses, and return them in canonical form."""
    if not isinstance(value, list):
        raise ValueError(f"{where}: found {shown(value)}; allowed is a list of IP addresses")
    for text in value:
        try:
            yield parse_address(word_in(text, where))
        except ValueError:
            raise ValueError(f"{where}: found {shown(text)}; allowed is an IP address") from None


def shown(value: object) -> str:
    """Return a value for an error text, shortened."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
