"""Decides how large a node's drain report may be, how much of it each namespace may have, and what fits.

Every node writes a report, and the API server keeps its history for some minutes. So all nodes together have a limited
rate of bytes, and a report may have the size that they can write in `PAUSE_LIMIT_S`. A namespace gets what it needs as
long as everything fits; otherwise the namespaces that need the most get less. A Service that does not fit is left out,
and its rollout waits for its time-outs. The report names the namespaces of left-out Services.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from kubeproxy.model import ServiceName
from kubeproxy.model.drain_report import REPORT_BYTES, DrainState

WRITES_PER_S: Final = 500.0
"""How many reports all nodes together write in a second: as many as 5,000 kubelets that renew their Leases."""
BYTES_PER_S: Final = 4_000_000.0
"""How many bytes all nodes together write in a second. etcd keeps them for five minutes, which are 1.2 GB of the 2 GB
that it holds by default."""
PAUSE_S: Final = 0.2
"""The shortest time between two reports of one node."""
PAUSE_LIMIT_S: Final = 15.0
"""How long the largest report may keep a node from writing the next one. It is half of a rollout's timeout."""
LEAST_BYTES: Final = 24_576
"""The room of a report in a cluster of any size. Half of it is enough for the largest step of a Deployment."""
LEASE_BYTES: Final = 1_000
"""The size of a Lease without its report."""
PART: Final = 2
"""A namespace may have one of this many parts of a report."""
NOTES: Final = 8
"""One of this many parts of a report is for the names of namespaces with Services that are left out."""


def pause_s(nodes: int, size: int) -> float:
    """Return the shortest time between two reports of this size from one node."""
    return max(PAUSE_S, nodes / WRITES_PER_S, nodes * (size + LEASE_BYTES) / BYTES_PER_S)


def room(nodes: int) -> int:
    """Return how many bytes a report may have in a cluster of this size."""
    return min(REPORT_BYTES, max(LEAST_BYTES, int(PAUSE_LIMIT_S * BYTES_PER_S / nodes) - LEASE_BYTES))


@dataclass(frozen=True, slots=True)
class Fitting:
    """What fits into a report."""

    services: Collection[ServiceName] = ()
    omitted: Mapping[str, int] = field(default_factory=dict)
    """The number of Services that were left out, by namespace. Those under the empty name belong to namespaces that are
    not named here."""


def fitting(sizes: Mapping[ServiceName, int], room: int) -> Fitting:
    """Return the Services that fit into this many bytes. `sizes` come from `size_of`."""
    by_namespace: dict[str, list[tuple[int, ServiceName]]] = {}
    for name, size in sizes.items():
        by_namespace.setdefault(name.namespace, []).append((size, name))
    needs = sorted((sum(size for size, _ in each), namespace) for namespace, each in by_namespace.items())
    notes = room // NOTES
    most, left = room // PART, room - notes
    shown: list[ServiceName] = []
    left_out: dict[str, int] = {}
    for number, (_, namespace) in enumerate(needs):
        part, taken = min(most, left // (len(needs) - number)), 0
        # The smallest Services come first, so that most of them fit and a large one keeps no other out. One Service
        # fits in any case while there is room: if all parts are too small, those that need the least are served.
        for size, name in sorted(by_namespace[namespace]):
            if taken + size <= part or (not taken and size <= min(most, left)):
                taken += size
                shown.append(name)
            else:
                left_out[namespace] = left_out.get(namespace, 0) + 1
        left -= taken
    return Fitting(shown, _named(left_out, notes))


def _named(left_out: Mapping[str, int], room: int) -> dict[str, int]:
    """Return as many namespaces as have room, and the sum of the others."""
    found: dict[str, int] = {}
    left = room - 2 * _NOTE_BYTES
    for namespace, number in sorted(left_out.items(), key=lambda item: (len(item[0]), item[0])):
        fits = len(namespace) + _NOTE_BYTES <= left
        left -= len(namespace) + _NOTE_BYTES if fits else 0
        name = namespace if fits else ""
        found[name] = found.get(name, 0) + number
    return found


_NOTE_BYTES: Final = 12
"""The bytes that it takes to tell how many Services of a namespace are left out, without the namespace's name."""


def size_of(name: ServiceName, state: DrainState) -> int:
    """Return the largest number of bytes that a Service can take in a report, whatever its counts are."""
    listed = sum(len(address) + 3 for address in (*state.report.unused, *state.report.kept))
    counts = sum(len(address) + 12 for address in state.counted)
    return len(str(name)) + 72 + listed + counts
