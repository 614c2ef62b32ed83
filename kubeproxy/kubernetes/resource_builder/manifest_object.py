"""One object of a manifest, with its source and the resource that it belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from kubeproxy.kubernetes.resource_builder.discovery import ApiResource
from kubeproxy.kubernetes.resource_builder.errors import Position

Data = dict[str, Any]
"""An object, decoded from JSON; unknown fields are kept."""


@dataclass(slots=True)
class ResourceObject:
    """An object, where it was read, and its place in the API as soon as that is known."""

    data: Data
    position: Position
    text: bytes = b""
    """The document from which the object was read. It is empty for an item of a list that was read by itself."""
    mapping: ApiResource | None = None

    @property
    def api_version(self) -> str:
        """Return group and version, like ``apps/v1``."""
        return str(self.data.get("apiVersion") or "")

    @property
    def kind(self) -> str:
        """Return the kind, like ``Deployment``."""
        return str(self.data.get("kind") or "")

    @property
    def group(self) -> str:
        """Return the API group. It is empty for the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def metadata(self) -> Data:
        """Return the object's metadata, created if missing."""
        found = self.data.get("metadata")
        if not isinstance(found, dict):
            found = self.data["metadata"] = {}
        return found

    @property
    def name(self) -> str:
        """Return the name. It is empty if the server chooses one."""
        return str(self.metadata.get("name") or "")

    @property
    def generate_name(self) -> str:
        """Return the prefix of the name that the server chooses."""
        return str(self.metadata.get("generateName") or "")

    @property
    def namespace(self) -> str:
        """Return the namespace, or an empty text if there is none, or none yet."""
        return str(self.metadata.get("namespace") or "")

    @property
    def labels(self) -> dict[str, str]:
        """Return the labels."""
        return self.metadata.get("labels") or {}

    @property
    def resource(self) -> ApiResource:
        """Return the resource of an object that has been mapped."""
        assert self.mapping is not None
        return self.mapping

    @property
    def label(self) -> str:
        """Return ``kind.group/name``, as output lines show it."""
        group = f".{self.group}" if self.group else ""
        return f"{self.kind.lower()}{group}/{self.name}"

    def encoded(self) -> bytes:
        """Encode the object as JSON."""
        return msgspec.json.encode(self.data)
