"""Finds a resource by what a person or a document calls it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from kubeproxy.kubernetes.client.command_client import RestClient
from kubeproxy.kubernetes.resource_builder.discovery import ApiResource, Catalog, DiscoveryCache, discover
from kubeproxy.kubernetes.resource_builder.errors import quoted
from kubeproxy.model.errors import ConfigError


class Index:
    """A catalog, arranged for look-ups. Pure."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self._kinds: dict[tuple[str, str], ApiResource] = {}
        self._names: dict[str, list[ApiResource]] = {}
        self._by_kind: dict[str, list[ApiResource]] = {}
        self._short: dict[str, list[ApiResource]] = {}
        self._categories: dict[str, list[ApiResource]] = {}
        for resource in catalog.resources:
            if "/" in resource.name:
                continue
            self._kinds.setdefault((resource.group_version, resource.kind), resource)
            for name in {resource.name.lower(), resource.singular.lower()}:
                self._names.setdefault(name, []).append(resource)
            for name in resource.short_names:
                self._short.setdefault(name.lower(), []).append(resource)
            self._by_kind.setdefault(resource.kind.lower(), []).append(resource)
            for name in resource.categories:
                self._categories.setdefault(name.lower(), []).append(resource)

    def kind(self, api_version: str, kind: str) -> ApiResource | None:
        """What a document names: exactly this version and kind."""
        return self._kinds.get((api_version, kind))

    def named(self, text: str) -> ApiResource | None:
        """What an argument names: ``RESOURCE[.VERSION][.GROUP]``, by its plural, singular or short name or its kind. Of
        several the first counts: the core group, then the server's order."""
        text = text.lower()
        name, _, rest = text.partition(".")
        for table in (self._names, self._short, self._by_kind):
            found = table.get(name, [])
            version, _, group = rest.partition(".")
            for resource in found:
                if rest and resource.version.lower() == version and resource.group.lower() == group:
                    return resource
            for resource in found:
                if not rest or resource.group.lower() == rest:
                    return resource
            if rest:
                for resource in found:
                    if not resource.group and resource.version.lower() == rest:
                        return resource
        return None

    def category(self, text: str) -> list[ApiResource]:
        """The resources of a category like ``all``, each in one version."""
        found: dict[tuple[str, str], ApiResource] = {}
        for resource in self._categories.get(text.lower(), ()):
            found.setdefault((resource.group, resource.name), resource)
        return list(found.values())


class Mapper:
    """Look-ups by a server's discovery: on disk first; where something is missing there, the server is asked once."""

    def __init__(self, client: RestClient, cache: DiscoveryCache | None) -> None:
        self._client = client
        self._cache = cache
        self._index: Index | None = None
        self._asked = False
        """The index comes from the server, during this run."""
        self._lock = asyncio.Lock()

    async def index(self) -> Index:
        """What is known. Raises StatusError, Unreachable, Garbage where the server does not answer."""
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
        """Ask the server unless that has been done; whether anything may be new."""
        async with self._lock:
            if self._asked and not force:
                return False
            self._index = await self._ask()
            return True

    async def kind(self, api_version: str, kind: str) -> ApiResource | None:
        """The resource of a document's kind; None: it is not served."""
        found = (await self.index()).kind(api_version, kind)
        if found is None and await self.refresh():
            found = (await self.index()).kind(api_version, kind)
        return found

    async def types(self, names: Iterable[str]) -> list[ApiResource]:
        """The resources that arguments name, categories resolved. `ConfigError` for one that is not there."""
        found: list[ApiResource] = []
        for name in names:
            index = await self.index()
            resources = index.category(name) or list(filter(None, [index.named(name)]))
            if not resources and await self.refresh():
                index = await self.index()
                resources = index.category(name) or list(filter(None, [index.named(name)]))
            if not resources:
                raise ConfigError(f"the server doesn't have a resource type {quoted(name)}")
            found += [resource for resource in resources if resource not in found]
        return found
