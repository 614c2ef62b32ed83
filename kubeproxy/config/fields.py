"""The schema as a flat table of fields by their path in the file.

Paths have the form ``iptables.syncPeriod``. Fields have a value, which may be a list or a map. Groups of fields are not
in the table.
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
    """The Python attributes from the configuration to the value."""
    type: inspect.Type
    default: Any
    text: str
    """The meaning of the setting."""
    effect: Effect
    flag: str
    """The setting's flag without dashes, or empty if it has no flag."""
    zero_is_default: bool

    @property
    def ours(self) -> bool:
        """Return whether the setting is the project's own, which kube-proxy does not have."""
        return self.path.startswith("kubeproxy.")


@cache
def fields() -> Mapping[str, Field]:
    """Return all fields by path, in the order of the schema."""
    return {field.path: field for field in _walk(Configuration, "", ())}


def plain(kind: inspect.Type) -> inspect.Type:
    """Return a type without its annotations."""
    return plain(kind.type) if isinstance(kind, inspect.Metadata) else kind


def _walk(group: type[Struct], prefix: str, attributes: tuple[str, ...]) -> Iterator[Field]:
    for name, member in members(group).items():
        kind = plain(member.type)
        path, below = f"{prefix}{name}", (*attributes, member.name)
        if isinstance(kind, inspect.StructType):
            yield from _walk(kind.cls, f"{path}.", below)
        elif isinstance(member.type, inspect.Metadata) and (about := member.type.extra):
            yield Field(
                path=path,
                attributes=below,
                type=kind,
                default=member.default_factory() if member.default is NODEFAULT else member.default,
                text=(member.type.extra_json_schema or {})["description"],
                effect=about["effect"],
                flag=about["flag"],
                zero_is_default=about["zero_is_default"],
            )


@cache
def members(group: type[Struct]) -> Mapping[str, inspect.Field]:
    """Return the fields and groups in a group, by their names in the file."""
    described = inspect.type_info(group)
    assert isinstance(described, inspect.StructType)
    return {member.encode_name: member for member in described.fields}


def flatten(configuration: Configuration) -> dict[str, Any]:
    """Return the value of each field by path."""
    values = {}
    for path, field in fields().items():
        value: Any = configuration
        for attribute in field.attributes:
            value = getattr(value, attribute)
        values[path] = value
    return values


def build(settings: Mapping[str, Any]) -> Configuration:
    """Return a configuration with these values, given by path, and defaults for all other fields."""
    tree: dict[str, Any] = {}
    for path, value in settings.items():
        *groups, leaf = fields()[path].attributes
        branch = tree
        for group in groups:
            branch = branch.setdefault(group, {})
        branch[leaf] = value
    return _build_group(Configuration, tree)


def _build_group(group: type[_S], tree: Mapping[str, Any]) -> _S:
    values = {}
    for member in members(group).values():
        if member.name in tree:
            kind = plain(member.type)
            branch = tree[member.name]
            values[member.name] = _build_group(kind.cls, branch) if isinstance(kind, inspect.StructType) else branch
    return group(**values)
