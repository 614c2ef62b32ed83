"""What the warnings and errors in docs/log-messages.md mean, and what an operator does about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

EXPLANATIONS: Final[Mapping[str, tuple[str, str]]] = {}
"""Meaning and remedy of a message, by its text as it stands in the source."""
