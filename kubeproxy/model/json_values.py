"""Parses JSON texts from annotations, and checks their values."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from kubeproxy.model.address import Address, parse_address


def to_text(value: object) -> str:
    """Encode a value as JSON without spaces."""
    return json.dumps(value, separators=(",", ":"))


def parsed(text: str) -> object:
    """Parse a JSON text. Raise ValueError, with what was found, if it is invalid."""
    try:
        parsed: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"found {shown(text)}; allowed is JSON: {error}") from None
    return parsed


def object_in(value: object, where: str) -> dict[str, Any]:
    """Return a value that must be an object. Raise ValueError otherwise; the message names its path `where`."""
    if not isinstance(value, dict):
        raise ValueError(f"{where or 'the value'}: found {shown(value)}; allowed is an object")
    return value


def word_in(value: object, where: str) -> str:
    """Return a value that must be a non-empty string. Raise ValueError otherwise."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{where}: found {shown(value)}; allowed is a text that is not empty")
    return value


def whole_in(value: object, where: str) -> int:
    """Return a value that must be an integer of at least 0. Raise ValueError otherwise."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise ValueError(f"{where}: found {shown(value)}; allowed is a whole number from 0")
    return value


def number_in(value: object, where: str) -> float:
    """Return a value that must be a number of at least 0. Raise ValueError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1 << 53:
        raise ValueError(f"{where}: found {shown(value)}; allowed is a number from 0")
    return float(value)


def addresses_in(value: object, where: str) -> Iterable[Address]:
    """Return the canonical addresses of a value that must be a list of IP addresses. Raise ValueError otherwise."""
    if not isinstance(value, list):
        raise ValueError(f"{where}: found {shown(value)}; allowed is a list of IP addresses")
    for text in value:
        try:
            yield parse_address(word_in(text, where))
        except ValueError:
            raise ValueError(f"{where}: found {shown(text)}; allowed is an IP address") from None


def shown(value: object) -> str:
    """Format a value for an error message, shortened."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
