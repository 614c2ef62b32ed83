"""Reads Deployments from manifest files, without defaults."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from kubeproxy.kubernetes.manifests.parse import ManifestSyntaxError, parse
from kubeproxy.kubernetes.manifests.split import split
from kubeproxy.kubernetes.resource_builder.file_arguments import expand
from kubeproxy.model.errors import ConfigError


async def deployments_in(filenames: Sequence[str]) -> list[dict[str, Any]]:
    """Return the Deployments in files, URLs or standard input, as JSON values. Raise ConfigError if the input cannot be
    read or has no Deployment."""
    sources, faults = expand(filenames, recursive=False)
    if faults:
        raise faults[0]
    found: list[dict[str, Any]] = []
    for source in sources:
        data = b"".join([piece async for piece in source.read()])
        try:
            found += _deployments(data)
        except ManifestSyntaxError as error:
            raise ConfigError(f"{source.name}: {error.fault.path}: {error.fault.message}") from None
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{source.name}: {error}; allowed are objects") from None
    if not found:
        raise ConfigError(f"{', '.join(filenames)}: found no Deployment")
    return found


def _deployments(data: bytes) -> Iterator[dict[str, Any]]:
    for line, document in split(data):
        for value in parse(document, line):
            if not value.null:
                yield from _inside(value.to(dict[str, Any]))


def _inside(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if found.get("kind") == "Deployment":
        yield found
    elif str(found.get("kind", "")).endswith("List"):
        for item in found.get("items") or ():
            if isinstance(item, dict):
                yield from _inside(item)
