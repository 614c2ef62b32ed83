"""Reads objects, one after the other, from the sources of a command's ``-f`` arguments.

Each document is read, decoded, checked, mapped and yielded before the next document is read. So a source of any length
uses only the memory of its longest document, and an invalid document does not affect later documents.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from kubeproxy.kubernetes.client.errors import StatusError
from kubeproxy.kubernetes.resource_builder import decode
from kubeproxy.kubernetes.resource_builder.discovery import ApiResource
from kubeproxy.kubernetes.resource_builder.errors import Errors, NoMatchError, ObjectError, WrongNamespaceError
from kubeproxy.kubernetes.resource_builder.file_arguments import Source, expand
from kubeproxy.kubernetes.resource_builder.manifest_object import ResourceObject
from kubeproxy.kubernetes.resource_builder.mapper import Mapper
from kubeproxy.kubernetes.resource_builder.selector_syntax import parse_selector
from kubeproxy.kubernetes.resource_builder.stream import Document, Splitter
from kubeproxy.kubernetes.selector import LabelSelector
from kubeproxy.model.errors import ClusterError, ConfigError

CRD_HINT: Final = "ensure CRDs are installed first"

Found = ResourceObject | ConfigError | ClusterError
"""An object, or the error of an object that cannot be used."""
AwaitKind = Callable[[str, str], Awaitable[bool]]
"""A function that waits for a kind, given by group and name, that the server does not serve yet. It returns whether the
server may serve the kind now."""
Validate = Callable[[ResourceObject, Sequence[str]], Awaitable[None]]
"""A function that raises InvalidError if the object must not be used. It also gets the keys that the object's
document has twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """The objects that a command line selects."""

    filenames: Sequence[str]
    """The ``-f`` arguments: files, directories, patterns, URLs, or ``-`` for standard input. An argument may have
    several, separated by commas."""
    namespace: str
    """The namespace for objects without a namespace."""
    recursive: bool = False
    namespace_enforced: bool = False
    """Whether an object with another namespace is an error."""
    selector: str = ""
    """A label selector. Objects that do not match are left out."""


class Builder:
    """Reads the objects of a query."""

    def __init__(
        self, query: Query, mapper: Mapper, *, validate: Validate, await_kind: AwaitKind | None = None
    ) -> None:
        """Find the sources of the query. Raise ConfigError, or `Errors` with several, if the query is invalid. No
        source is read yet."""
        self._query = query
        self._mapper = mapper
        self._validate = validate
        self._await_kind = await_kind
        errors: list[ConfigError] = []
        self._selector = LabelSelector()
        try:
            self._selector = parse_selector(query.selector)
        except ConfigError as error:
            errors.append(error)
        self._sources, wrong = expand(query.filenames, recursive=query.recursive)
        errors += wrong
        if errors:
            raise errors[0] if len(errors) == 1 else Errors(errors)

    async def objects(self) -> list[ResourceObject]:
        """Read and return all objects. Raise the first error."""
        objects = []
        async for item in self.stream():
            if not isinstance(item, ResourceObject):
                raise item
            objects.append(item)
        return objects

    async def stream(self, sources: Sequence[Source] = ()) -> AsyncIterator[Found]:
        """Yield objects, and the errors of single objects, in the order of the input. Read `sources` if they are given,
        and otherwise the sources of the query. Raise ApiError if the server does not answer."""
        async for item in self.unprepared(sources):
            yield item if isinstance(item, ObjectError) else await self.prepare(*item)

    async def unprepared(
        self, sources: Sequence[Source] = ()
    ) -> AsyncIterator[tuple[ResourceObject, Sequence[str]] | ObjectError]:
        """Yield errors, and objects that are not checked and mapped yet, each with the repeated keys of its document.
        The caller has to pass each object to `prepare`."""
        for source in sources or self._sources:
            async for document in _documents(source):
                if isinstance(document, ObjectError):
                    yield document
                    continue
                for item, duplicates in decode.objects(document, source.name):
                    if isinstance(item, ObjectError):
                        yield item
                    elif self._selector.matches(item.labels):
                        yield item, duplicates

    async def prepare(self, item: ResourceObject, duplicates: Sequence[str]) -> Found:
        """Check an object, find its resource, and set its namespace. Return the object, or the error of these steps."""
        try:
            await self._validate(item, duplicates)
            item.mapping = await self._mapping(item)
            self._place(item)
        except (ObjectError, StatusError) as error:
            return error
        return item

    async def _mapping(self, item: ResourceObject) -> ApiResource:
        mapping = await self._mapper.kind(item.api_version, item.kind)
        if mapping is None and self._await_kind is not None and await self._await_kind(item.group, item.kind):
            mapping = await self._mapper.kind(item.api_version, item.kind)
            if mapping is None and await self._mapper.refresh(force=True):
                mapping = await self._mapper.kind(item.api_version, item.kind)
        if mapping is None:
            failed = (await self._mapper.index()).catalog.failed
            down = [reason for reason in failed if not item.group or reason.startswith(f"{item.group}/")]
            raise NoMatchError(
                item.kind,
                item.api_version,
                name=item.name,
                namespace=item.namespace,
                position=item.position,
                hint="\n".join([CRD_HINT, *down]),
            )
        return mapping

    def _place(self, item: ResourceObject) -> None:
        """Set an object's namespace, or check it. Raise WrongNamespaceError if it must have another one."""
        query = self._query
        if not item.resource.namespaced:
            item.metadata.pop("namespace", None)
            return
        if not item.namespace and query.namespace:
            item.metadata["namespace"] = query.namespace
        if query.namespace_enforced and item.namespace != query.namespace:
            raise WrongNamespaceError(item.namespace, query.namespace, item.position)


async def _documents(source: Source) -> AsyncIterator[Document | ObjectError]:
    splitter = Splitter(source.name)
    try:
        async for data in source.read():
            for document in splitter.feed(data):
                yield document
        for document in splitter.end():
            yield document
    except ObjectError as error:
        yield error
