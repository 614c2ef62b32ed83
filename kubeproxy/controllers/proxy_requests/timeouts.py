"""Reads the timeouts of drains and of readiness gates from annotations."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

DRAIN_TIMEOUT: Final = "kubeproxy/drain-timeout"
"""The annotation of a Deployment with the longest time that a pod drains, as a duration. The pod is then deleted even
if connections are open."""
DRAIN_S: Final = 30.0
USE_TIMEOUT: Final = "kubeproxy/use-timeout"
"""The annotation of a Deployment, or of a pod with the readiness gate, with the longest time that a pod waits for the
proxies, as a duration."""
USE_S: Final = 60.0
_DURATION: Final = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?")


def seconds_in(text: str | None, name: str, default: float) -> float:
    """Return the duration `text` of the annotation `name` in seconds, or `default` if `text` is None. Raise ValueError,
    with a message for the user, if the text is not a duration."""
    if text is None:
        return default
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        raise ValueError(f"annotation {name}: found {text!r}; allowed is a duration such as 30s or 1m30s")
    hours, minutes, seconds = (Fraction(part or 0) for part in match.groups())
    return float(hours * 3600 + minutes * 60 + seconds)
