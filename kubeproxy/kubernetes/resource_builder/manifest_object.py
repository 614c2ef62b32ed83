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
    """An object, where it was read, and its place in the API once that is known."""

    data: Data
    position: Position
    text: bytes = b""
    """The document that it was read from; empty for an item of a list that was read by itself."""
    mapping: ApiResource | None = None

    @property
    def api_version(self) -> str:
        """Group and version, like ``apps/v1``."""
        return str(self.data.get("apiVersion") or "")

    @property
    def kind(self) -> str:
        """The kind, like ``Deployment``."""
        return str(self.data.get("kind") or "")

    @property
    def group(self) -> str:
        """The API group; empty: the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def metadata(self) -> Data:
        """The object's metadata; made if there are none."""
        found = self.data.get("metadata")
        if not isinstance(found, dict):
            found = self.data["metadata"] = {}
        return found

    @property
    def name(self) -> str:
        """Empty where the server is to choose a name."""
        return str(self.metadata.get("name") or "")

    @property
    def generate_name(self) -> str:
        """What the server's choice of a name begins with."""
        return str(self.metadata.get("generateName") or "")

    @property
    def namespace(self) -> str:
        """Empty: none, or not known yet."""
        return str(self.metadata.get("namespace") or "")

    @property
    def labels(self) -> dict[str, str]:
        """The labels; empty where there are none."""
        return self.metadata.get("labels") or {}

    @property
    def resource(self) -> ApiResource:
        """The mapping; an assertion fails where it was not looked up."""
        assert self.mapping is not None
        return self.mapping

    @property
    def label(self) -> str:
        """``kind.group/name`` as output lines have it."""
        group = f".{self.group}" if self.group else ""
        return f"{self.kind.lower()}{group}/{self.name}"

    def encoded(self) -> bytes:
        """The object as JSON."""
        return msgspec.json.encode(self.data)
