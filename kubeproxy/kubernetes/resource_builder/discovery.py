"""Finds out which resources an API server serves, and caches the result on disk.

A server with aggregated discovery needs two requests. Other servers need one for each group version.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from kubeproxy.kubernetes.client.client import Answer, Client
from kubeproxy.kubernetes.client.errors import ApiError, GarbageError, StatusError

TTL_S: Final = 6 * 3600.0
"""How long a catalog on disk is valid, in seconds, as in kubectl since 1.24."""
FORMAT: Final = 2
"""The version of the file format. Files of other versions are ignored."""
_AGGREGATED: Final = "application/json;g=apidiscovery.k8s.io;v={};as=APIGroupDiscoveryList"
ACCEPT: Final = f"{_AGGREGATED.format('v2')},{_AGGREGATED.format('v2beta1')},application/json"
_AT_ONCE: Final = 8
"""The number of parallel requests."""
_MOST_RESOURCES: Final = 100_000
UNDECODABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class ApiResource(msgspec.Struct, frozen=True):
    """A resource in one group version that a server serves."""

    group: str
    """The API group, or empty for the core group."""
    version: str
    name: str
    """The plural name in paths, such as ``deployments``."""
    kind: str
    namespaced: bool

    @property
    def group_version(self) -> str:
        """Return group and version in the form of ``apiVersion``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str, name: str = "") -> str:
        """Return the path of the collection, or of an object if `name` is given."""
        prefix = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{_segment(namespace)}" if self.namespaced and namespace else ""
        return f"{prefix}{scope}/{self.name}" + (f"/{_segment(name)}" if name else "")


def _segment(text: str) -> str:
    """Percent-encode a name for use in a path."""
    from urllib.parse import quote

    return quote(text, safe="") if text not in (".", "..") else text.replace(".", "%2E")


class Catalog(msgspec.Struct, frozen=True):
    """All resources of a server, in the server's order. The preferred version of a group comes first."""

    resources: tuple[ApiResource, ...] = ()
    failed: tuple[str, ...] = ()
    """A text for each group version that could not be read, with the reason."""
    minor: int = 0
    """The minor version of the server, or 0 if it is unknown."""


# Discovery documents


class _GroupVersionKind(msgspec.Struct):
    group: str | None = None
    version: str | None = None
    kind: str | None = None


class _AggregatedResource(msgspec.Struct, rename="camel"):
    resource: str | None = None
    response_kind: _GroupVersionKind | None = None
    scope: str | None = None


class _AggregatedVersion(msgspec.Struct):
    version: str | None = None
    resources: list[_AggregatedResource] | None = None
    freshness: str | None = None


class _Meta(msgspec.Struct):
    name: str | None = None


class _AggregatedGroup(msgspec.Struct):
    metadata: _Meta | None = None
    versions: list[_AggregatedVersion] | None = None


class _Aggregated(msgspec.Struct):
    kind: str | None = None
    items: list[_AggregatedGroup] | None = None


class _LegacyVersions(msgspec.Struct):
    versions: list[str] | None = None


class _LegacyVersion(msgspec.Struct):
    version: str | None = None


class _LegacyGroup(msgspec.Struct, rename="camel"):
    name: str | None = None
    versions: list[_LegacyVersion] | None = None
    preferred_version: _LegacyVersion | None = None


class _LegacyGroups(msgspec.Struct):
    groups: list[_LegacyGroup] | None = None


class _LegacyResource(msgspec.Struct, rename="camel"):
    name: str | None = None
    namespaced: bool | None = None
    kind: str | None = None
    group: str | None = None
    version: str | None = None


class _LegacyResources(msgspec.Struct):
    resources: list[_LegacyResource] | None = None


def parse_aggregated(body: bytes) -> Catalog:
    """Parse an APIGroupDiscoveryList. Raise GarbageError if the document is not one."""
    try:
        document = msgspec.json.decode(body, type=_Aggregated)
    except UNDECODABLE as error:
        raise GarbageError(f"discovery answered what is none: {error}", cause="garbage") from None
    found: list[ApiResource] = []
    failed: list[str] = []
    for group in document.items or ():
        name = (group.metadata.name if group.metadata else "") or ""
        for version in group.versions or ():
            if version.freshness == "Stale":
                failed.append(f"{name}/{version.version}: the server cannot reach it")
            for resource in version.resources or ():
                kind = (resource.response_kind.kind if resource.response_kind else "") or ""
                namespaced = resource.scope == "Namespaced"
                found += _resource(name, version.version, resource.resource, kind, namespaced=namespaced)
    return Catalog(tuple(found[:_MOST_RESOURCES]), tuple(failed))


def parse_versions(body: bytes) -> list[str]:
    """Parse the versions of the core group from ``/api``. Raise GarbageError if the document has none."""
    try:
        return msgspec.json.decode(body, type=_LegacyVersions).versions or []
    except UNDECODABLE as error:
        raise GarbageError(f"/api answered no list of versions: {error}", cause="garbage") from None


def parse_groups(body: bytes) -> list[tuple[str, str]]:
    """Parse groups and versions from ``/apis``. The preferred version of a group comes first. Raise GarbageError if the
    document is not a list of groups."""
    try:
        groups = msgspec.json.decode(body, type=_LegacyGroups).groups or []
    except UNDECODABLE as error:
        raise GarbageError(f"/apis answered no list of groups: {error}", cause="garbage") from None
    found: list[tuple[str, str]] = []
    for group in groups:
        versions = [each.version for each in group.versions or () if each.version]
        preferred = group.preferred_version.version if group.preferred_version else None
        if preferred in versions:
            versions.remove(preferred)
            versions.insert(0, preferred)
        if group.name and _PART.fullmatch(group.name):
            found += [(group.name, version) for version in versions if _PART.fullmatch(version)]
    return found


def parse_resources(body: bytes, group: str, version: str) -> list[ApiResource]:
    """Parse the resources of a group version. Raise GarbageError if the document is not a list of resources."""
    try:
        resources = msgspec.json.decode(body, type=_LegacyResources).resources or []
    except UNDECODABLE as error:
        raise GarbageError(f"{group}/{version} answered no list of resources: {error}", cause="garbage") from None
    return [
        found
        for resource in resources
        for found in _resource(group, version, resource.name, resource.kind, namespaced=bool(resource.namespaced))
    ]


_PART: Final = re.compile(r"[a-zA-Z0-9]([-a-zA-Z0-9.]{0,251}[a-zA-Z0-9])?")
"""The permitted form of groups, versions and resources. Other texts are not used in paths."""


def _resource(
    group: str, version: str | None, name: str | None, kind: str | None, *, namespaced: bool
) -> Iterator[ApiResource]:
    """Yield the resource, or nothing if it is a subresource or lacks a field."""
    if not version or not name or not kind or not _PART.fullmatch(name) or not _PART.fullmatch(version):
        return
    if group and not _PART.fullmatch(group):
        return
    yield ApiResource(group=group, version=version, name=name, kind=kind, namespaced=namespaced)


# Requests


async def discover(client: Client) -> Catalog:
    """Read the server's catalog. Groups that cannot be read are listed in `Catalog.failed`. Raise StatusError,
    UnreachableError or GarbageError if the server does not answer at all."""
    core, groups, minor = await asyncio.gather(
        client.get("/api", accept=ACCEPT), client.get("/apis", accept=ACCEPT), server_minor(client)
    )
    parts = [await _core(client, core), await _groups(client, groups)]
    return Catalog(
        resources=tuple(resource for part in parts for resource in part.resources),
        failed=tuple(reason for part in parts for reason in part.failed),
        minor=minor,
    )


async def server_minor(client: Client) -> int:
    """Return the server's minor version, or 0 if it is unknown."""
    try:
        answer = (await client.get("/version")).decoded()
    except (StatusError, GarbageError):
        return 0
    digits = re.match(r"\d+", str(answer.get("minor", ""))) if isinstance(answer, dict) else None
    if digits:
        return int(digits[0][:6])
    version = re.match(r"v1\.(\d{1,6})\.", str(answer.get("gitVersion", ""))) if isinstance(answer, dict) else None
    return int(version[1]) if version else 0


def _is_aggregated(answer: Answer) -> bool:
    return "APIGroupDiscoveryList" in answer.content_type


async def _core(client: Client, answer: Answer) -> Catalog:
    if _is_aggregated(answer):
        return parse_aggregated(answer.body)
    return await _each(client, [("", version) for version in parse_versions(answer.body) if _PART.fullmatch(version)])


async def _groups(client: Client, answer: Answer) -> Catalog:
    if _is_aggregated(answer):
        return parse_aggregated(answer.body)
    return await _each(client, parse_groups(answer.body))


async def _each(client: Client, group_versions: list[tuple[str, str]]) -> Catalog:
    free = asyncio.Semaphore(_AT_ONCE)

    async def one(group: str, version: str) -> tuple[list[ApiResource], str]:
        path = f"/apis/{group}/{version}" if group else f"/api/{version}"
        async with free:
            try:
                return parse_resources((await client.get(path)).body, group, version), ""
            except (StatusError, ApiError) as error:
                return [], f"{group}/{version}: {error}"

    answers = await asyncio.gather(*(one(group, version) for group, version in group_versions))
    return Catalog(
        tuple(resource for resources, _ in answers for resource in resources),
        tuple(reason for _, reason in answers if reason),
    )


# Cache on disk


class _Kept(msgspec.Struct):
    format: int
    server: str
    at: float
    catalog: Catalog


class DiscoveryCache:
    """The cached catalog of one server, in the user's cache directory.

    Errors of reading and writing the file are ignored, because it is only a cache.
    """

    def __init__(self, directory: Path, server: str, *, ttl_s: float = TTL_S) -> None:
        self._server = server
        self._ttl_s = ttl_s
        self.path = directory / "discovery" / f"{file_name(server)}.msgpack"

    def read(self) -> Catalog | None:
        """Return the cached catalog, or None if there is none or it is too old."""
        try:
            kept = msgspec.msgpack.decode(self.path.read_bytes(), type=_Kept)
        except (OSError, *UNDECODABLE):
            return None
        fresh = 0 <= time.time() - kept.at < self._ttl_s
        return kept.catalog if fresh and kept.format == FORMAT and kept.server == self._server else None

    def write(self, catalog: Catalog) -> None:
        """Write a catalog to disk, unless it is incomplete."""
        if not catalog.failed:
            write_file(self.path, msgspec.msgpack.encode(_Kept(FORMAT, self._server, time.time(), catalog)))


def file_name(server: str) -> str:
    """Return a file name for a server's URL."""
    readable = re.sub(r"[^A-Za-z0-9.-]+", "_", server.partition("://")[2])[:80]
    return f"{readable}-{hashlib.blake2b(server.encode(), digest_size=6).hexdigest()}"


def write_file(path: Path, data: bytes) -> None:
    """Replace a file atomically. Only its owner can read it.

    Errors are ignored, because the file is only a cache.
    """
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)


def cache_directory(named: str = "") -> Path:
    """Return `named`, or if it is empty the directory ``kubeproxy`` in the user's cache directory."""
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "kubeproxy"
