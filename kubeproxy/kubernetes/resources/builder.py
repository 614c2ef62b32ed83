"""A query for objects, put together step by step and then visited one object at a time.

From paths: documents are read, flattened, validated, mapped and handed out before the next one is read, so that a
stream of any length takes the memory of its longest document. A broken document is an error of its own; what follows
is read. From the server: by types and names, selectors, one namespace or all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, Self

from kubeproxy.kubernetes.client.errors import Garbage
from kubeproxy.kubernetes.client.rest import RestClient
from kubeproxy.kubernetes.client.status import StatusError
from kubeproxy.kubernetes.resources import decode
from kubeproxy.kubernetes.resources.discovery import ApiResource
from kubeproxy.kubernetes.resources.errors import (
    NoMatchError,
    ObjectError,
    Position,
    WrongNamespaceError,
    quoted,
)
from kubeproxy.kubernetes.resources.mapper import Mapper
from kubeproxy.kubernetes.resources.paths import BytesSource, Source, expand
from kubeproxy.kubernetes.resources.resource import ResourceObject
from kubeproxy.kubernetes.resources.selector import LabelSelector, parse_selector
from kubeproxy.kubernetes.resources.stream import Document, Splitter
from kubeproxy.model.errors import ClusterError, ConfigError

PAGE: Final = 500
"""Objects asked for at once (kubectl --chunk-size: 500)."""
CRD_HINT: Final = "ensure CRDs are installed first"

Found = ResourceObject | ConfigError | ClusterError
"""An object, or why there is none."""
Visitor = Callable[[ResourceObject], Awaitable[None]]


class Validate(Protocol):
    """A check of an object before it is handed out; raises InvalidError."""

    async def __call__(self, found: ResourceObject, duplicates: Sequence[str]) -> None:
        """`duplicates`: keys that its document has twice."""


class Errors(ConfigError):
    """Several things went wrong, each kept."""

    def __init__(self, errors: Sequence[Exception]) -> None:
        super().__init__(*(str(error) for error in errors))
        self.errors = tuple(errors)


@dataclass(slots=True)
class _Query:
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


class Builder:
    """Collects what is asked for; every step returns the builder. `done` ends it."""

    def __init__(self, client: RestClient | None, mapper: Mapper | None) -> None:
        """Without a client and a mapper only paths can be read, and objects are not mapped."""
        self._client = client
        self._mapper = mapper
        self._query = _Query()
        self._errors: list[ConfigError] = []
        self._validate: Validate | None = None
        self._await_kind: Callable[[str, str], Awaitable[bool]] | None = None

    def filenames(self, paths: Sequence[str], *, recursive: bool = False) -> Self:
        """Files, directories, patterns, http(s) addresses, ``-`` for standard input; commas separate."""
        self._query.paths += paths
        self._query.recursive = self._query.recursive or recursive
        return self

    def types(self, *types: str) -> Self:
        """Resource types; each may be several, separated by commas, or a category."""
        self._query.types += [part for text in types for part in text.split(",") if part]
        return self

    def names(self, *names: str) -> Self:
        """Names of objects, of every type."""
        self._query.names += names
        return self

    def types_or_names(self, *arguments: str, allow_empty_selector: bool = False) -> Self:
        """Arguments of a command: ``TYPE[,TYPE] [NAME...]`` or ``TYPE/NAME ...``."""
        if any("/" in argument for argument in arguments):
            self._tuples(arguments)
        elif arguments:
            self.types(arguments[0]).names(*arguments[1:])
            if len(arguments) == 1 and allow_empty_selector:
                self._query.select_all = True
        return self

    def _tuples(self, arguments: Sequence[str]) -> None:
        for argument in arguments:
            kind, slash, name = argument.partition("/")
            if "/" in name:
                self._errors.append(ConfigError("arguments in resource/name form may not have more than one slash"))
            elif not slash:
                self._errors.append(
                    ConfigError(
                        "there is no need to specify a resource type as a separate argument when passing arguments in"
                        f" resource/name form: found {quoted(argument)} beside others with a slash"
                    )
                )
            elif not kind or not name:
                self._errors.append(
                    ConfigError(
                        "arguments in resource/name form must have a single resource and name:"
                        f" found {quoted(argument)}"
                    )
                )
            else:
                self._query.tuples += [(part, name) for part in kind.split(",") if part]

    def label_selector(self, text: str) -> Self:
        """Only objects with such labels: asked of the server for types, applied here to what is read from paths."""
        self._query.selector = text.strip()
        return self

    def field_selector(self, text: str) -> Self:
        """Only objects with such fields; for types, by the server."""
        self._query.field_selector = text.strip()
        return self

    def select_all(self) -> Self:
        """All objects of the types."""
        self._query.select_all = True
        return self

    def namespace(self, name: str, *, enforce: bool = False, default: bool = True) -> Self:
        """The namespace of objects without one (`default`); with `enforce`, objects of another one are errors."""
        self._query.namespace = name
        self._query.default_namespace = default
        self._query.require_namespace = enforce
        return self

    def all_namespaces(self) -> Self:
        """Objects of all namespaces."""
        self._query.all_namespaces = True
        return self

    def flatten(self) -> Self:
        """Lists are handed out item by item. Those from paths always are."""
        self._query.flatten = True
        return self

    def latest(self) -> Self:
        """What paths name is asked of the server before it is handed out."""
        self._query.latest = True
        return self

    def require_object(self) -> Self:
        """What is named is asked of the server: it has to be there."""
        self._query.require_object = True
        return self

    def single_type(self) -> Self:
        """More than one resource type is an error."""
        self._query.single_type = True
        return self

    def continue_on_error(self) -> Self:
        """An error of one object keeps no other from being handed out."""
        self._query.continue_on_error = True
        return self

    def local(self) -> Self:
        """Ask no server: objects are not mapped."""
        self._query.local = True
        return self

    def validate(self, check: Validate) -> Self:
        """Check every object from paths."""
        self._validate = check
        return self

    def await_kind(self, wait: Callable[[str, str], Awaitable[bool]]) -> Self:
        """`wait` is called with group and kind of an object that the server does not serve; whether it may do now."""
        self._await_kind = wait
        return self

    def again(self, data: bytes, name: str) -> Result:
        """The same query of other bytes, called `name` in messages."""
        return self._result([BytesSource(name, data)], parse_selector(self._query.selector))

    def done(self) -> Result:
        """The query. `Errors` with everything that is wrong with it, before anything is visited."""
        query = self._query
        errors = list(self._errors)
        sources: list[Source] = []
        selector = LabelSelector()
        if query.selector:
            try:
                selector = parse_selector(query.selector)
            except ConfigError as error:
                errors.append(error)
        if query.paths:
            sources, wrong = expand(query.paths, recursive=query.recursive)
            errors += wrong
        errors += [ConfigError(text) for text in _conflicts(query)]
        if errors:
            raise errors[0] if len(errors) == 1 else Errors(errors)
        return self._result(sources, selector)

    def _result(self, sources: Sequence[Source], selector: LabelSelector) -> Result:
        query = replace(self._query)
        return Result(query, sources, selector, self._client, self._mapper, self._validate, self._await_kind)


def _conflicts(query: _Query) -> list[str]:
    found = []
    kinds = bool(query.types or query.tuples)
    selecting = bool(query.selector or query.field_selector or query.select_all)
    if query.paths and kinds:
        found.append("when paths, URLs, or stdin is provided as input, you may not specify resource arguments as well")
    if query.paths and query.names:
        found.append("name cannot be provided when a path is specified")
    if (query.selector or query.field_selector) and (query.names or query.tuples):
        found.append("name cannot be provided when a selector is specified")
    if (query.selector or query.field_selector) and not kinds and not query.paths:
        found.append("at least one resource must be specified to use a selector")
    if query.names and not query.types:
        found.append("you must provide one or more resources by argument or filename")
    if query.types and not query.names and not selecting and not query.paths:
        found.append("resource(s) were provided, but no name was specified")
    if query.all_namespaces and (query.names or query.tuples):
        found.append("a resource cannot be retrieved by name across all namespaces")
    if not query.paths and not kinds and not query.names and not selecting:
        found.append(
            "You must provide one or more resources by argument or filename.\n"
            "Example resource specifications include:\n"
            "   '-f rsrc.yaml'\n   '--filename=rsrc.json'\n   '<resource> <name>'\n   '<resource>'"
        )
    return found


class Result:
    """Hands out what a query finds."""

    def __init__(
        self,
        query: _Query,
        sources: Sequence[Source],
        selector: LabelSelector,
        client: RestClient | None,
        mapper: Mapper | None,
        validate: Validate | None,
        await_kind: Callable[[str, str], Awaitable[bool]] | None,
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
