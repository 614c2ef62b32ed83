"""The data path's counters as Prometheus text.

The counters are plain integers, read at each scrape. A collector of prometheus_client would take more than a second for
10,000 Services, so this module writes the text itself. It keeps the lines of the last scrape, and the next scrape
rewrites only the lines of Services with traffic since then. The text is produced in slices of about a millisecond, so
that the caller can run the event loop in between. A thread would be worse: it would hold the interpreter lock for 5 ms
at a time and delay every turn of the loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto
from itertools import compress, islice
from operator import add, attrgetter, ne, sub
from typing import Final, NamedTuple, TypeVar, cast

from kubeproxy.dataplane.interface import Counters, EjectedEndpoint
from kubeproxy.model import FrontendName, ServicePortName

SLICE: Final = 1000
"""The number of frontends or lines in one slice."""


class Start(Enum):
    """The condition under which a service port gets a series. Only a few series exist from the start. So ten thousand
    Services without clients on this node cost ten thousand series, not a hundred thousand."""

    AT_ONCE = auto()
    FIRST_CLIENT = auto()
    FIRST_VALUE = auto()
    """The series appears with its first value that is not 0."""


class Series(NamedTuple):
    """One series of a service port: the number that it shows, and when it exists."""

    counter: str
    """The field of `Counters` with the number. An empty name stands for the number of ejected endpoints, which is not a
    counter."""
    label: str = ""
    """The value of the family's `further_label`."""
    start: Start = Start.FIRST_CLIENT


class Family(NamedTuple):
    """A metric: its ``# HELP``, its ``# TYPE``, and its series."""

    name: str
    kind: str
    text: str
    series: tuple[Series, ...]
    further_label: str = ""
    """The label that distinguishes the series of the family. It is empty if there is only one series."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the names of the labels."""
        return ("namespace", "service", "port", *filter(None, [self.further_label]))


FAMILIES: Final = (
    Family(
        "kubeproxy_connections_accepted_total",
        "counter",
        "Connections accepted from clients; UDP: sessions",
        (Series("accepted", start=Start.AT_ONCE),),
    ),
    Family(
        "kubeproxy_kernel_connections_total",
        "counter",
        "Connections that the kernel has sent straight to an endpoint; UDP: flows; each resent SYN counts again",
        (Series("by_kernel", start=Start.FIRST_VALUE),),
    ),
    Family(
        "kubeproxy_connections_active",
        "gauge",
        "Connections through workers that are open now",
        (Series("active"),),
    ),
    Family(
        "kubeproxy_kernel_connections_open",
        "gauge",
        "Connections that the kernel has sent straight to an endpoint and that were open when connection tracking was"
        " last read; UDP: flows",
        (Series("kernel_open", start=Start.FIRST_VALUE),),
    ),
    Family(
        "kubeproxy_connections_failed_total",
        "counter",
        "Connections for which no endpoint answered, by reason. refused: all refused; unreachable: there was no route,"
        " or the host is gone; timeout: no endpoint answered in time; no_endpoint: the frontend had none; local: this"
        " node could not dial; loop: the connection loops through proxies",
        (
            Series("refused", "refused"),
            Series("unreachable", "unreachable", Start.FIRST_VALUE),
            Series("silent", "timeout"),
            Series("no_endpoint", "no_endpoint"),
            Series("unable", "local"),
            Series("looped", "loop", Start.FIRST_VALUE),
        ),
        further_label="reason",
    ),
    Family(
        "kubeproxy_dial_retries_total",
        "counter",
        "Further endpoints tried after one did not answer",
        (Series("dial_retries"),),
    ),
    Family(
        "kubeproxy_forwarded_bytes_total",
        "counter",
        "Bytes forwarded by workers: in from clients, out from endpoints",
        (Series("bytes_in", "in"), Series("bytes_out", "out")),
        further_label="direction",
    ),
    Family(
        "kubeproxy_kernel_bytes_total",
        "counter",
        "Bytes, with packet headers, of connections that the kernel has sent straight to an endpoint: in from"
        " clients, out from endpoints; needs net.netfilter.nf_conntrack_acct=1",
        (Series("kernel_bytes_in", "in", Start.FIRST_VALUE), Series("kernel_bytes_out", "out", Start.FIRST_VALUE)),
        further_label="direction",
    ),
    Family(
        "kubeproxy_udp_datagrams_dropped_total",
        "counter",
        "Datagrams that could not be forwarded",
        (Series("dropped", start=Start.FIRST_VALUE),),
    ),
    Family(
        "kubeproxy_udp_sessions_evicted_total",
        "counter",
        "UDP sessions evicted because the limit was reached",
        (Series("evicted", start=Start.FIRST_VALUE),),
    ),
    Family(
        "kubeproxy_affinity_entries",
        "gauge",
        "Clients that session affinity binds to an endpoint now",
        (Series("affinity_entries", start=Start.FIRST_VALUE),),
    ),
    Family(
        "kubeproxy_endpoints_ejected",
        "gauge",
        "Endpoints that at least one worker has ejected, because dials failed",
        (Series("", start=Start.FIRST_VALUE),),
    ),
)
"""The families in the order of the text. `Traffic` relies on the first being accepted connections and the last ejected
endpoints.

No label is the address of a client or an endpoint, because the number of addresses is not bounded.
"""

SERIES: Final = tuple(series for family in FAMILIES for series in family.series)

Values = tuple[int, ...]
"""The counters of a frontend, in the order of `SERIES`."""


class _Line(NamedTuple):
    """The constant parts of a series' line, computed once because each series has a line for each of ten thousand
    Services."""

    opening: str
    """The text before the labels of the service port."""
    closing: str
    """The text after the labels."""
    begins_at_once: bool
    begins_with_client: bool


def _line(family: Family, series: Series) -> _Line:
    further = f',{family.further_label}="{series.label}"' if series.label else ""
    start = series.start
    return _Line(f"{family.name}{{", f"{further}}} ", start is Start.AT_ONCE, start is Start.FIRST_CLIENT)


_LINES: Final = tuple(_line(family, series) for family in FAMILIES for series in family.series)
_IS_SUM: Final = tuple(family.kind == "counter" for family in FAMILIES for series in family.series if series.counter)
_NOTHING: Final[Values] = (0,) * len(_IS_SUM)
_COLUMNS: Final = range(len(SERIES))
_read: Final = attrgetter(*(series.counter for series in SERIES if series.counter))

_Item = TypeVar("_Item")


class _Row:
    """The numbers of a service port in the order of `SERIES`, and those in the lines written last."""

    __slots__ = ("ejected_by_port", "frontends", "labels", "sums", "used", "written")

    def __init__(self, name: ServicePortName) -> None:
        self.frontends = 0
        self.labels = _labels(name)
        self.sums = _NOTHING
        self.ejected_by_port = 0
        self.used = False
        """Whether the service port has had a client."""
        self.written: tuple[int | None, ...] = (None,) * len(SERIES)


class Traffic:
    """Sums the counters of frontends by service port, and writes them as text.

    The frontends of a service port (one per family and scope) come and go, and so do workers. Their counts stay in the
    sum as long as the service port exists. If a counter fell, Prometheus would see a restart, and the next value would
    look like a burst.
    """

    def __init__(self) -> None:
        self._seen: dict[FrontendName, Values] = {}
        self._rows: dict[ServicePortName, _Row] = {}
        self._ejected_by_port: Mapping[ServicePortName, int] = {}
        self._stale: dict[ServicePortName, None] = {}
        """The service ports whose lines have to be rewritten."""
        self._lines: list[dict[ServicePortName, str]] = [{} for _ in SERIES]

    def exposition(
        self,
        counters: Mapping[FrontendName, Counters],
        ejected: Mapping[FrontendName, Sequence[EjectedEndpoint]] | None = None,
    ) -> Iterator[bytes]:
        """Yield the text in slices, some of which are empty. Only one iterator may run at a time. It need not run to
        its end."""
        read: Counters | None = None
        values = _NOTHING
        for batch in _batches(counters.items()):
            for name, now in batch:
                if now is not read:  # Frontends without clients may share one object.
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
            if min(more) < 0:
                # A gauge may fall. If a sum falls, the listener was opened again and counts from 0, so its whole value
                # is new. The frontend's other sums may continue, because the kernel's counters do not restart with the
                # listener.
                more = tuple(
                    value if is_sum and it < 0 else it for it, value, is_sum in zip(more, now, _IS_SUM, strict=True)
                )
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
        """Store the number of ejected endpoints of each service port. An endpoint counts once, however many workers and
        frontends have ejected it."""
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
            lines, number = self._lines[column], numbers[column]
            opening, closing, begins_at_once, begins_with_client = _LINES[column]
            if number or begins_at_once or (begins_with_client and row.used) or service_port in lines:
                lines[service_port] = f"{opening}{row.labels}{closing}{number}\n"
        row.written = numbers

    def _text(self) -> Iterator[bytes]:
        columns = iter(self._lines)
        for family in FAMILIES:
            yield f"# HELP {family.name} {family.text}\n# TYPE {family.name} {family.kind}\n".encode()
            for lines in islice(columns, len(family.series)):
                # Iterate over a copy: if this iterator is abandoned before its end, the next one changes the lines.
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
