"""The time-outs of drains and of readiness gates, as annotations state them."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

DRAIN_TIMEOUT: Final = "kubeproxy/drain-timeout"
"""The annotation of a Deployment: how long after the beginning of its drain a pod is deleted, whatever is open."""
DRAIN_S: Final = 30.0
USE_TIMEOUT: Final = "kubeproxy/use-timeout"
"""The annotation of a Deployment, or of a pod with the readiness gate: how long the pod waits for the proxies."""
USE_S: Final = 60.0
_DURATION: Final = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?")


def seconds_in(text: str | None, name: str, default: float) -> float:
    """Return the seconds that the annotation `name` states. Raise ValueError, which says what is wrong, for a text that
    is no duration."""
    if text is None:
        return default
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        raise ValueError(f"annotation {name}: found {text!r}; allowed is a duration such as 30s or 1m30s")
    hours, minutes, seconds = (Fraction(part or 0) for part in match.groups())
    return float(hours * 3600 + minutes * 60 + seconds)
