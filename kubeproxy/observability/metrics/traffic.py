"""The data path's counters as Prometheus text.

The counters are plain integers, read at each scrape. A collector of prometheus_client would take more than a second for
10,000 services, so this module writes the text itself: it keeps the lines of a scrape, and the next one rewrites only
those of services with traffic since. The text comes in slices of about a millisecond, between which the caller can run
the event loop. A thread would be worse: it holds the interpreter for 5 ms at a time and delays every turn of the loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress, islice
from operator import add, attrgetter, ne, sub
from typing import Final, NamedTuple, TypeVar, cast

from kubeproxy.dataplane.interface import Counters, EjectedEndpoint
from kubeproxy.model import FrontendName, ServicePortName

SLICE: Final = 1000
"""Frontends or lines between two yields."""


class Family(NamedTuple):
    """One metric: a ``# HELP`` and a ``# TYPE``."""

    name: str
    kind: str
    text: str
    labels: tuple[str, ...] = ("namespace", "service", "port")


FAMILIES: Final = (
    Family("kubeproxy_connections_accepted_total", "counter", "Connections accepted from clients; UDP: sessions"),
    Family(
        "kubeproxy_kernel_connections_total",
        "counter",
        "Connections that the kernel has led straight to an endpoint; UDP: flows; one that is sent again counts again",
    ),
    Family("kubeproxy_connections_active", "gauge", "Connections open now, of those through a worker"),
    Family(
        "kubeproxy_kernel_connections_open",
        "gauge",
        "Connections open when connection tracking was last read, of those that the kernel has led straight to an"
        " endpoint; UDP: flows",
    ),
    Family(
        "kubeproxy_connections_failed_total",
        "counter",
        "Connections for which no endpoint answered: all refused, could not be reached (unreachable: no"
        " route, or the host is gone), were silent (timeout), there was none (no_endpoint),"
        " this node could not dial (local), or the connection loops through proxies (loop)",
        ("namespace", "service", "port", "reason"),
    ),
    Family("kubeproxy_dial_retries_total", "counter", "Further endpoints tried after one did not answer"),
    Family(
        "kubeproxy_forwarded_bytes_total",
        "counter",
        "Bytes forwarded by workers: in from clients, out from endpoints",
        ("namespace", "service", "port", "direction"),
    ),
    Family(
        "kubeproxy_kernel_bytes_total",
        "counter",
        "Bytes of packets, with headers, of connections that the kernel has led straight to an endpoint: in from"
        " clients, out from endpoints; with net.netfilter.nf_conntrack_acct=1",
        ("namespace", "service", "port", "direction"),
    ),
    Family("kubeproxy_udp_datagrams_dropped_total", "counter", "Datagrams that could not be forwarded"),
    Family("kubeproxy_udp_sessions_evicted_total", "counter", "UDP sessions evicted because the limit was reached"),
    Family("kubeproxy_affinity_entries", "gauge", "Clients that session affinity binds to an endpoint now"),
    Family(
        "kubeproxy_endpoints_ejected",
        "gauge",
        "Endpoints that at least one worker has ejected, because dials failed",
    ),
)
"""In the order of the text. No label is an address of a client or an endpoint, because their number has no bound."""


class Series(NamedTuple):
    """One family's samples with one further label value; `label` is its text in the line."""

    family: str
    label: str
    counter: str
    """The field of `Counters`; empty: none."""
    always: bool = False
    """Whether it exists from the start. The others start with the first client, so that ten thousand services without
    clients on this node cost ten thousand series and not a hundred thousand."""
    rare: bool = False
    """Whether it starts with its first value that is not 0."""


SERIES: Final = (
    Series("kubeproxy_connections_accepted_total", "", "accepted", always=True),
    Series("kubeproxy_kernel_connections_total", "", "by_kernel", rare=True),
    Series("kubeproxy_connections_active", "", "active"),
    Series("kubeproxy_kernel_connections_open", "", "kernel_open", rare=True),
    Series("kubeproxy_connections_failed_total", ',reason="refused"', "refused"),
    Series("kubeproxy_connections_failed_total", ',reason="unreachable"', "unreachable", rare=True),
    Series("kubeproxy_connections_failed_total", ',reason="timeout"', "silent"),
    Series("kubeproxy_connections_failed_total", ',reason="no_endpoint"', "no_endpoint"),
    Series("kubeproxy_connections_failed_total", ',reason="local"', "unable"),
    Series("kubeproxy_connections_failed_total", ',reason="loop"', "looped", rare=True),
    Series("kubeproxy_dial_retries_total", "", "dial_retries"),
    Series("kubeproxy_forwarded_bytes_total", ',direction="in"', "bytes_in"),
    Series("kubeproxy_forwarded_bytes_total", ',direction="out"', "bytes_out"),
    Series("kubeproxy_kernel_bytes_total", ',direction="in"', "kernel_bytes_in", rare=True),
    Series("kubeproxy_kernel_bytes_total", ',direction="out"', "kernel_bytes_out", rare=True),
    Series("kubeproxy_udp_datagrams_dropped_total", "", "dropped", rare=True),
    Series("kubeproxy_udp_sessions_evicted_total", "", "evicted", rare=True),
    Series("kubeproxy_affinity_entries", "", "affinity_entries", rare=True),
    Series("kubeproxy_endpoints_ejected", "", "", rare=True),
)

Values = tuple[int, ...]
"""A frontend's counters, in the order of `SERIES`."""

_COUNTED: Final = tuple(series for series in SERIES if series.counter)
_KINDS: Final = {family.name: family.kind for family in FAMILIES}
_IS_SUM: Final = tuple(_KINDS[series.family] == "counter" for series in _COUNTED)
_NOTHING: Final[Values] = (0,) * len(_COUNTED)
_COLUMNS: Final = range(len(SERIES))
_read: Final = attrgetter(*(series.counter for series in _COUNTED))

_Item = TypeVar("_Item")


class _Row:
    """The numbers of a service port in the order of `SERIES`, and those in its written lines."""

    __slots__ = ("ejected_by_port", "frontends", "labels", "sums", "used", "written")

    def __init__(self, name: ServicePortName) -> None:
        self.frontends = 0
        self.labels = _labels(name)
        self.sums = _NOTHING
        self.ejected_by_port = 0
        self.used = False
        """Whether it has had a client."""
        self.written: tuple[int | None, ...] = (None,) * len(SERIES)


class Traffic:
    """Sums the counters of frontends per service port and writes them.

    Frontends of a service port (families, scopes) come, go and restart, as do workers. Their counts stay in the sum as
    long as the service port exists: Prometheus takes a falling counter for a restart and its next value for a burst.
    """

    def __init__(self) -> None:
        self._seen: dict[FrontendName, Values] = {}
        self._rows: dict[ServicePortName, _Row] = {}
        self._ejected_by_port: Mapping[ServicePortName, int] = {}
        self._stale: dict[ServicePortName, None] = {}
        """Service ports with lines to be rewritten."""
        self._lines: list[dict[ServicePortName, str]] = [{} for _ in SERIES]

    def exposition(
        self,
        counters: Mapping[FrontendName, Counters],
        ejected: Mapping[FrontendName, Sequence[EjectedEndpoint]] | None = None,
    ) -> Iterator[bytes]:
        """The text, in slices, some of them empty.

        Only one iterator at a time may run; it need not run to its end.
        """
        read: Counters | None = None
        values = _NOTHING
        for batch in _batches(counters.items()):
            for name, now in batch:
                if now is not read:  # frontends without clients may share one object
                    read, values = now, cast(Values, _read(now))
                before = self._seen.get(name)
                if before != values:
                    self._take(name, before, values)
            yield b""
        if len(self._seen) > len(counters):
            for gone in _batches([name for name in self._seen if name not in counters]):
                for name in gone:
                    self._drop(name)
                yield b""
        self._set_ejected(ejected or {})
        for stale in _batches(list(self._stale)):
            for service_port in stale:
                self._write(service_port)
            yield b""
        yield from self._text()

    def _take(self, name: FrontendName, before: Values | None, now: Values) -> None:
        row = self._rows.get(name.service_port)
        if row is None:
            row = self._rows[name.service_port] = _Row(name.service_port)
        if before is None:
            row.frontends += 1
            more = now
        else:
            more = tuple(map(sub, now, before))
            # A gauge may fall. A sum falls if the frontend restarted and counts from 0 again.
            if min(more) < 0 and any(it < 0 for it, is_sum in zip(more, _IS_SUM, strict=True) if is_sum):
                more = tuple(value if is_sum else it for it, value, is_sum in zip(more, now, _IS_SUM, strict=True))
        row.sums = tuple(map(add, row.sums, more))
        self._seen[name] = now
        self._stale[name.service_port] = None

    def _drop(self, name: FrontendName) -> None:
        row, last = self._rows[name.service_port], self._seen.pop(name)
        row.frontends -= 1
        if row.frontends:
            gauges = tuple(0 if is_sum else value for value, is_sum in zip(last, _IS_SUM, strict=True))
            row.sums = tuple(map(sub, row.sums, gauges))
        else:
            del self._rows[name.service_port]
        self._stale[name.service_port] = None

    def _set_ejected(self, ejected: Mapping[FrontendName, Sequence[EjectedEndpoint]]) -> None:
        """Count each ejected endpoint once per service port, not per worker and frontend."""
        targets: dict[ServicePortName, set[object]] = {}
        for name, endpoints in ejected.items():
            targets.setdefault(name.service_port, set()).update(endpoint.target for endpoint in endpoints)
        ejected_by_port = {
            service_port: len(found) for service_port, found in targets.items() if service_port in self._rows
        }
        for service_port in ejected_by_port.keys() | self._ejected_by_port.keys():
            number = ejected_by_port.get(service_port, 0)
            row = self._rows.get(service_port)
            if row is not None and row.ejected_by_port != number:
                row.ejected_by_port = number
                self._stale[service_port] = None
        self._ejected_by_port = ejected_by_port

    def _write(self, service_port: ServicePortName) -> None:
        self._stale.pop(service_port, None)
        row = self._rows.get(service_port)
        if row is None:
            for lines in self._lines:
                lines.pop(service_port, None)
            return
        numbers = (*row.sums, row.ejected_by_port)
        changed: Iterable[int] = compress(_COLUMNS, map(ne, numbers, row.written))
        if row.sums[0] and not row.used:
            row.used, changed = True, _COLUMNS
        for column in changed:
            series, lines, number = SERIES[column], self._lines[column], numbers[column]
            if number or series.always or (row.used and not series.rare) or service_port in lines:
                lines[service_port] = f"{series.family}{{{row.labels}{series.label}}} {number}\n"
        row.written = numbers

    def _text(self) -> Iterator[bytes]:
        for family in FAMILIES:
            yield f"# HELP {family.name} {family.text}\n# TYPE {family.name} {family.kind}\n".encode()
            for series, lines in zip(SERIES, self._lines, strict=True):
                if series.family == family.name:
                    # A copy: another iterator may change the lines if this one was not run to its end.
                    for batch in _batches(list(lines.values())):
                        yield "".join(batch).encode()


def _batches(items: Iterable[_Item]) -> Iterator[list[_Item]]:
    remaining = iter(items)
    while batch := list(islice(remaining, SLICE)):
        yield batch


def _labels(name: ServicePortName) -> str:
    namespace, service, port = (part.translate(_ESCAPES) for part in name)
    return f'namespace="{namespace}",service="{service}",port="{port}"'


_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
