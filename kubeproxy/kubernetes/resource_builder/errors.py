"""Errors of single objects, each with the source, the document, the line and the field."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kubeproxy.kubernetes.manifests.lines import rows_of, rows_without_content, steps
from kubeproxy.model.errors import ConfigError


def quoted(text: str) -> str:
    """Return a text in double quotes, as Go's ``%q`` prints it."""
    return json.dumps(text, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Position:
    """The place of an object."""

    source: str
    """The path, the web address, or ``STDIN``."""
    document: int = 0
    """The document's number, counted from 1 without empty documents. 0 stands for the source as a whole."""
    line: int = 0
    """The line of the source, counted from 1. It is 0 if it is unknown."""
    item: str = ""
    """The path within a list, like ``items[3]``."""

    def of_field(self, text: bytes, path: Sequence[str | int]) -> Position:
        """Return the position of a field of this object, whose document is `text`.

        It is the object's own position if the field cannot be found.
        """
        if not text or not path:
            return self
        rows = rows_of(text, [*steps(self.item), *path])[1:]
        return replace(self, line=self.line - rows_without_content(text) + rows[-1]) if rows else self

    def __str__(self) -> str:
        parts = []
        if self.document:
            parts.append(f"document {self.document}")
        if self.line:
            parts.append(f"line {self.line}")
        if self.item:
            parts.append(self.item)
        return ", ".join(parts)


class ObjectError(ConfigError):
    """An error of one document or object. The others can still be used."""

    def __init__(self, message: str, position: Position) -> None:
        where = str(position)
        head, newline, rest = message.partition("\n")
        super().__init__(f"{head} ({where}){newline}{rest}" if where else message)
        self.position = position


class SourceError(ObjectError):
    """A source that cannot be read: a file, a web address, standard input."""


class UnreadableError(ObjectError):
    """A document that is neither YAML nor JSON."""

    def __init__(self, reason: str, position: Position) -> None:
        super().__init__(f"error parsing {position.source}: {reason}", position)


class UndecodableError(ObjectError):
    """A document that is not an object: apiVersion, kind or metadata are missing or of a wrong type."""

    def __init__(self, reason: str, position: Position) -> None:
        super().__init__(f"unable to decode {quoted(position.source)}: {reason}", position)


class InvalidError(ObjectError):
    """An object that has fields that the server does not know, or values of a wrong type."""

    def __init__(self, reason: str, position: Position) -> None:
        super().__init__(
            f"error validating {quoted(position.source)}: error validating data: {reason};"
            " if you choose to ignore these errors, turn validation off with --validate=false",
            position,
        )


class NoMatchError(ObjectError):
    """A kind that the server does not serve."""

    def __init__(
        self, kind: str, api_version: str, *, name: str, namespace: str, position: Position, hint: str
    ) -> None:
        what = f"no matches for kind {quoted(kind)} in version {quoted(api_version)}"
        super().__init__(
            f"resource mapping not found for name: {quoted(name)} namespace: {quoted(namespace)}"
            f" from {quoted(position.source)}: {what}\n{hint}",
            position,
        )


class WrongNamespaceError(ObjectError):
    """An object that names another namespace than the one that all objects must have."""

    def __init__(self, found: str, wanted: str, position: Position) -> None:
        super().__init__(
            f"the namespace from the provided object {quoted(found)} does not match the namespace {quoted(wanted)}."
            f" You must pass '--namespace={found}' to perform this operation.",
            position,
        )


class Errors(ConfigError):
    """Several errors, each of which is kept."""

    def __init__(self, errors: Sequence[Exception]) -> None:
        super().__init__(*(str(error) for error in errors))
        self.errors = tuple(errors)
