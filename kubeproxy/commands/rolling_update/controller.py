"""A ReplicationController as the server has it, with the marks that an update leaves on it.

It is kept as the plain JSON that came, so that fields of other API versions survive when it is written back.
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
"""The digits of the largest number of pods. Python refuses to convert a text of thousands of digits."""

_PREFIX: Final = "kubectl.kubernetes.io"
NEXT: Final = f"{_PREFIX}/next-controller-id"
"""The annotation of the old controller that holds the new controller's name. This annotation and the next three are
kubectl's, so that kubectl can continue an update that kubeproxy has begun, and the other way round."""
ORIGINAL_REPLICAS: Final = f"{_PREFIX}/original-replicas"
"""The size that the old controller had before the update, on the old controller."""
SOURCE: Final = f"{_PREFIX}/update-source-id"
"""``NAME:UID`` of the old controller, on the new one."""
DESIRED_REPLICAS: Final = f"{_PREFIX}/desired-replicas"
"""The size that the new controller has after the update, on the new controller."""
HOLDER: Final = "kubeproxy/rolling-update"
"""The process that updates the controller (see `UpdateLock`), on the controller that the command line names first."""
RENAMED_FROM: Final = "kubeproxy/renamed-from"
"""The name of the other controller, on a controller that is to take over that controller's pods. The label of the same
name has the other controller's UID."""
MARKS: Final = (NEXT, ORIGINAL_REPLICAS, SOURCE, DESIRED_REPLICAS, HOLDER, RENAMED_FROM)


class UpdateError(ClusterError):
    """Raised if the update cannot continue. The message tells why."""


class DeletedError(UpdateError):
    """Raised if a controller that the update needs does not exist any more."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} was deleted by another client while it was updated")
        self.name = name


@dataclass(frozen=True, slots=True)
class Controller:
    """One ReplicationController. Its properties return the live parts of `data`, so change only a `copy`."""

    data: Data

    def copy(self) -> Controller:
        """Return a controller that can be changed without changing this one."""
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
        """Return the wanted number of pods. It is 1 if the object does not give it."""
        found = self.spec.get("replicas")
        return 1 if found is None else int(found)

    @property
    def selector(self) -> dict[str, str]:
        """Return the selector. If the object has none, return the labels of the template, which the server uses by
        default."""
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
        """Return whether the controller is being deleted and waits for a finalizer."""
        return bool(self.metadata.get("deletionTimestamp"))

    @property
    def present(self) -> int:
        """Return ``status.replicas``, the pods that are not being deleted, as the controller manager last counted
        them."""
        return int((self.data.get("status") or {}).get("replicas") or 0)

    @property
    def observed(self) -> bool:
        """Return whether the controller manager has acted on the newest spec."""
        observed = int((self.data.get("status") or {}).get("observedGeneration") or 0)
        return observed >= int(self.metadata.get("generation") or 0)

    @property
    def synced(self) -> bool:
        """Return whether the controller manager has acted on the newest spec, and the number of pods is the wanted
        one."""
        return self.observed and self.present == self.replicas

    @property
    def failure(self) -> str:
        """Return why pods cannot be created or deleted, or an empty text if no reason is known."""
        for condition in (self.data.get("status") or {}).get("conditions") or ():
            if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
                return str(condition.get("message") or condition.get("reason") or "")
        return ""

    @property
    def source_id(self) -> str:
        """Return the value of `SOURCE` on a controller that replaces this one."""
        return f"{self.name}:{self.uid}"

    def number(self, annotation: str) -> int | None:
        """Return an annotation as a number of pods, or None if it is absent. Raise `UpdateError` if it is not such a
        number."""
        text = self.annotations.get(annotation)
        if text is None:
            return None
        if not text.isascii() or not text.isdecimal() or len(text) > _DIGITS:
            raise UpdateError(f"Unable to parse annotation for {self.name}: {annotation}={text[:80]}")
        return int(text)


def is_source_of(name: str, other: Controller) -> bool:
    """Return whether `other` replaces a controller of exactly this name."""
    return other.annotations.get(SOURCE, "").rpartition(":")[0] == name


def check_source(old: Controller, new: Controller) -> None:
    """Raise `UpdateError` unless an earlier run has made `new` to replace `old`."""
    if new.annotations.get(SOURCE) == old.source_id and DESIRED_REPLICAS in new.annotations:
        return
    if finished(old, new):
        return
    shown = " ".join(f"{key}:{value}" for key, value in sorted(new.annotations.items()))
    raise UpdateError(
        f"Missing/unexpected annotations for controller {new.name}, expected {old.source_id} : map[{shown}]"
    )


def finished(old: Controller, new: Controller) -> bool:
    """Return whether the update is complete although marks of it are left on the old controller.

    All pods are then replaced, and an interrupted run has already removed the marks from the new controller.
    """
    unmarked = SOURCE not in new.annotations and DESIRED_REPLICAS not in new.annotations
    return unmarked and old.annotations.get(NEXT) == new.name and old.replicas == 0


def in_progress(old: Controller, new: Controller | None) -> bool:
    """Return whether the marks of the old controller belong to an update in progress.

    A rollback by kubectl leaves marks, too. kubectl writes the name of the new controller first and the original size
    later, and removes neither after a rollback. So both marks, without a new controller and without a holder, are left
    over from a rollback.
    """
    if NEXT not in old.annotations:
        return False
    return new is not None or HOLDER in old.annotations or ORIGINAL_REPLICAS not in old.annotations


def original_size(old: Controller) -> int:
    """Return the size of the old controller before the update. It is never less than the present size, because the mark
    may be left from an update that kubectl has taken back."""
    return max(old.replicas, old.number(ORIGINAL_REPLICAS) or 0)


def desired_size(new: Controller) -> int:
    """Return the size that the new controller is to have."""
    found = new.number(DESIRED_REPLICAS)
    return new.replicas if found is None else found


def without_marks(controller: Controller) -> None:
    """Remove all marks of an update."""
    for mark in MARKS:
        controller.annotations.pop(mark, None)


def not_found(name: str) -> str:
    """Return the server's message for a controller that does not exist."""
    return f"replicationcontrollers {quoted(name)} not found"


class RivalUpdateError(UpdateError):
    """Raised if another process updates the same controller."""


@dataclass(frozen=True, slots=True)
class UpdateLock:
    """A run's lock on a controller, so that of two updates at once one stops.

    The first write of every run puts the lock on the controller that the command line names first. It is written with
    the resourceVersion that the run began with, so of two runs that begin together the server refuses one. A later run
    takes the lock over, because the earlier run may be dead, which another machine cannot know. If the earlier run is
    alive, it finds the lost lock before its next write, and stops without another change.
    """

    name: str
    """The name of the controller."""
    holder: str
    """The process that holds the lock."""
    before: str
    """The holder that this run replaces. It is empty if there was none."""

    @classmethod
    def of(cls, controller: Controller, now: float) -> UpdateLock:
        """Make the lock of a run that begins with this state of the controller."""
        holder = f"{token_hex(4)} {socket.gethostname()} pid {os.getpid()} since {timestamps.seconds(now)}"
        return cls(controller.name, holder, controller.annotations.get(HOLDER, ""))

    def take(self, controller: Controller) -> None:
        """Put the lock on the controller. Raise RivalUpdateError if another run has done so since this one began."""
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
