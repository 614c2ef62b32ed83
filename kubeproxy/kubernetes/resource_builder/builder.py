"""A query for objects, put together step by step; `result` visits what it finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from kubeproxy.kubernetes.client.command_client import RestClient
from kubeproxy.kubernetes.resource_builder.errors import Errors, quoted
from kubeproxy.kubernetes.resource_builder.file_arguments import BytesSource, Source, expand
from kubeproxy.kubernetes.resource_builder.mapper import Mapper
from kubeproxy.kubernetes.resource_builder.result import AwaitKind, Query, Result, Validate
from kubeproxy.kubernetes.resource_builder.selector_syntax import parse_selector
from kubeproxy.kubernetes.selector import LabelSelector
from kubeproxy.model.errors import ConfigError


class Builder:
    """Collects what is asked for; every step returns the builder. `done` ends it."""

    def __init__(self, client: RestClient | None, mapper: Mapper | None) -> None:
        """Without a client and a mapper only paths can be read, and objects are not mapped."""
        self._client = client
        self._mapper = mapper
        self._query = Query()
        self._errors: list[ConfigError] = []
        self._validate: Validate | None = None
        self._await_kind: AwaitKind | None = None

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

    def await_kind(self, wait: AwaitKind) -> Self:
        """Call `wait` with group and kind of an object that the server does not serve.

        It returns whether the server may serve it now.
        """
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


def _conflicts(query: Query) -> list[str]:
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
