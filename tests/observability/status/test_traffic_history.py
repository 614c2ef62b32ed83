from __future__ import annotations

import pytest

from kubeproxy.dataplane.interface import Counters
from kubeproxy.model import Family, FrontendName, ServiceName, ServicePortName
from kubeproxy.observability.status.document import Rates
from kubeproxy.observability.status.traffic_history import POINTS, SLICE, History

WEB, MAIL = ServiceName("shop", "web"), ServiceName("shop", "mail")


def frontend(service: ServiceName, port: str = "http", family: Family = Family.IPV4) -> FrontendName:
    return FrontendName(ServicePortName(*service, port), family)


def add(history: History, now: float, counters: dict[FrontendName, Counters]) -> int:
    return len(list(history.add(counters, now)))


def test_one_sample_gives_no_rates() -> None:
    history = History(gap_s=10)
    add(history, 1.0, {frontend(WEB): Counters(accepted=5)})
    assert history.rates(WEB) is None
    assert history.trend(WEB) is None


def test_rates_cover_the_last_interval_and_all_frontends() -> None:
    history = History(gap_s=10)
    add(history, 10.0, {frontend(WEB): Counters(accepted=5), frontend(WEB, "https"): Counters()})
    later = {
        frontend(WEB): Counters(accepted=9, bytes_in=200, bytes_out=2000),
        frontend(WEB, "https"): Counters(accepted=2, silent=1, refused=1, bytes_in=20),
    }
    add(history, 12.0, later)
    assert history.rates(WEB) == Rates(connections=3.0, failures=1.0, bytes_in=110.0, bytes_out=1000.0)
    assert history.rates(None) == history.rates(WEB)
    assert history.rates(MAIL) == Rates()
    trend = history.trend(WEB)
    assert trend is not None
    assert len(trend.connections) == POINTS
    assert (trend.connections[-1], trend.failures[-1], trend.bytes[-1]) == (3.0, 1.0, 1110.0)
    assert not any(trend.connections[:-1])
    add(history, 14.0, later)
    assert history.rates(WEB) == Rates()
    trend = history.trend(WEB)
    assert trend is not None
    assert trend.connections[-2:] == (3.0, 0.0)


def test_the_series_of_an_idle_service_is_dropped() -> None:
    history = History(gap_s=10)
    add(history, 0.0, {frontend(WEB): Counters(), frontend(MAIL): Counters()})
    for tick in range(1, POINTS + 1):
        add(history, 2.0 * tick, {frontend(WEB): Counters(accepted=1), frontend(MAIL): Counters(accepted=tick)})
    trend = history.trend(WEB)
    assert trend is not None
    assert trend.connections == (0.5, *([0.0] * (POINTS - 1)))
    assert len(history) == 2
    add(history, 2.0 * POINTS + 2, {frontend(WEB): Counters(accepted=1), frontend(MAIL): Counters(accepted=99)})
    assert len(history) == 1
    assert history.trend(WEB) is None
    assert history.rates(WEB) == Rates()


def test_a_ring_shows_no_old_points_after_a_pause() -> None:
    history = History(gap_s=10)
    add(history, 0.0, {frontend(WEB): Counters()})
    accepted = {1: 2, 2: 4, 40: 6, 70: 8}
    so_far = 0
    for tick in range(1, 75):
        so_far = accepted.get(tick, so_far)
        add(history, 2.0 * tick, {frontend(WEB): Counters(accepted=so_far)})
    trend = history.trend(WEB)
    assert trend is not None
    shown = {74 - POINTS + 1 + place: value for place, value in enumerate(trend.connections) if value}
    assert shown == {40: 1.0, 70: 1.0}


@pytest.mark.parametrize("after", [Counters(accepted=1), Counters(accepted=1000)])
def test_a_new_or_restarted_frontend_is_no_burst(after: Counters) -> None:
    history = History(gap_s=10)
    add(history, 0.0, {frontend(MAIL): Counters(accepted=50)})
    add(history, 2.0, {frontend(WEB if after.accepted > 50 else MAIL): after})
    assert history.rates(None) == Rates()


def test_a_gap_restarts_the_history() -> None:
    history = History(gap_s=10)
    add(history, 0.0, {frontend(WEB): Counters()})
    add(history, 2.0, {frontend(WEB): Counters(accepted=4)})
    add(history, 60.0, {frontend(WEB): Counters(accepted=4000)})
    assert history.rates(WEB) is None
    add(history, 62.0, {frontend(WEB): Counters(accepted=4002)})
    assert history.rates(WEB) == Rates(connections=1.0)


def test_a_large_sample_is_added_in_slices_and_only_busy_services_are_kept() -> None:
    names = [frontend(ServiceName("shop", str(number))) for number in range(10_000)]
    history = History(gap_s=10)
    add(history, 0.0, {name: Counters() for name in names})
    busy = {name: Counters(accepted=number < 100) for number, name in enumerate(names)}
    assert add(history, 2.0, busy) == 10_000 // SLICE
    assert len(history) == 100
