"""Waits until the server serves the kinds that this command has defined."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.errors import ApiError, StatusError
from kubeproxy.kubernetes.resource_builder.manifest_object import Data
from kubeproxy.kubernetes.resource_builder.mapper import Mapper

WAIT_S: Final = 10.0
"""The longest wait, in seconds."""
_POLL_S: Final = 0.1
_GROUP: Final = "apiextensions.k8s.io"
_KIND: Final = "CustomResourceDefinition"


class Definitions:
    """Remembers the CustomResourceDefinitions that this command has created, and waits for their kinds."""

    def __init__(self, client: Client, mapper: Mapper) -> None:
        self._client = client
        self._mapper = mapper
        self._created: dict[tuple[str, str], tuple[str, str]] = {}
        """The API version and name of each created definition, by the group and kind that it defines."""

    def created(self, data: Data) -> None:
        """Remember a created object if it is a CustomResourceDefinition."""
        api_version, spec = str(data.get("apiVersion")), data.get("spec")
        if data.get("kind") != _KIND or not api_version.startswith(f"{_GROUP}/") or not isinstance(spec, dict):
            return
        names = spec.get("names")
        kind = names.get("kind") if isinstance(names, dict) else None
        self._created[str(spec.get("group")), str(kind)] = api_version, str(data["metadata"].get("name"))

    async def wait(self, group: str, kind: str) -> bool:
        """Wait at most `WAIT_S` until the server serves a kind. Return False at once if this command has not defined
        the kind, and otherwise True."""
        defined = self._created.get((group, kind))
        if defined is None:
            return False
        api_version, name = defined
        path = f"/apis/{api_version}/customresourcedefinitions/{name}"
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            if await self._is_established(path):
                # Discovery lists the resource shortly after the condition Established is set.
                await self._mapper.refresh(force=True)
                index = await self._mapper.index()
                if any(resource.group == group and resource.kind == kind for resource in index.catalog.resources):
                    return True
            await asyncio.sleep(_POLL_S)
        return True

    async def _is_established(self, path: str) -> bool:
        try:
            data: Any = (await self._client.get(path)).decoded()
        except (StatusError, ApiError):
            return False
        status = data.get("status") if isinstance(data, dict) else None
        conditions = status.get("conditions") if isinstance(status, dict) else None
        return any(
            isinstance(condition, dict) and condition.get("type") == "Established" and condition.get("status") == "True"
            for condition in conditions or ()
        )
