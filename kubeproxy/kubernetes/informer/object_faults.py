"""Logs each fault of an object once, and not at every event and list."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from kubeproxy.kubernetes.api_types import SOURCE
from kubeproxy.kubernetes.invalid_field import Fault

log = structlog.get_logger(__name__)


class ObjectFaults:
    """The present faults of the objects of one resource."""

    def __init__(self, resource: str) -> None:
        self._resource = resource
        self._standing: dict[str, tuple[str, ...]] = {}

    def __len__(self) -> int:
        return len(self._standing)

    def note(self, name: str, faults: Iterable[Fault]) -> None:
        """Store an object's faults, which may be none, and log them if they have changed."""
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
        """Remove the faults of objects that are not in a whole list. `names` are the objects in the list."""
        self._standing = {name: texts for name, texts in self._standing.items() if name in names}
