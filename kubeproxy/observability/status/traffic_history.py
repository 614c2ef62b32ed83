"""Keeps the recent traffic of each Service as short time series.

Every sample adds one point to the series of each Service. A series exists only while one of its points has traffic. So
memory is bounded by the number of active Services, at about 1.5 KiB each.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kubeproxy.dataplane.interface import Counters
from kubeproxy.model import FrontendName, ServiceName
from kubeproxy.observability.status.document import Rates, Trend

POINTS: Final = 60
"""The number of points of a series."""
SLICE: Final = 500
"""How many frontends are processed between two yields."""

Amounts = tuple[int, int, int, int]
"""The number of connections, of failures, of bytes in, and of bytes out."""


class _Series:
    """The last `POINTS` points of one Service, in ring buffers."""

    __slots__ = ("last", "rings")

    def __init__(self, tick: int) -> None:
        self.last = tick
        self.rings = tuple(array("f", bytes(4 * POINTS)) for _ in range(4))

    def put(self, tick: int, values: tuple[float, ...]) -> None:
        self._catch_up(tick)
        for ring, value in zip(self.rings, values, strict=True):
            ring[tick % POINTS] = value

    def _catch_up(self, tick: int) -> None:
        for skipped in range(max(self.last + 1, tick - POINTS + 1), tick + 1):
            for ring in self.rings:
                ring[skipped % POINTS] = 0.0
        self.last = tick

    def rates(self, tick: int) -> Rates:
        return Rates(*(ring[tick % POINTS] for ring in self.rings)) if tick == self.last else Rates()

    def trend(self, tick: int) -> Trend:
        old = max(self.last, tick - POINTS)
        shown = range(tick - POINTS + 1, tick + 1)
        connections, failures, inward, outward = (
            tuple(round(ring[at % POINTS], 3) if at <= old else 0.0 for at in shown) for ring in self.rings
        )
        return Trend(connections, failures, tuple(map(sum, zip(inward, outward, strict=True))))


@dataclass(frozen=True, slots=True)
class _Before:
    at: float
    counters: Mapping[FrontendName, Counters]


class History:
    """The time series of each Service. Call `add` at regular intervals. A gap of more than `gap_s` seconds restarts the
    history."""

    def __init__(self, *, gap_s: float) -> None:
        self._gap_s = gap_s
        self._before: _Before | None = None
        self._tick = 0
        self._series: dict[ServiceName, _Series] = {}
        self._total = _Series(0)

    def add(self, counters: Mapping[FrontendName, Counters], now: float) -> Iterator[None]:
        """Add a sample, and yield between slices of work. Run each iterator to its end before you start the next
        one."""
        before, self._before = self._before, _Before(now, counters)
        if before is None or not 0 < now - before.at <= self._gap_s:
            self._series.clear()
            self._total = _Series(self._tick)
            self._known = False
            return
        moved: dict[ServiceName, Amounts] = {}
        for number, (name, after) in enumerate(counters.items()):
            if any(amounts := _moved(before.counters.get(name), after)):
                service = name.service_port.service
                so_far = moved.get(service)
                moved[service] = amounts if so_far is None else _sum(so_far, amounts)
            if number % SLICE == SLICE - 1:
                yield
        self._put(moved, now - before.at)

    _known = False
    """Whether the rates of the last interval are known."""

    def _put(self, moved: Mapping[ServiceName, Amounts], interval_s: float) -> None:
        self._tick += 1
        tick = self._tick
        for service, amounts in moved.items():
            series = self._series.get(service)
            if series is None:
                series = self._series[service] = _Series(tick)
            series.put(tick, tuple(amount / interval_s for amount in amounts))
        for service in [service for service, series in self._series.items() if tick - series.last >= POINTS]:
            del self._series[service]
        total: Amounts = (0, 0, 0, 0)
        for amounts in moved.values():
            total = _sum(total, amounts)
        self._total.put(tick, tuple(amount / interval_s for amount in total))
        self._known = True

    def rates(self, service: ServiceName | None) -> Rates | None:
        """Return the rates of a Service, or the sum over all if `service` is None. Return None until there are two
        samples."""
        if not self._known:
            return None
        series = self._total if service is None else self._series.get(service)
        return Rates() if series is None else series.rates(self._tick)

    def trend(self, service: ServiceName | None) -> Trend | None:
        """Return the trend of a Service, or the sum over all if `service` is None. Return None if there was no
        traffic."""
        series = self._total if service is None else self._series.get(service)
        return None if series is None or not self._known else series.trend(self._tick)

    def __len__(self) -> int:
        return len(self._series)


def _moved(before: Counters | None, after: Counters) -> Amounts:
    if before is None or before.accepted > after.accepted:
        return (0, 0, 0, 0)  # The frontend is new here; its counts are from before the interval.
    return (
        after.accepted - before.accepted + max(0, after.by_kernel - before.by_kernel),
        max(0, after.failed - before.failed),
        max(0, after.bytes_in - before.bytes_in) + max(0, after.kernel_bytes_in - before.kernel_bytes_in),
        max(0, after.bytes_out - before.bytes_out) + max(0, after.kernel_bytes_out - before.kernel_bytes_out),
    )


def _sum(one: Amounts, other: Amounts) -> Amounts:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2], one[3] + other[3]
