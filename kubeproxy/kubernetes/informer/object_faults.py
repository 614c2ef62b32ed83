"""Logs the faults of objects once, not at every event and every list."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from kubeproxy.kubernetes.api_types import SOURCE
from kubeproxy.kubernetes.invalid_field import Fault

log = structlog.get_logger(__name__)


class ObjectFaults:
    """The present faults of one resource's objects."""

    def __init__(self, resource: str) -> None:
        self._resource = resource
        self._standing: dict[str, tuple[str, ...]] = {}

    def __len__(self) -> int:
        return len(self._standing)

    def note(self, name: str, faults: Iterable[Fault]) -> None:
        """Keep the object's present faults, which may be none. Log them if they have changed."""
        found = tuple(faults)
        if not found:
            self._standing.pop(name, None)
            return
        texts = tuple(str(fault) for fault in found)
        if self._standing.get(name) != texts:
            self._standing[name] = texts
            write = log.info if all(fault.unsupported for fault in found) else log.warning
            write("parts of object not served", source=SOURCE, resource=self._resource, name=name, faults=texts)

    def keep(self, names: set[str]) -> None:
        """Drop the faults of objects that a full list does not name."""
        self._standing = {name: texts for name, texts in self._standing.items() if name in names}
