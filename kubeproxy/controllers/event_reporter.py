"""Reports the Events of controllers: their reasons, and the objects that they are about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kubeproxy.kubernetes.events.recorder import EventRecorder
from kubeproxy.kubernetes.metadata import Meta

EventType = Literal["Normal", "Warning"]

SCALING = "ScalingReplicaSet"
SUCCESSFUL_CREATE = "SuccessfulCreate"
FAILED_CREATE = "FailedCreate"
SUCCESSFUL_DELETE = "SuccessfulDelete"
FAILED_DELETE = "FailedDelete"
SELECTING_ALL = "SelectingAll"
CREATE_ERROR = "ReplicaSetCreateError"
ROLLBACK_NOT_FOUND = "DeploymentRollbackRevisionNotFound"
ROLLBACK_UNCHANGED = "DeploymentRollbackTemplateUnchanged"
ROLLBACK_DONE = "DeploymentRollback"
DRAINING = "DrainingPods"
DRAIN_TIMED_OUT = "DrainTimedOut"
DRAIN_OPTIONS = "InvalidDrainOptions"
PROXIES_LATE = "ProxiesNotFollowing"
PROXIES_UNKNOWN = "ProxiesUnknown"


@dataclass(frozen=True, slots=True)
class Involved:
    """The object that an Event is about."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    resource_version: str

    @classmethod
    def of(cls, api_version: str, kind: str, metadata: Meta) -> Involved:
        """Return a reference to the object that has this metadata."""
        return cls(api_version, kind, metadata.namespace, metadata.name, metadata.uid, metadata.resource_version)


class EventReporter:
    """Accepts Events at any time, and hands them to a recorder, which sends them in the background."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder

    def record(self, involved: Involved, type: EventType, reason: str, message: str) -> None:
        """Queue one Event about an object. This returns at once and never fails."""
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
