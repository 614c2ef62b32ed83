"""Checks manifests for faults and likely mistakes, without serving them."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kubeproxy.kubernetes.manifests.files import FileChangingError, Listing, ReadError, look, read_file
from kubeproxy.kubernetes.manifests.http import Session, Version, fetch, is_url
from kubeproxy.kubernetes.manifests.lines import line_of
from kubeproxy.model import Service, ServiceName
from kubeproxy.model.manifests import ManifestProblem
from kubeproxy.sources.manifests.documents import Piece, Reading, pieces
from kubeproxy.sources.manifests.inventory import Inventory
from kubeproxy.sources.manifests.known_fields import KINDS, nearest
from kubeproxy.sources.manifests.objects import ObjectKind, Terms
from kubeproxy.sources.manifests.reader import NO_MEMORY, STDIN, STDIN_ORIGIN
from kubeproxy.sources.manifests.reference_check import Defined, Where, warnings

_SERVICE_NAME = "kubernetes.io/service-name"


@dataclass(frozen=True, slots=True)
class Survey:
    """The result of a check of manifests."""

    faults: tuple[str, ...]
    """A line for each part that the daemon does not serve, in the form ``FILE:LINE: error: OBJECT: PATH: MESSAGE``."""
    warnings: tuple[str, ...]
    """A line for each likely mistake, in the same form. The daemon serves these objects."""
    manifests: int
    """The number of files, URLs and other inputs that could be read."""
    services: int
    slices: int
    """The number of EndpointSlices. An Endpoints object counts once for each of its IP families."""
    ignored: Mapping[str, int]
    """The number of objects that are neither served nor faulty, by a description such as ``apps/v1 Deployment`` or
    ``EndpointSlice without a Service``."""


def check(
    paths: Sequence[str],
    *,
    recursive: bool = False,
    terms: Terms = Terms(),  # noqa: B008 - frozen
) -> Survey:
    """Read and check the manifests at these paths. This must not be called from a running event loop."""
    faults: list[str] = []
    hints: list[str] = []
    listings = {
        path: look(os.path.normpath(path), recursive=recursive) for path in paths if path != STDIN and not is_url(path)
    }
    for path, listing in listings.items():
        if listing.directory is not None and not listing.files and not listing.faults:
            hints.append(f"{path}: warning: no manifest in this directory; their names end with .yaml, .yml or .json")
    manifests: dict[str, list[Piece]] = {}
    for origin, data in _texts(paths, listings, faults):
        try:
            manifests[origin] = list(pieces(data, terms))
        except MemoryError:
            faults.append(f"{origin}: {NO_MEMORY}")
    inventory = Inventory()
    inventory.update(
        {
            origin: Reading(entries=tuple((piece.place, piece.entry) for piece in read))
            for origin, read in manifests.items()
        }
    )
    mistakes = _Mistakes(manifests)
    return Survey(
        faults=(*faults, *(mistakes.located(one) for one in inventory.problems() if not (one.skipped or one.warning))),
        warnings=(*hints, *mistakes.of_objects(), *mistakes.of_references()),
        manifests=len(manifests),
        services=sum(1 for _ in inventory.services()),
        slices=sum(1 for _ in inventory.slices()),
        ignored=mistakes.ignored,
    )


class _Mistakes:
    """Finds likely mistakes in the objects of all manifests."""

    def __init__(self, manifests: Mapping[str, Sequence[Piece]]) -> None:
        self._manifests = manifests
        self.ignored: dict[str, int] = {}

    def located(self, problem: ManifestProblem) -> str:
        """Return the line about a fault, with its line number."""
        word, _, number = problem.path.rpartition("line ")
        if number.isdecimal() and not word.strip("."):  # The text cannot be parsed from this line on.
            return f"{problem.origin}:{number}: error: {problem.message}"
        for piece in self._manifests[problem.origin]:
            if piece.place.document == problem.document and problem.path.startswith(piece.place.item):
                path = problem.path.removeprefix(piece.place.item)
                return _line(problem.origin, piece, path, problem.message, level="error")
        return str(problem)

    def of_objects(self) -> Iterator[str]:
        """Yield the likely mistakes within single objects."""
        for origin, read in self._manifests.items():
            for piece in read:
                for path, message in self._of_object(piece):
                    yield _line(origin, piece, path, message)

    def _of_object(self, piece: Piece) -> Iterator[tuple[str, str]]:
        entry = piece.entry
        if entry.skipped:
            kind = entry.skipped.rpartition(" ")[2]
            if meant := nearest(kind, KINDS):
                yield "kind", f"{kind!r} is not served, and ignored; did you mean {meant}?"
            self._ignore(entry.skipped)
            return
        if entry.name is None:
            return
        yield from ((warning.path, warning.message) for warning in entry.warnings)
        if entry.name.kind is not ObjectKind.SERVICE and not entry.slices and not entry.faults:
            self._ignore(f"{entry.name.kind} without a Service")
            if entry.name.kind is ObjectKind.ENDPOINT_SLICE and _label(piece.value()) is None:
                yield "metadata", f"no label {_SERVICE_NAME}, so these endpoints belong to no Service and are ignored"

    def _ignore(self, what: str) -> None:
        self.ignored[what] = self.ignored.get(what, 0) + 1

    def of_references(self) -> Iterator[str]:
        """Yield the likely mistakes in references between objects."""
        everything = [(origin, piece) for origin, read in self._manifests.items() for piece in read]
        services: dict[ServiceName, tuple[Where, Service | None]] = {}
        for origin, piece in everything:
            if (name := piece.entry.name) is not None and name.kind is ObjectKind.SERVICE:
                # If there are several definitions, the first is served.
                services.setdefault(ServiceName(name.namespace, name.name), ((origin, piece), piece.entry.service))
        defined = Defined(
            services,
            [((origin, piece), one) for origin, piece in everything for one in piece.entry.slices],
        )
        for where, path, message in warnings(defined):
            yield _line(*where, path, message)


def _label(value: object) -> object:
    """Return the label of an EndpointSlice that names its Service, or None if it is absent."""
    for key in ("metadata", "labels", _SERVICE_NAME):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _line(origin: str, piece: Piece, path: str, message: str, *, level: str = "warning") -> str:
    """Return the line about a mistake, in the form that compilers use and editors recognize."""
    inner = f"{piece.inner_path}.{path}" if piece.inner_path else path
    line = line_of(piece.text, inner, first=piece.line)
    name = f"{piece.entry.name}: " if piece.entry.name is not None else ""
    shown = path.lstrip(".")
    return f"{origin}:{line}: {level}: {name}{shown}{': ' if shown else ''}{message}"


def _texts(paths: Sequence[str], listings: Mapping[str, Listing], faults: list[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the text of each manifest, in order. Add the faults of files and URLs to `faults`."""
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
                except FileChangingError:
                    faults.append(f"{file}: changed during the read")
                except ReadError as error:
                    faults.append(f"{file}: {error}")


async def _fetch(url: str) -> bytes:
    async with Session() as web:
        fetched = await fetch(web, url, Version())
    return fetched.data if fetched is not None else b""
