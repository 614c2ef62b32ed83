"""Times as the API writes them, and Unix seconds. Pure."""

from __future__ import annotations

from datetime import UTC, datetime


def parse(text: str | None) -> float | None:
    """Unix seconds of an RFC 3339 time; None where there is none, or it is unreadable."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def seconds(unix_s: float) -> str:
    """``2026-01-02T03:04:05Z``: a metav1.Time, cut to the second as the API server cuts it."""
    return datetime.fromtimestamp(int(unix_s // 1), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def microseconds(unix_s: float) -> str:
    """``2026-01-02T03:04:05.678901Z``: a metav1.MicroTime."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
