"""The schema as a flat table, read off its types: path in the file -> field.

A path is written as in messages, ``iptables.syncPeriod``; a field is a leaf, whose value may be a list or a map. What
is between the root and the leaves, the groups, carries no values of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from msgspec import NODEFAULT, Struct, inspect

from kubeproxy.config.field_info import Effect
from kubeproxy.config.schema import Configuration

_S = TypeVar("_S", bound=Struct)


@dataclass(frozen=True, slots=True)
class Field:
    """One setting."""

    path: str
    attributes: tuple[str, ...]
    """The way from the root to the value in Python."""
    type: inspect.Type
    default: Any
    text: str
    """What it is for."""
    effect: Effect
    flag: str
    """Its flag without dashes; empty: none."""
    zero_is_default: bool

    @property
    def ours(self) -> bool:
        """Whether it is a setting that kube-proxy does not have."""
        return self.path.startswith("kubeproxy.")


@cache
def fields() -> Mapping[str, Field]:
    """Every field, in the order of the schema."""
    return {found.path: found for found in _walk(Configuration, "", ())}


def plain(kind: inspect.Type) -> inspect.Type:
    """The type itself, without what is said of it."""
    return plain(kind.type) if isinstance(kind, inspect.Metadata) else kind


def _walk(group: type[Struct], prefix: str, attributes: tuple[str, ...]) -> Iterator[Field]:
    for name, member in members(group).items():
        kind = plain(member.type)
        path, way = f"{prefix}{name}", (*attributes, member.name)
        if isinstance(kind, inspect.StructType):
            yield from _walk(kind.cls, f"{path}.", way)
        elif isinstance(member.type, inspect.Metadata) and (about := member.type.extra):
            yield Field(
                path=path,
                attributes=way,
                type=kind,
                default=member.default_factory() if member.default is NODEFAULT else member.default,
                text=(member.type.extra_json_schema or {})["description"],
                effect=about["effect"],
                flag=about["flag"],
                zero_is_default=about["zero_is_default"],
            )


@cache
def members(group: type[Struct]) -> Mapping[str, inspect.Field]:
    """A group's members by their names in the file."""
    described = inspect.type_info(group)
    assert isinstance(described, inspect.StructType)
    return {member.encode_name: member for member in described.fields}


def flatten(configuration: Configuration) -> dict[str, Any]:
    """Every field's value by its path."""
    values = {}
    for path, field in fields().items():
        value: Any = configuration
        for attribute in field.attributes:
            value = getattr(value, attribute)
        values[path] = value
    return values


def build(settings: Mapping[str, Any]) -> Configuration:
    """The configuration in which the fields named have these values and all others their defaults."""
    tree: dict[str, Any] = {}
    for path, value in settings.items():
        *groups, leaf = fields()[path].attributes
        branch = tree
        for group in groups:
            branch = branch.setdefault(group, {})
        branch[leaf] = value
    return _grow(Configuration, tree)


def _grow(group: type[_S], tree: Mapping[str, Any]) -> _S:
    grown = {}
    for member in members(group).values():
        if member.name in tree:
            kind = plain(member.type)
            branch = tree[member.name]
            grown[member.name] = _grow(kind.cls, branch) if isinstance(kind, inspect.StructType) else branch
    return group(**grown)
