"""The errors of single objects, each with its position: source, document, line and field."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kubeproxy.kubernetes.manifests.lines import rows_of, rows_without_content, steps
from kubeproxy.model.errors import ConfigError


def quoted(text: str) -> str:
    """Quote a text as Go's ``%q`` does, in double quotes."""
    return json.dumps(text, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Position:
    """The position of an object in its source."""

    source: str
    """The path or URL of the source, or ``STDIN``."""
    document: int = 0
    """The document's number, counted from 1 without empty documents, or 0 for the source as a whole."""
    line: int = 0
    """The line in the source, counted from 1, or 0 if it is unknown."""
    item: str = ""
    """The path of the object within a list, such as ``items[3]``, or empty."""

    def of_field(self, text: bytes, path: Sequence[str | int]) -> Position:
        """Return the position of a field of this object. `text` is the object's document.

        Return the object's own position if the field cannot be found.
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
    """Raised for an error of one document or object. Other objects can still be used."""

    def __init__(self, message: str, position: Position) -> None:
        where = str(position)
        head, newline, rest = message.partition("\n")
        super().__init__(f"{head} ({where}){newline}{rest}" if where else message)
        self.position = position


class SourceError(ObjectError):
    """Raised for a source that cannot be read, which is a file, a URL or standard input."""


class UnreadableError(ObjectError):
    """Raised for a document that is neither YAML nor JSON."""

    def __init__(self, reason: str, position: Position) -> None:
        super().__init__(f"error parsing {position.source}: {reason}", position)


class UndecodableError(ObjectError):
    """Raised for a document that is not an object: apiVersion, kind or metadata is missing or has a wrong type."""

    def __init__(self, reason: str, position: Position) -> None:
        super().__init__(f"unable to decode {quoted(position.source)}: {reason}", position)


class InvalidError(ObjectError):
    """Raised for an object with fields that the server does not know, or with values of a wrong type."""

    def __init__(self, reason: str, position: Position) -> None:
        super().__init__(
            f"error validating {quoted(position.source)}: error validating data: {reason};"
            " if you choose to ignore these errors, turn validation off with --validate=false",
            position,
        )


class NoMatchError(ObjectError):
    """Raised for an object of a kind that the server does not serve."""

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
    """Raised for an object whose namespace differs from the one that ``--namespace`` demands."""

    def __init__(self, found: str, wanted: str, position: Position) -> None:
        super().__init__(
            f"the namespace from the provided object {quoted(found)} does not match the namespace {quoted(wanted)}."
            f" You must pass '--namespace={found}' to perform this operation.",
            position,
        )


class Errors(ConfigError):
    """Raised for several errors at once."""

    def __init__(self, errors: Sequence[Exception]) -> None:
        super().__init__(*(str(error) for error in errors))
        self.errors = tuple(errors)
