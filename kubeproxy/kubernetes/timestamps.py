"""Converts the API's times to Unix seconds, and back."""

from __future__ import annotations

from datetime import UTC, datetime


def parse(text: str | None) -> float | None:
    """Convert an RFC 3339 time to Unix seconds. Return None if the text is None or invalid."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def seconds(unix_s: float) -> str:
    """Convert Unix seconds to a metav1.Time such as ``2026-01-02T03:04:05Z``. Like the API server, drop fractions of a
    second."""
    return datetime.fromtimestamp(int(unix_s // 1), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def microseconds(unix_s: float) -> str:
    """Convert Unix seconds to a metav1.MicroTime such as ``2026-01-02T03:04:05.678901Z``."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
