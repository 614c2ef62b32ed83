"""What is wrong with some manifests, without serving or watching them."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from kubeproxy.sources.manifests.documents import Namespaces, Reading, read
from kubeproxy.sources.manifests.files import Changing, ReadError, look, read_file
from kubeproxy.sources.manifests.http import Session, Version, fetch, is_url
from kubeproxy.sources.manifests.inventory import Inventory
from kubeproxy.sources.manifests.source import STDIN, STDIN_ORIGIN


@dataclass(frozen=True, slots=True)
class Survey:
    """What some manifests amount to."""

    faults: tuple[str, ...]
    """Each as a line ``FILE document N: PATH: MESSAGE``."""
    manifests: int
    """Files, web addresses and the like that could be read."""
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
    """Read the named manifests. Not to be called from a running event loop."""
    namespaces = Namespaces(default=default_namespace, enforced=enforced_namespace)
    faults: list[str] = []
    readings: dict[str, Reading | None] = {}
    for path in dict.fromkeys(paths):
        if path == STDIN:
            readings[STDIN_ORIGIN] = read(sys.stdin.buffer.read(), namespaces)
        elif is_url(path):
            try:
                readings[path] = read(asyncio.run(_fetch(path)), namespaces)
            except ReadError as error:
                faults.append(f"{path}: {error}")
        else:
            listing = look(os.path.normpath(path), recursive=recursive)
            faults.extend(f"{where}: {reason}" for where, reason in listing.faults.items())
            for file in listing.files:
                try:
                    readings[file] = read(read_file(file)[0], namespaces)
                except Changing:
                    faults.append(f"{file}: changed while it was read")
                except ReadError as error:
                    faults.append(f"{file}: {error}")
    inventory = Inventory()
    inventory.update(readings)
    return Survey(
        faults=(*faults, *(str(trouble) for trouble in inventory.troubles() if not trouble.skipped)),
        manifests=len(readings),
        services=sum(1 for _ in inventory.services()),
        slices=sum(1 for _ in inventory.slices()),
    )


async def _fetch(url: str) -> bytes:
    async with Session() as web:
        fetched = await fetch(web, url, Version())
    return fetched.data if fetched is not None else b""
