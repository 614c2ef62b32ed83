"""A ReplicationController, the annotations ("marks") that an update leaves on it, and the lock of a run.

The controller is kept as the JSON that the server sent, so that unknown fields survive when it is written back.
"""

from __future__ import annotations

import copy
import os
import socket
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, Final

from kubeproxy.kubernetes import timestamps
from kubeproxy.kubernetes.resource_builder.errors import quoted
from kubeproxy.model.errors import ClusterError

Data = dict[str, Any]

_DIGITS: Final = 10
"""The maximum number of digits in a number of pods. Python refuses to convert thousands of digits."""

_PREFIX: Final = "kubectl.kubernetes.io"
NEXT: Final = f"{_PREFIX}/next-controller-id"
"""The annotation of the old controller with the name of the new controller. This annotation and the next three are
kubectl's, so kubectl can continue an update of kubeproxy, and kubeproxy one of kubectl."""
ORIGINAL_REPLICAS: Final = f"{_PREFIX}/original-replicas"
"""The annotation of the old controller with its size before the update."""
SOURCE: Final = f"{_PREFIX}/update-source-id"
"""The annotation of the new controller with ``NAME:UID`` of the old controller."""
DESIRED_REPLICAS: Final = f"{_PREFIX}/desired-replicas"
"""The annotation of the new controller with its size after the update."""
HOLDER: Final = "kubeproxy/rolling-update"
"""The annotation with the holder of the lock (see `UpdateLock`), on the controller that the command line names
first."""
RENAMED_FROM: Final = "kubeproxy/renamed-from"
"""The annotation of a renamed controller with the name of its predecessor, whose pods it takes over. The label of the
same name has the predecessor's UID."""
MARKS: Final = (NEXT, ORIGINAL_REPLICAS, SOURCE, DESIRED_REPLICAS, HOLDER, RENAMED_FROM)


class UpdateError(ClusterError):
    """Raised if the update cannot continue. The message says why."""


class DeletedError(UpdateError):
    """Raised if a controller that the update needs does not exist any more."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} was deleted by another client while it was updated")
        self.name = name


@dataclass(frozen=True, slots=True)
class Controller:
    """One ReplicationController as JSON values. Its properties return parts of `data` itself, so change only a
    `copy`."""

    data: Data

    def copy(self) -> Controller:
        """Return a deep copy of this controller."""
        return Controller(copy.deepcopy(self.data))

    @property
    def metadata(self) -> Data:
        found: Data = self.data.setdefault("metadata", {})
        return found

    @property
    def spec(self) -> Data:
        found: Data = self.data.setdefault("spec", {})
        return found

    @property
    def name(self) -> str:
        return str(self.metadata.get("name") or "")

    @property
    def uid(self) -> str:
        return str(self.metadata.get("uid") or "")

    @property
    def annotations(self) -> dict[str, str]:
        if self.metadata.get("annotations") is None:
            self.metadata["annotations"] = {}
        found: dict[str, str] = self.metadata["annotations"]
        return found

    @property
    def replicas(self) -> int:
        """Return ``spec.replicas``, or the API's default of 1 if it is absent."""
        found = self.spec.get("replicas")
        return 1 if found is None else int(found)

    @property
    def selector(self) -> dict[str, str]:
        """Return the selector, or the server's default, the labels of the template, if it is absent."""
        if not self.spec.get("selector"):
            self.spec["selector"] = dict(self.template_labels)
        found: dict[str, str] = self.spec["selector"]
        return found

    @property
    def template_labels(self) -> dict[str, str]:
        template: Data = self.spec.setdefault("template", {})
        metadata: Data = template.setdefault("metadata", {})
        if metadata.get("labels") is None:
            metadata["labels"] = {}
        found: dict[str, str] = metadata["labels"]
        return found

    @property
    def containers(self) -> list[Data]:
        found: list[Data] = ((self.spec.get("template") or {}).get("spec") or {}).get("containers") or []
        return found

    @property
    def deleting(self) -> bool:
        """Return whether the controller is being deleted. It then exists only because of a finalizer."""
        return bool(self.metadata.get("deletionTimestamp"))

    @property
    def present(self) -> int:
        """Return ``status.replicas``, the number of pods that are not being deleted, as the controller manager has
        counted them."""
        return int((self.data.get("status") or {}).get("replicas") or 0)

    @property
    def observed(self) -> bool:
        """Return whether the controller manager has acted on the newest spec."""
        observed = int((self.data.get("status") or {}).get("observedGeneration") or 0)
        return observed >= int(self.metadata.get("generation") or 0)

    @property
    def synced(self) -> bool:
        """Return whether the controller manager has acted on the newest spec, and the controller has its wanted number
        of pods."""
        return self.observed and self.present == self.replicas

    @property
    def failure(self) -> str:
        """Return the message of the condition ReplicaFailure, which says why pods cannot be created or deleted, or an
        empty text."""
        for condition in (self.data.get("status") or {}).get("conditions") or ():
            if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
                return str(condition.get("message") or condition.get("reason") or "")
        return ""

    @property
    def source_id(self) -> str:
        """Return the value that the annotation `SOURCE` has on a controller that replaces this one."""
        return f"{self.name}:{self.uid}"

    def number(self, annotation: str) -> int | None:
        """Return the number of pods in an annotation, or None if it is absent. Raise `UpdateError` if it is not a
        number."""
        text = self.annotations.get(annotation)
        if text is None:
            return None
        if not text.isascii() or not text.isdecimal() or len(text) > _DIGITS:
            raise UpdateError(f"Unable to parse annotation for {self.name}: {annotation}={text[:80]}")
        return int(text)


def is_source_of(name: str, other: Controller) -> bool:
    """Return whether `other` was made to replace the controller `name`."""
    return other.annotations.get(SOURCE, "").rpartition(":")[0] == name


def check_source(old: Controller, new: Controller) -> None:
    """Raise `UpdateError` unless the annotations of `new` say that it replaces `old`."""
    if new.annotations.get(SOURCE) == old.source_id and DESIRED_REPLICAS in new.annotations:
        return
    if finished(old, new):
        return
    shown = " ".join(f"{key}:{value}" for key, value in sorted(new.annotations.items()))
    raise UpdateError(
        f"Missing/unexpected annotations for controller {new.name}, expected {old.source_id} : map[{shown}]"
    )


def finished(old: Controller, new: Controller) -> bool:
    """Return whether the update was completed, except that the old controller still has its marks.

    All pods are then replaced, and an interrupted run has removed the marks only from the new controller.
    """
    unmarked = SOURCE not in new.annotations and DESIRED_REPLICAS not in new.annotations
    return unmarked and old.annotations.get(NEXT) == new.name and old.replicas == 0


def in_progress(old: Controller, new: Controller | None) -> bool:
    """Return whether the marks of the old controller belong to an update in progress.

    kubectl writes the name of the new controller first and the original size later, and does not remove these marks
    after a rollback. So if the old controller has both marks but no lock, and the new controller does not exist, there
    was a rollback.
    """
    if NEXT not in old.annotations:
        return False
    return new is not None or HOLDER in old.annotations or ORIGINAL_REPLICAS not in old.annotations


def original_size(old: Controller) -> int:
    """Return the size of the old controller before the update. Return the present size if it is larger than the mark,
    which may be left over from an update that kubectl has rolled back."""
    return max(old.replicas, old.number(ORIGINAL_REPLICAS) or 0)


def desired_size(new: Controller) -> int:
    """Return the size that the new controller has after the update."""
    found = new.number(DESIRED_REPLICAS)
    return new.replicas if found is None else found


def without_marks(controller: Controller) -> None:
    """Remove all marks of an update from the controller, in place."""
    for mark in MARKS:
        controller.annotations.pop(mark, None)


def not_found(name: str) -> str:
    """Return the server's message for a controller that does not exist."""
    return f"replicationcontrollers {quoted(name)} not found"


class RivalUpdateError(UpdateError):
    """Raised if another process updates the same controller."""


@dataclass(frozen=True, slots=True)
class UpdateLock:
    """A run's lock on a controller. If two runs update the same controller at once, one of them stops.

    The first write of a run puts the lock, an annotation, on the controller that the command line names first. The
    write has the resourceVersion with which the run began, so if two runs begin together, the server refuses one. A
    later run takes the lock over, because it cannot know whether the earlier run still exists. If the earlier run
    exists, it notices the loss before its next write, and stops.
    """

    name: str
    """The name of the controller."""
    holder: str
    """The process that holds the lock."""
    before: str
    """The former holder whose lock this run takes over, or empty if there was none."""

    @classmethod
    def of(cls, controller: Controller, now: float) -> UpdateLock:
        """Return the lock of a run that begins with this state of the controller. `now` is in Unix seconds."""
        holder = f"{token_hex(4)} {socket.gethostname()} pid {os.getpid()} since {timestamps.seconds(now)}"
        return cls(controller.name, holder, controller.annotations.get(HOLDER, ""))

    def take(self, controller: Controller) -> None:
        """Put the lock on the controller. Raise RivalUpdateError if another run has done so since this run began."""
        found = controller.annotations.get(HOLDER, "")
        if found not in (self.before, self.holder):
            raise self._rival(found, "began at the same time; this one stops before it changed anything")
        controller.annotations[HOLDER] = self.holder

    def check(self, controller: Controller) -> None:
        """Raise RivalUpdateError if another run has taken the lock over."""
        found = controller.annotations.get(HOLDER, "")
        if found != self.holder:
            raise self._rival(found, "has taken over; this one stops and changes nothing further")

    def _rival(self, found: str, what: str) -> RivalUpdateError:
        which = found.partition(" ")[2] or "without a name"
        return RivalUpdateError(f"another rolling update of {self.name} ({which}) {what}")
