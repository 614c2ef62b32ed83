"""An object of a manifest, with its position and its API resource."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from kubeproxy.kubernetes.resource_builder.discovery import ApiResource
from kubeproxy.kubernetes.resource_builder.errors import Position

Data = dict[str, Any]
"""An object as JSON values, with all its fields."""


@dataclass(slots=True)
class ResourceObject:
    """An object with the position from which it was read, and its API resource after it has been mapped."""

    data: Data
    position: Position
    text: bytes = b""
    """The text of the object's document, or empty for an item of a list that was parsed by itself."""
    mapping: ApiResource | None = None

    @property
    def api_version(self) -> str:
        """Return group and version, such as ``apps/v1``."""
        return str(self.data.get("apiVersion") or "")

    @property
    def kind(self) -> str:
        """Return the kind, such as ``Deployment``."""
        return str(self.data.get("kind") or "")

    @property
    def group(self) -> str:
        """Return the API group, or an empty text for the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def metadata(self) -> Data:
        """Return the object's metadata. If it is missing, add it."""
        found = self.data.get("metadata")
        if not isinstance(found, dict):
            found = self.data["metadata"] = {}
        return found

    @property
    def name(self) -> str:
        """Return the name, or an empty text if the server generates one."""
        return str(self.metadata.get("name") or "")

    @property
    def generate_name(self) -> str:
        """Return the prefix of the name that the server generates."""
        return str(self.metadata.get("generateName") or "")

    @property
    def namespace(self) -> str:
        """Return the namespace, or an empty text if the object has none."""
        return str(self.metadata.get("namespace") or "")

    @property
    def labels(self) -> dict[str, str]:
        """Return the object's labels."""
        return self.metadata.get("labels") or {}

    @property
    def resource(self) -> ApiResource:
        """Return the API resource. The object must have been mapped."""
        assert self.mapping is not None
        return self.mapping

    @property
    def label(self) -> str:
        """Return ``kind.group/name`` for output lines, as kubectl prints it."""
        group = f".{self.group}" if self.group else ""
        return f"{self.kind.lower()}{group}/{self.name}"

    def encoded(self) -> bytes:
        """Encode the object as JSON."""
        return msgspec.json.encode(self.data)
