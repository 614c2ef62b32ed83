"""The revisions of a Deployment: reads and writes the revision annotations of its ReplicaSets, and finds the new
ReplicaSet."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from kubeproxy.controllers import template
from kubeproxy.controllers.api_types import Deployment, ReplicaSet

REVISION: Final = "deployment.kubernetes.io/revision"
REVISION_HISTORY: Final = "deployment.kubernetes.io/revision-history"
DESIRED_REPLICAS: Final = "deployment.kubernetes.io/desired-replicas"
MAX_REPLICAS: Final = "deployment.kubernetes.io/max-replicas"
ROLLBACK_TO: Final = "deprecated.deployment.rollback.to"
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
SKIPPED: Final = frozenset({LAST_APPLIED, REVISION, REVISION_HISTORY, DESIRED_REPLICAS, MAX_REPLICAS, ROLLBACK_TO})
"""Annotations that are not copied between a Deployment and its ReplicaSets."""
MAX_HISTORY: Final = 2000
"""The maximum length of the annotation with former revisions, in characters."""
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")


def integer(text: str | None) -> int | None:
    """Return a 64-bit integer as Go's ParseInt reads it, or None for any other text."""
    if text is None or not _INTEGER.fullmatch(text):
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None


def revision_of(item: ReplicaSet | Deployment) -> int:
    """Return the revision from the annotation, or 0 if the annotation is absent or not an integer."""
    return integer(item.metadata.annotations.get(REVISION)) or 0


def max_revision(replica_sets: Iterable[ReplicaSet]) -> int:
    """Return the highest revision of these ReplicaSets, or 0 if none has a revision."""
    return max((revision_of(replica_set) for replica_set in replica_sets), default=0)


def by_age(replica_sets: Iterable[ReplicaSet]) -> list[ReplicaSet]:
    """Sort ReplicaSets from the oldest to the newest, and by name if they were created in the same second."""
    return sorted(replica_sets, key=age_key)


def age_key(replica_set: ReplicaSet) -> tuple[str, str]:
    """Return a key that sorts by creation time and then by name. The times are RFC 3339 in UTC, so they are compared as
    text."""
    return replica_set.metadata.creation_timestamp or "", replica_set.metadata.name


def find_new(deployment: Deployment, replica_sets: Iterable[ReplicaSet]) -> ReplicaSet | None:
    """Return the ReplicaSet with the Deployment's template, or None. If there are several, return the oldest, because
    every controller has to choose the same ReplicaSet."""
    wanted = template.canonical(deployment.spec.template)
    return next((each for each in by_age(replica_sets) if template.canonical(each.spec.template) == wanted), None)


def others(replica_sets: Iterable[ReplicaSet], new: ReplicaSet | None) -> list[ReplicaSet]:
    """Return the old ReplicaSets from the oldest to the newest, including ReplicaSets without pods."""
    uid = None if new is None else new.metadata.uid
    return [replica_set for replica_set in by_age(replica_sets) if replica_set.metadata.uid != uid]


def active(replica_sets: Sequence[ReplicaSet]) -> list[ReplicaSet]:
    """Return the ReplicaSets whose size is above 0."""
    return [replica_set for replica_set in replica_sets if replica_set.spec.replicas > 0]


def copied_annotations(source: Mapping[str, str]) -> dict[str, str]:
    """Return the annotations that are copied between a Deployment and its ReplicaSets."""
    return {key: value for key, value in source.items() if key not in SKIPPED}


def annotations_for_new(
    deployment: Deployment, current: Mapping[str, str], revision: int, *, exists: bool, limit: int = MAX_HISTORY
) -> dict[str, str]:
    """Return all annotations that the new ReplicaSet has to have. `current` are its present annotations.

    A revision is never lowered. If a ReplicaSet already has a revision and now gets a higher one, the Deployment was
    rolled back to this ReplicaSet. The former revision is then appended to its history annotation, whose oldest entries
    are dropped at `limit` characters. Annotations that the Deployment no longer has are kept. If the present revision
    is not an integer, revision and history are left unchanged.
    """
    wanted = {**current, **copied_annotations(deployment.metadata.annotations)}
    before = current.get(REVISION)
    number = 0 if before is None else integer(before)
    if number is None or number >= revision:
        return wanted
    wanted[REVISION] = str(revision)
    if exists and before is not None and (history := _appended(current.get(REVISION_HISTORY), before, limit)):
        wanted[REVISION_HISTORY] = history
    return wanted


def _appended(history: str | None, revision: str, limit: int) -> str | None:
    """Return the history with one more revision, in at most `limit` characters, or None if the revision alone is too
    long. Like upstream, replace a history that begins with an empty entry."""
    entries = history.split(",") if history and not history.startswith(",") else []
    while entries and len(",".join([*entries, revision])) > limit:
        del entries[0]
    text = ",".join([*entries, revision])
    return text if len(text) <= limit else None


def scale_annotations(desired: int, maximum: int) -> dict[str, str]:
    """Return the annotations of a ReplicaSet that record the size of its Deployment, and the largest total of pods,
    when the ReplicaSet is scaled."""
    return {DESIRED_REPLICAS: str(desired), MAX_REPLICAS: str(maximum)}
