"""Hands out what a query finds, one object at a time.

From paths: documents are read, flattened, validated, mapped and handed out before the next one is read, so that a
stream of any length takes the memory of its longest document. A broken document is an error of its own; what follows
is read. From the server: by types and names, or by selectors, page by page.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec

from kubeproxy.kubernetes.client.command_client import RestClient
from kubeproxy.kubernetes.client.decode import EventType, parse_event
from kubeproxy.kubernetes.client.errors import Garbage
from kubeproxy.kubernetes.client.status import StatusError
from kubeproxy.kubernetes.resource_builder import decode
from kubeproxy.kubernetes.resource_builder.discovery import ApiResource
from kubeproxy.kubernetes.resource_builder.errors import (
    Errors,
    NoMatchError,
    ObjectError,
    Position,
    WrongNamespaceError,
)
from kubeproxy.kubernetes.resource_builder.file_arguments import Source
from kubeproxy.kubernetes.resource_builder.manifest_object import ResourceObject
from kubeproxy.kubernetes.resource_builder.mapper import Mapper
from kubeproxy.kubernetes.resource_builder.stream import Document, Splitter
from kubeproxy.kubernetes.selector import LabelSelector
from kubeproxy.model.errors import ClusterError, ConfigError

PAGE: Final = 500
"""Objects asked for at once (kubectl --chunk-size: 500)."""
WATCH_S: Final = 300
"""Seconds after which the server ends a watch."""
WATCH_MARGIN_S: Final = 15.0
"""Silence beyond that, in seconds, after which a watch counts as dead."""
_ONE_WATCH: Final = "watch is only supported on individual resources and resource collections"
CRD_HINT: Final = "ensure CRDs are installed first"

Found = ResourceObject | ConfigError | ClusterError
"""An object, or why there is none."""
Visitor = Callable[[ResourceObject], Awaitable[None]]
AwaitKind = Callable[[str, str], Awaitable[bool]]
"""Called with the group and the kind of an object that the server does not serve; whether it may do now."""


class Validate(Protocol):
    """A check of an object before it is handed out; raises InvalidError."""

    async def __call__(self, found: ResourceObject, duplicates: Sequence[str]) -> None:
        """`duplicates`: keys that its document has twice."""


@dataclass(slots=True)
class Query:
    """What was asked for."""

    paths: list[str] = field(default_factory=list)
    recursive: bool = False
    types: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    tuples: list[tuple[str, str]] = field(default_factory=list)
    selector: str = ""
    field_selector: str = ""
    select_all: bool = False
    namespace: str = ""
    default_namespace: bool = False
    require_namespace: bool = False
    all_namespaces: bool = False
    flatten: bool = False
    latest: bool = False
    require_object: bool = False
    single_type: bool = False
    continue_on_error: bool = False
    local: bool = False


class Result:
    """Hands out what a query finds."""

    def __init__(
        self,
        query: Query,
        sources: Sequence[Source],
        selector: LabelSelector,
        client: RestClient | None,
        mapper: Mapper | None,
        validate: Validate | None,
        await_kind: AwaitKind | None,
    ) -> None:
        self._query = query
        self._sources = sources
        self._selector = selector
        self._client = client
        self._mapper = mapper
        self._validate = validate
        self._await_kind = await_kind

    async def visit(self, visitor: Visitor) -> int:
        """Call the visitor with every object; how many it took. Without `continue_on_error` the first error is raised;
        with it one error is raised bare, several as `Errors`, after the last object."""
        errors: list[Exception] = []
        count = 0
        async for found in self.stream():
            try:
                if not isinstance(found, ResourceObject):
                    raise found
                await visitor(found)
                count += 1
            except (ConfigError, ClusterError) as error:
                if not self._query.continue_on_error:
                    raise
                errors.append(error)
        if errors:
            raise errors[0] if len(errors) == 1 else Errors(errors)
        return count

    async def objects(self) -> list[ResourceObject]:
        """All of them at once."""
        found: list[ResourceObject] = []

        async def keep(each: ResourceObject) -> None:
            found.append(each)

        await self.visit(keep)
        return found

    async def object(self) -> ResourceObject:
        """The only one; `ConfigError` where there is none, or more than one."""
        found = await self.objects()
        if len(found) != 1:
            raise ConfigError(f"found {len(found)} objects; allowed: exactly one")
        return found[0]

    async def stream(self) -> AsyncIterator[Found]:
        """Objects and errors, as they are met. Raises where nothing more can be had: the server does not answer."""
        inputs = self._from_paths() if self._query.paths else self._from_server()
        seen: ApiResource | None = None
        async for found in inputs:
            if isinstance(found, ResourceObject) and self._query.single_type and found.mapping is not None:
                if seen is not None and seen != found.mapping:
                    raise ConfigError("you may only specify a single resource type")
                seen = found.mapping
            yield found

    async def watch(self, version: str = "") -> AsyncIterator[tuple[EventType, ResourceObject]]:
        """Every change of one resource or of one object, until the server ends the watch.

        `version`: changes after this resourceVersion; without it the watch begins with an addition of each object that
        is there. Objects come from types and names, or from paths. `ConfigError` unless that is exactly one type with
        any names, or one object; `Expired` where the version is too old.
        """
        mapping, names = await self._watched()
        query = {"watch": "true", "timeoutSeconds": str(WATCH_S)}
        query |= {"resourceVersion": version} if version else {}
        query |= {"labelSelector": self._query.selector} if self._query.selector else {}
        fields = [self._query.field_selector, *(f"metadata.name={name}" for name in names)]
        query |= {"fieldSelector": ",".join(filter(None, fields))} if any(fields) else {}
        assert self._client is not None
        namespace = "" if self._query.all_namespaces or not mapping.namespaced else self._query.namespace
        async with self._client.stream(mapping.path(namespace), query, silence_s=WATCH_S + WATCH_MARGIN_S) as lines:
            async for line in lines:
                event = parse_event(line)
                if event.type is not EventType.BOOKMARK:
                    data = _object(msgspec.json.decode(event.object), mapping)
                    yield event.type, ResourceObject(data, Position(""), mapping=mapping)

    async def _watched(self) -> tuple[ApiResource, list[str]]:
        """The resource to be watched, and the name of the only object; no name: all objects."""
        query = self._query
        if query.paths or query.tuples or query.names:
            found = await self.objects()
            if len(found) != 1:
                raise ConfigError(f"{_ONE_WATCH} - found {len(found)} objects")
            query.namespace = found[0].namespace or query.namespace
            return found[0].resource, [found[0].name]
        assert self._mapper is not None
        mappings = await self._mapper.types(query.types)
        if len(mappings) != 1:
            raise ConfigError(f"{_ONE_WATCH} - found {len(mappings)} types")
        return mappings[0], []

    # From paths

    async def _from_paths(self) -> AsyncIterator[Found]:
        async for found in self._read():
            if isinstance(found, tuple):
                yield await self.prepare(*found)
            else:
                yield found

    async def unprepared(self) -> AsyncIterator[tuple[ResourceObject, Sequence[str]] | ObjectError]:
        """Objects from paths, each with the keys that its document has twice, before they are checked and looked up.
        Hand them to `prepare` when their turn has come."""
        async for found in self._read():
            yield found

    async def prepare(self, found: ResourceObject, duplicates: Sequence[str]) -> Found:
        """Check an object, look up its resource, put it into its namespace; or the error of that."""
        try:
            return await self._prepared(found, duplicates)
        except (ObjectError, StatusError) as error:
            return error

    async def _read(self) -> AsyncIterator[tuple[ResourceObject, Sequence[str]] | ObjectError]:
        for source in self._sources:
            async for found in self._documents(source):
                if isinstance(found, ObjectError):
                    yield found
                    continue
                for item, duplicates in decode.objects(found, source.name):
                    if isinstance(item, ObjectError):
                        yield item
                        continue
                    if self._selector.matches(item.labels):
                        yield item, duplicates

    async def _documents(self, source: Source) -> AsyncIterator[Document | ObjectError]:
        splitter = Splitter(source.name)
        try:
            async for data in source.read():
                for document in splitter.feed(data):
                    yield document
            for document in splitter.end():
                yield document
        except ObjectError as error:
            yield error

    async def _prepared(self, found: ResourceObject, duplicates: Sequence[str]) -> ResourceObject:
        if self._validate is not None:
            await self._validate(found, duplicates)
        if self._mapper is not None and not self._query.local:
            found.mapping = await self._mapping(found)
        self._place(found)
        if self._query.latest and found.mapping is not None:
            return await self._fetch(found.mapping, found.namespace, found.name, found.position)
        return found

    async def _mapping(self, found: ResourceObject) -> ApiResource:
        assert self._mapper is not None
        mapping = await self._mapper.kind(found.api_version, found.kind)
        if mapping is None and self._await_kind is not None and await self._await_kind(found.group, found.kind):
            mapping = await self._mapper.kind(found.api_version, found.kind)
            if mapping is None and await self._mapper.refresh(force=True):
                mapping = await self._mapper.kind(found.api_version, found.kind)
        if mapping is None:
            failed = (await self._mapper.index()).catalog.failed
            down = [reason for reason in failed if not found.group or reason.startswith(f"{found.group}/")]
            raise NoMatchError(
                found.kind,
                found.api_version,
                name=found.name,
                namespace=found.namespace,
                position=found.position,
                hint="\n".join([CRD_HINT, *down]),
            )
        return mapping

    def _place(self, found: ResourceObject) -> None:
        """Put an object into the namespace where it belongs."""
        query, metadata = self._query, found.metadata
        if found.mapping is not None and not found.mapping.namespaced:
            metadata.pop("namespace", None)
            return
        if not found.namespace and query.default_namespace and query.namespace:
            metadata["namespace"] = query.namespace
        if query.require_namespace and found.namespace != query.namespace:
            raise WrongNamespaceError(found.namespace, query.namespace, found.position)

    # From the server

    async def _from_server(self) -> AsyncIterator[Found]:
        query = self._query
        assert self._mapper is not None
        assert self._client is not None
        if query.tuples or query.names:
            pairs = query.tuples or [(kind, name) for kind in query.types for name in query.names]
            for kind, name in pairs:
                for mapping in await self._mapper.types([kind]):
                    try:
                        yield await self._named(mapping, name)
                    except StatusError as error:
                        yield error
            return
        mappings = await self._mapper.types(query.types)
        if query.single_type and len(mappings) > 1:
            raise ConfigError("you may only specify a single resource type")
        for mapping in mappings:
            try:
                async for found in self._listed(mapping):
                    yield found
            except StatusError as error:
                yield error

    async def _named(self, mapping: ApiResource, name: str) -> ResourceObject:
        namespace = self._query.namespace if mapping.namespaced else ""
        if self._query.require_object or self._query.latest:
            return await self._fetch(mapping, namespace, name, Position(""))
        metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
        data = {"apiVersion": mapping.group_version, "kind": mapping.kind, "metadata": metadata}
        return ResourceObject(data, Position(""), mapping=mapping)

    async def _fetch(self, mapping: ApiResource, namespace: str, name: str, position: Position) -> ResourceObject:
        assert self._client is not None
        answer = await self._client.get(mapping.path(namespace, name))
        return ResourceObject(_object(answer.decoded(), mapping), position, mapping=mapping)

    async def _listed(self, mapping: ApiResource) -> AsyncIterator[ResourceObject]:
        """The objects of a type, page by page."""
        assert self._client is not None
        query = {"limit": str(PAGE)}
        if self._query.selector:
            query["labelSelector"] = self._query.selector
        if self._query.field_selector:
            query["fieldSelector"] = self._query.field_selector
        namespace = "" if self._query.all_namespaces else self._query.namespace
        while True:
            page = (await self._client.get(mapping.path(namespace), query)).decoded()
            items = page.get("items") if isinstance(page, dict) else None
            if not isinstance(items, list | None):
                raise Garbage(f"a list of {mapping.name} without items", cause="garbage")
            for item in items or ():
                yield ResourceObject(_object(item, mapping), Position(""), mapping=mapping)
            token = (page.get("metadata") or {}).get("continue")
            if not token or token == query.get("continue"):
                return
            query["continue"] = str(token)


def _object(data: Any, mapping: ApiResource) -> dict[str, Any]:
    if not isinstance(data, dict) or not isinstance(data.get("metadata"), dict):
        raise Garbage(f"the server answered what is no {mapping.kind}", cause="garbage")
    return {"apiVersion": mapping.group_version, "kind": mapping.kind} | data
