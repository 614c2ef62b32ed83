"""Converts times as the API writes them to Unix seconds, and back."""

from __future__ import annotations

from datetime import UTC, datetime


def parse(text: str | None) -> float | None:
    """Return the Unix seconds of an RFC 3339 time, or None if there is none that can be read."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def seconds(unix_s: float) -> str:
    """Return a metav1.Time like ``2026-01-02T03:04:05Z``, cut to the second as the API server cuts it."""
    return datetime.fromtimestamp(int(unix_s // 1), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def microseconds(unix_s: float) -> str:
    """Return a metav1.MicroTime like ``2026-01-02T03:04:05.678901Z``."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
