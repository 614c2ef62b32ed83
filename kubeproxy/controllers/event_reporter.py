"""Reports the controllers' Events to the API server."""

from __future__ import annotations

from kubeproxy.controllers.event_sink import EventType, Involved
from kubeproxy.kubernetes.events.recorder import EventRecorder


class EventReporter:
    """An `EventSink` that hands Events to a recorder, which sends them in the background."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder

    def record(self, involved: Involved, type: EventType, reason: str, message: str) -> None:
        """Queue one Event about an object."""
        self._recorder.record(
            involved.kind,
            involved.namespace,
            involved.name,
            uid=involved.uid,
            api_version=involved.api_version,
            type=type,
            reason=reason,
            message=message,
        )
