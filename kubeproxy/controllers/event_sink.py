"""The Events of controllers: their reasons, the objects that they are about, and the interface that accepts them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

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


class EventSink(Protocol):
    """Accepts Events at any time. It returns at once and never fails."""

    def record(self, involved: Involved, type: EventType, reason: str, message: str) -> None:
        """Report an Event about an object."""
