"""Checks manifests: reports their faults without serving or watching them."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kubeproxy.kubernetes.manifests.files import Changing, Listing, ReadError, look, read_file
from kubeproxy.kubernetes.manifests.http import Session, Version, fetch, is_url
from kubeproxy.sources.manifests.documents import Namespaces, Reading, read
from kubeproxy.sources.manifests.inventory import Inventory
from kubeproxy.sources.manifests.source import NO_MEMORY, STDIN, STDIN_ORIGIN


@dataclass(frozen=True, slots=True)
class Survey:
    """The result of a check: faults and counts."""

    faults: tuple[str, ...]
    """One line each: ``FILE document N: PATH: MESSAGE``."""
    manifests: int
    """Files, URLs and streams that could be read."""
    services: int
    slices: int
    """EndpointSlices, and Endpoints by family."""


def check(
    paths: Sequence[str],
    *,
    recursive: bool = False,
    default_namespace: str = "default",
    enforced_namespace: str | None = None,
) -> Survey:
    """Read the named manifests. Do not call it from a running event loop."""
    faults: list[str] = []
    listings = {
        path: look(os.path.normpath(path), recursive=recursive) for path in paths if path != STDIN and not is_url(path)
    }
    namespaces = Namespaces(default=default_namespace, enforced=enforced_namespace)
    readings: dict[str, Reading | None] = {}
    for origin, data in _texts(paths, listings, faults):
        try:
            readings[origin] = read(data, namespaces)
        except MemoryError:
            faults.append(f"{origin}: {NO_MEMORY}")
    inventory = Inventory()
    inventory.update(readings)
    return Survey(
        faults=(*faults, *(str(problem) for problem in inventory.problems() if not problem.skipped)),
        manifests=len(readings),
        services=sum(1 for _ in inventory.services()),
        slices=sum(1 for _ in inventory.slices()),
    )


def _texts(paths: Sequence[str], listings: Mapping[str, Listing], faults: list[str]) -> Iterator[tuple[str, bytes]]:
    """The manifests by name, in their order; adds the faults of files and URLs to `faults`."""
    for path in dict.fromkeys(paths):
        if path == STDIN:
            yield STDIN_ORIGIN, sys.stdin.buffer.read()
        elif is_url(path):
            try:
                yield path, asyncio.run(_fetch(path))
            except ReadError as error:
                faults.append(f"{path}: {error}")
        else:
            faults.extend(f"{where}: {reason}" for where, reason in listings[path].faults.items())
            for file in listings[path].files:
                try:
                    yield file, read_file(file)[0]
                except Changing:
                    faults.append(f"{file}: changed during the read")
                except ReadError as error:
                    faults.append(f"{file}: {error}")


async def _fetch(url: str) -> bytes:
    async with Session() as web:
        fetched = await fetch(web, url, Version())
    return fetched.data if fetched is not None else b""
