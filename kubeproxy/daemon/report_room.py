"""Decides how large a node's drain report may be, how much of it each namespace may have, and what fits.

Every node writes a report, and the API server keeps its history for some minutes. So the rate in bytes of all nodes
together is limited, and a report may be as large as this rate allows once per `PAUSE_LIMIT_S`. If everything fits, each
namespace gets what it needs. Otherwise the namespaces that need the most get less. A Service that does not fit is left
out, and its rollout waits until a timeout. The report names the namespaces of omitted Services.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from kubeproxy.model import ServiceName
from kubeproxy.model.drain_report import REPORT_BYTES, DrainState

WRITES_PER_S: Final = 500.0
"""How many reports all nodes together may write per second: about as many writes as 5,000 kubelets make to renew their
Leases."""
BYTES_PER_S: Final = 4_000_000.0
"""How many bytes all nodes together may write per second. etcd keeps them for five minutes, which makes 1.2 GB of its
default limit of 2 GB."""
PAUSE_S: Final = 0.2
"""The shortest time between two reports of one node."""
PAUSE_LIMIT_S: Final = 15.0
"""The longest time that the size of a report may delay the next one. It is half of a rollout's timeout."""
LEAST_BYTES: Final = 24_576
"""The size that a report may always have, in a cluster of any size. Half of it is enough for the largest step of a
Deployment."""
LEASE_BYTES: Final = 1_000
"""The size of a Lease in bytes without its report."""
PART: Final = 2
"""One namespace may use at most one of this many equal parts of a report."""
NOTES: Final = 8
"""One of this many equal parts of a report is reserved for the names of namespaces with omitted Services."""


def pause_s(nodes: int, size: int) -> float:
    """Return the shortest time in seconds between two reports of this size from one node."""
    return max(PAUSE_S, nodes / WRITES_PER_S, nodes * (size + LEASE_BYTES) / BYTES_PER_S)


def room(nodes: int) -> int:
    """Return how many bytes a report may have in a cluster with this many nodes."""
    return min(REPORT_BYTES, max(LEAST_BYTES, int(PAUSE_LIMIT_S * BYTES_PER_S / nodes) - LEASE_BYTES))


@dataclass(frozen=True, slots=True)
class Fitting:
    """The Services that fit into a report, and those that do not."""

    services: Collection[ServiceName] = ()
    omitted: Mapping[str, int] = field(default_factory=dict)
    """The number of omitted Services by namespace. The empty name has the sum of the namespaces that are not named."""


def fitting(sizes: Mapping[ServiceName, int], room: int) -> Fitting:
    """Return which Services fit into `room` bytes. `sizes` has the results of `size_of`."""
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
        # The smallest Services come first, so that as many as possible fit. Even if a namespace's part is too small for
        # any Service, its smallest one is included while the report has room.
        for size, name in sorted(by_namespace[namespace]):
            if taken + size <= part or (not taken and size <= min(most, left)):
                taken += size
                shown.append(name)
            else:
                left_out[namespace] = left_out.get(namespace, 0) + 1
        left -= taken
    return Fitting(shown, _named(left_out, notes))


def _named(left_out: Mapping[str, int], room: int) -> dict[str, int]:
    """Return the namespaces with omitted Services, as many as fit, and the sum of the others."""
    found: dict[str, int] = {}
    left = room - 2 * _NOTE_BYTES
    for namespace, number in sorted(left_out.items(), key=lambda item: (len(item[0]), item[0])):
        fits = len(namespace) + _NOTE_BYTES <= left
        left -= len(namespace) + _NOTE_BYTES if fits else 0
        name = namespace if fits else ""
        found[name] = found.get(name, 0) + number
    return found


_NOTE_BYTES: Final = 12
"""The bytes needed to report the omitted Services of a namespace, without the namespace's name."""


def size_of(name: ServiceName, state: DrainState) -> int:
    """Return the largest number of bytes that a Service can take in a report, whatever its counts of connections."""
    listed = sum(len(address) + 3 for address in (*state.report.unused, *state.report.kept))
    counts = sum(len(address) + 12 for address in state.counted)
    return len(str(name)) + 72 + listed + counts
