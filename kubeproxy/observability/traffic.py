"""The data path's counters as Prometheus text.

They are plain integers, read when somebody asks. The text is written here and not by a collector of prometheus_client:
60,000 samples (10,000 services) cost that library 0.8 s and this file a tenth of it. It comes in slices of about a
millisecond, so that whoever sends it can let the event loop run in between; a thread would not do, as it holds the
interpreter for 5 ms at a time and so delays every single turn of the loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from operator import itemgetter
from typing import Final, NamedTuple, TypeVar

from kubeproxy.dataplane.interface import Counters
from kubeproxy.model import FrontendName, ServicePortName

SLICE: Final = 500
"""Frontends or lines between two yields."""


class Series(NamedTuple):
    """One family's samples of one further label value (`label`: as it stands in the text, or empty)."""

    family: str
    label: str
    column: int


FAMILIES: Final = (
    ("kubeproxy_connections_accepted_total", "counter", "Connections accepted from clients"),
    ("kubeproxy_connections_active", "gauge", "Connections open now"),
    ("kubeproxy_connections_failed_total", "counter", "Connections for which no endpoint answered"),
    ("kubeproxy_dial_retries_total", "counter", "Further endpoints tried after one did not answer"),
    ("kubeproxy_forwarded_bytes_total", "counter", "Bytes forwarded: in from clients, out from endpoints"),
)
"""Name, type and help, in the order of the text. Labels are namespace, service and port, never a client's or an
endpoint's address: what has no bound must not become a label."""

SERIES: Final = (
    Series("kubeproxy_connections_accepted_total", "", 0),
    Series("kubeproxy_connections_active", "", 1),
    Series("kubeproxy_connections_failed_total", "", 2),
    Series("kubeproxy_dial_retries_total", "", 3),
    Series("kubeproxy_forwarded_bytes_total", ',direction="in"', 4),
    Series("kubeproxy_forwarded_bytes_total", ',direction="out"', 5),
)

Totals = list[int]
"""Accepted, active, failed, dial retries, bytes in, bytes out."""

_Item = TypeVar("_Item")


class Traffic:
    """Sums frontends to service ports and writes them.

    A service port may have several frontends (families, scopes), and one of them may go while the others stay. Its
    counts stay in the sum then: a counter that falls reads as a restart, and the whole rest of the sum as a burst.
    """

    def __init__(self) -> None:
        self._before: Mapping[FrontendName, Counters] = {}
        self._carried: dict[ServicePortName, Totals] = {}

    def exposition(self, counters: Mapping[FrontendName, Counters]) -> Iterator[bytes]:
        """The text, in slices (some of them empty). To be run to the end, one at a time."""
        totals: dict[ServicePortName, Totals] = {}
        carried: dict[ServicePortName, Totals] = {}
        known = 0
        for batch in _batches(counters.items()):
            for name, now in batch:
                _add(totals, name.service_port, now, active=now.active)
                before = self._before.get(name)
                if before is not None:
                    known += 1
                    if before.accepted > now.accepted:
                        _add(carried, name.service_port, before)
            yield b""
        if known < len(self._before):
            for gone in _batches(self._before.items()):
                for name, before in gone:
                    if name not in counters and name.service_port in totals:
                        _add(carried, name.service_port, before)
                yield b""
        for service_port, amount in self._carried.items():
            if service_port in totals:
                _sum(carried, service_port, amount)
        for service_port, amount in carried.items():
            _sum(totals, service_port, amount)
        self._before, self._carried = counters, carried
        yield from _text(totals)


def _batches(items: Iterable[_Item]) -> Iterator[list[_Item]]:
    remaining = iter(items)
    while batch := list(islice(remaining, SLICE)):
        yield batch


def _add(into: dict[ServicePortName, Totals], key: ServicePortName, counters: Counters, *, active: int = 0) -> None:
    amount = [
        counters.accepted,
        active,
        counters.failed,
        counters.dial_retries,
        counters.bytes_in,
        counters.bytes_out,
    ]
    if into.setdefault(key, amount) is not amount:
        _sum(into, key, amount)


def _sum(into: dict[ServicePortName, Totals], key: ServicePortName, amount: Totals) -> None:
    into[key] = [one + other for one, other in zip(into.get(key, _NOTHING), amount, strict=True)]


_NOTHING: Final[Totals] = [0] * len(SERIES)


def _text(totals: Mapping[ServicePortName, Totals]) -> Iterator[bytes]:
    rows: list[tuple[str, Totals]] = []
    for named in _batches(totals.items()):
        rows += [(_labels(name), row) for name, row in named]
        yield b""
    for family, kind, explanation in FAMILIES:
        yield f"# HELP {family} {explanation}\n# TYPE {family} {kind}\n".encode()
        for series in SERIES:
            if series.family == family:
                value = itemgetter(series.column)
                for batch in _batches(rows):
                    yield "".join(
                        [f"{family}{{{labels}{series.label}}} {value(row)}\n" for labels, row in batch]
                    ).encode()


def _labels(name: ServicePortName) -> str:
    namespace, service, port = (part.translate(_ESCAPES) for part in name)
    return f'namespace="{namespace}",service="{service}",port="{port}"'


_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
