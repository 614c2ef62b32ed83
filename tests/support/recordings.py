"""Recorded answers of real API servers."""

from __future__ import annotations

from pathlib import Path

DATA = Path(__file__).parent / "recorded_lists"


def recording(name: str) -> bytes:
    """A recorded list, like ``services-1.36``."""
    return (DATA / f"{name}.json").read_bytes()
