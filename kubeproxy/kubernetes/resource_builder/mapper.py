"""Finds the API resource of an object by its apiVersion and kind."""

from __future__ import annotations

import asyncio

from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.resource_builder.discovery import ApiResource, Catalog, DiscoveryCache, discover


class Index:
    """A catalog with an index by apiVersion and kind."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self._kinds: dict[tuple[str, str], ApiResource] = {}
        for resource in catalog.resources:
            if "/" not in resource.name:  # Skip subresources, whose names have a slash.
                self._kinds.setdefault((resource.group_version, resource.kind), resource)

    def kind(self, api_version: str, kind: str) -> ApiResource | None:
        """Return the resource with exactly this apiVersion and kind, or None if the server does not serve it."""
        return self._kinds.get((api_version, kind))


class Mapper:
    """Looks up kinds in a server's catalog. It uses the cached catalog, if there is one. If a kind is missing there, it
    reads the catalog from the server, but only once."""

    def __init__(self, client: Client, cache: DiscoveryCache | None) -> None:
        self._client = client
        self._cache = cache
        self._index: Index | None = None
        self._asked = False
        """Whether the catalog has been read from the server."""
        self._lock = asyncio.Lock()

    async def index(self) -> Index:
        """Return the catalog with its index. Raise StatusError, UnreachableError or GarbageError if the server has to
        be asked and does not answer."""
        async with self._lock:
            if self._index is None:
                kept = self._cache.read() if self._cache is not None else None
                self._index = Index(kept) if kept is not None else await self._ask()
            return self._index

    async def _ask(self) -> Index:
        catalog = await discover(self._client)
        if self._cache is not None:
            self._cache.write(catalog)
        self._asked = True
        return Index(catalog)

    async def refresh(self, *, force: bool = False) -> bool:
        """Read the catalog from the server, unless that was already done and `force` is false. Return whether it was
        read."""
        async with self._lock:
            if self._asked and not force:
                return False
            self._index = await self._ask()
            return True

    async def kind(self, api_version: str, kind: str) -> ApiResource | None:
        """Return the resource of a kind, or None if the server does not serve it. Raise like `index`."""
        found = (await self.index()).kind(api_version, kind)
        if found is None and await self.refresh():
            found = (await self.index()).kind(api_version, kind)
        return found
