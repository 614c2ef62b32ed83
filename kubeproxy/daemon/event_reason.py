"""Why there is an Event. Apart from who sends them, for whoever has to name a reason before there is an API server."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Where kube-proxy has the same, in its words."""

    STARTING = "Starting"
    FAILED_HEALTHZ = "FailedToStartProxierHealthcheck"
    FAILED_SERVICE_HEALTH = "FailedToStartServiceHealthcheck"
    NOT_SERVED = "NotServed"
