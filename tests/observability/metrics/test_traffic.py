from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from kubeproxy.dataplane.interface import Counters, EjectedEndpoint
from kubeproxy.model import Address, Family, FrontendName, Scope, ServicePortName, Target
from kubeproxy.observability.metrics.traffic import FAMILIES, SERIES, Traffic

WEB = ServicePortName("default", "web", "http")
V4 = FrontendName(WEB, Family.IPV4)
V6 = FrontendName(WEB, Family.IPV6)
LOCAL = FrontendName(WEB, Family.IPV4, Scope.LOCAL)

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(text: bytes) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"twice: {key}"
            found[key] = sample.value
    return found


def scrape(traffic: Traffic, counters: Mapping[FrontendName, Counters]) -> Samples:
    return samples(b"".join(traffic.exposition(counters)))


def accepted(found: Samples, port: ServicePortName = WEB) -> float:
    return of_port(found, "kubeproxy_connections_accepted_total", port)


def of_port(found: Samples, metric: str, port: ServicePortName = WEB) -> float:
    labels = (("namespace", port.namespace), ("port", port.port), ("service", port.name))
    return found[metric, labels]


LABELS = (("namespace", "default"), ("port", "http"), ("service", "web"))


def test_every_counter_has_its_metric() -> None:
    text = b"".join(
        Traffic().exposition(
            {
                V4: Counters(
                    accepted=10,
                    active=2,
                    refused=3,
                    silent=6,
                    no_endpoint=7,
                    unable=8,
                    dial_retries=4,
                    dropped=9,
                    evicted=11,
                    affinity_entries=12,
                    bytes_in=5,
                    bytes_out=2**60,
                    by_kernel=13,
                    kernel_open=14,
                    kernel_bytes_in=15,
                    kernel_bytes_out=16,
                )
            }
        )
    )
    failed = "kubeproxy_connections_failed_total"
    assert samples(text) == {
        ("kubeproxy_connections_accepted_total", LABELS): 10,
        ("kubeproxy_connections_active", LABELS): 2,
        (failed, (*LABELS[:2], ("reason", "refused"), LABELS[2])): 3,
        (failed, (*LABELS[:2], ("reason", "timeout"), LABELS[2])): 6,
        (failed, (*LABELS[:2], ("reason", "no_endpoint"), LABELS[2])): 7,
        (failed, (*LABELS[:2], ("reason", "local"), LABELS[2])): 8,
        ("kubeproxy_dial_retries_total", LABELS): 4,
        ("kubeproxy_forwarded_bytes_total", (("direction", "in"), *LABELS)): 5,
        ("kubeproxy_forwarded_bytes_total", (("direction", "out"), *LABELS)): 2**60,
        ("kubeproxy_udp_datagrams_dropped_total", LABELS): 9,
        ("kubeproxy_udp_sessions_evicted_total", LABELS): 11,
        ("kubeproxy_affinity_entries", LABELS): 12,
        ("kubeproxy_kernel_connections_total", LABELS): 13,
        ("kubeproxy_kernel_connections_open", LABELS): 14,
        ("kubeproxy_kernel_bytes_total", (("direction", "in"), *LABELS)): 15,
        ("kubeproxy_kernel_bytes_total", (("direction", "out"), *LABELS)): 16,
    }
    kinds = {family.name: family.type for family in text_string_to_metric_families(text.decode())}
    gauges = {
        "kubeproxy_connections_active",
        "kubeproxy_kernel_connections_open",
        "kubeproxy_affinity_entries",
        "kubeproxy_endpoints_ejected",
    }
    assert {name for name, kind in kinds.items() if kind == "gauge"} == gauges
    assert set(kinds.values()) == {"gauge", "counter"}


def test_labels_match_their_family() -> None:
    every = {series.counter: 1 for series in SERIES if series.counter}
    text = b"".join(Traffic().exposition({V4: Counters(**every)}, {V4: [ejected_by_port(1)]}))
    written = {
        family.name: {label for sample in family.samples for label in sample.labels}
        for family in text_string_to_metric_families(text.decode())
    }
    assert written == {family.name.removesuffix("_total"): set(family.labels) for family in FAMILIES}


def test_families_exist_without_services() -> None:
    text = b"".join(Traffic().exposition({})).decode()
    assert text.count("# TYPE") == text.count("# HELP") == len(FAMILIES)
    assert len(text.splitlines()) == 2 * len(FAMILIES)


def test_a_service_without_clients_has_one_series() -> None:
    traffic = Traffic()
    assert scrape(traffic, {V4: Counters()}) == {("kubeproxy_connections_accepted_total", LABELS): 0}
    found = scrape(traffic, {V4: Counters(accepted=1)})
    assert found["kubeproxy_connections_active", LABELS] == 0
    assert found["kubeproxy_connections_failed_total", (*LABELS[:2], ("reason", "local"), LABELS[2])] == 0
    assert not [name for name, _ in found if "udp" in name or "affinity" in name or "ejected_by_port" in name]


def test_a_series_stays_when_it_falls_to_zero() -> None:
    traffic = Traffic()
    scrape(traffic, {V4: Counters(accepted=1, active=1, affinity_entries=1)})
    found = scrape(traffic, {V4: Counters(accepted=1)})
    assert found["kubeproxy_affinity_entries", LABELS] == 0
    assert found["kubeproxy_connections_active", LABELS] == 0


def ejected_by_port(number: int, worker: int = 0) -> EjectedEndpoint:
    target = Target(Address(f"10.0.0.{number}"), 80)
    return EjectedEndpoint(target=target, worker=worker, reason="refused", failures=1, retry_in_s=1.0)


def test_an_ejected_endpoint_counts_once_for_its_service_port() -> None:
    traffic, counters = Traffic(), {V4: Counters(accepted=1), LOCAL: Counters(), V6: Counters()}

    def gauge(ejected: Mapping[FrontendName, Sequence[EjectedEndpoint]]) -> float | None:
        return samples(b"".join(traffic.exposition(counters, ejected))).get(("kubeproxy_endpoints_ejected", LABELS))

    assert gauge({}) is None
    assert (
        gauge({V4: [ejected_by_port(1), ejected_by_port(1, worker=1), ejected_by_port(2)], LOCAL: [ejected_by_port(1)]})
        == 2
    )
    assert gauge({LOCAL: [ejected_by_port(2)]}) == 1
    assert gauge({}) == 0
    gone = FrontendName(ServicePortName("a", "gone", ""), Family.IPV4)
    assert gauge({gone: [ejected_by_port(1)]}) == 0


def test_an_aborted_scrape_loses_nothing() -> None:
    traffic = Traffic()
    next(traffic.exposition({V4: Counters(accepted=5), V6: Counters(accepted=2)}))
    assert accepted(scrape(traffic, {V4: Counters(accepted=6), V6: Counters(accepted=2)})) == 8


def test_families_and_scopes_of_a_service_port_are_one_sum() -> None:
    other = FrontendName(ServicePortName("default", "web", "metrics"), Family.IPV4)
    found = scrape(
        Traffic(),
        {V4: Counters(accepted=1), V6: Counters(accepted=2), LOCAL: Counters(accepted=4), other: Counters(accepted=8)},
    )
    assert accepted(found) == 7
    assert accepted(found, other.service_port) == 8


def test_the_sum_does_not_fall_when_a_frontend_is_removed() -> None:
    traffic = Traffic()
    scrape(traffic, {V4: Counters(accepted=100, active=1), V6: Counters(accepted=50, active=7)})
    found = scrape(traffic, {V4: Counters(accepted=101, active=1)})
    assert accepted(found) == 151
    assert found["kubeproxy_connections_active", (("namespace", "default"), ("port", "http"), ("service", "web"))] == 1
    found = scrape(traffic, {V4: Counters(accepted=101), V6: Counters(accepted=3)})
    assert accepted(found) == 154
    found = scrape(traffic, {V6: Counters(accepted=4)})
    assert accepted(found) == 155


def test_a_restarted_frontend_continues_the_sum() -> None:
    traffic = Traffic()
    scrape(traffic, {V4: Counters(accepted=100), V6: Counters(accepted=50, by_kernel=1000)})
    found = scrape(traffic, {V4: Counters(accepted=100), V6: Counters(accepted=1, by_kernel=1002)})
    assert accepted(found) == 151
    assert of_port(found, "kubeproxy_kernel_connections_total") == 1002, "the kernel's count did not begin again"


def test_a_removed_service_port_starts_from_zero() -> None:
    traffic = Traffic()
    scrape(traffic, {V4: Counters(accepted=100), V6: Counters(accepted=1)})
    scrape(traffic, {V4: Counters(accepted=100)})
    assert all(name[1] == () for name in scrape(traffic, {}))
    assert accepted(scrape(traffic, {V4: Counters(accepted=2)})) == 2


@settings(deadline=None)  # a loaded machine is slow
@given(st.lists(st.dictionaries(st.sampled_from([V4, V6, LOCAL]), st.integers(0, 5), min_size=1), min_size=1))
def test_a_counter_never_falls_while_its_service_port_exists(growth: list[dict[FrontendName, int]]) -> None:
    traffic, standing, total, before = Traffic(), dict[FrontendName, int](), 0, 0.0
    for step in growth:
        standing = {name: standing.get(name, 0) + more for name, more in step.items()}
        total += sum(step.values())
        now = accepted(scrape(traffic, {name: Counters(accepted=value) for name, value in standing.items()}))
        assert now == total
        assert now >= before
        before = now


def test_label_values_are_escaped() -> None:
    odd = ServicePortName("a\\b", 'c"d', "e\nf")
    found = scrape(Traffic(), {FrontendName(odd, Family.IPV4): Counters(accepted=1)})
    assert accepted(found, odd) == 1


@pytest.mark.parametrize("used", [4_000, 500], ids=["all used", "500 used"])
def test_thousands_of_services_come_in_small_slices(used: int) -> None:
    """Dual-stack: 8,000 frontends. `pytest -s` prints the figures."""

    def counters(visits: int) -> dict[FrontendName, Counters]:
        return {
            FrontendName(ServicePortName(f"namespace-{number % 50}", f"service-{number}", "http"), family): Counters(
                accepted=visits, active=1, bytes_in=visits * 1000, bytes_out=visits * 5000
            )
            if number < used
            else Counters()
            for number in range(4_000)
            for family in Family
        }

    traffic = Traffic()
    for story, visits in (("the first", 7), ("nothing new", 7), ("all that are used have news", 8)):
        now = counters(visits)
        slices, took = list[bytes](), list[float]()
        before = time.perf_counter()
        for part in traffic.exposition(now):
            slices.append(part)
            took.append(time.perf_counter() - before)
            before = time.perf_counter()
        print(
            f"\n{story}: {len(now)} frontends, {sum(map(len, slices)) / 1e6:.1f} MB: {sum(took) * 1e3:.0f} ms in "
            f"{len(slices)} slices, the longest {max(took) * 1e3:.1f} ms",
            end="",
        )
        assert b"".join(slices).count(b"\n") == 4_000 + 8 * used + 2 * len(FAMILIES)
        assert max(part.count(b"\n") for part in slices) <= 1000
        assert len(slices) >= 8 + (4_000 + 8 * used) // 1000
