from __future__ import annotations

import time
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from kubeproxy.dataplane.interface import Counters
from kubeproxy.model import Family, FrontendName, Scope, ServicePortName
from kubeproxy.observability.traffic import Traffic

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
    labels = (("namespace", port.namespace), ("port", port.port), ("service", port.name))
    return found["kubeproxy_connections_accepted_total", labels]


def test_every_counter_under_its_name() -> None:
    text = b"".join(
        Traffic().exposition(
            {V4: Counters(accepted=10, active=2, refused=3, dial_retries=4, bytes_in=5, bytes_out=2**60)}
        )
    )
    labels = (("namespace", "default"), ("port", "http"), ("service", "web"))
    assert samples(text) == {
        ("kubeproxy_connections_accepted_total", labels): 10,
        ("kubeproxy_connections_active", labels): 2,
        ("kubeproxy_connections_failed_total", labels): 3,
        ("kubeproxy_dial_retries_total", labels): 4,
        ("kubeproxy_forwarded_bytes_total", (("direction", "in"), *labels)): 5,
        ("kubeproxy_forwarded_bytes_total", (("direction", "out"), *labels)): 2**60,
    }
    kinds = {family.name: family.type for family in text_string_to_metric_families(text.decode())}
    assert kinds.pop("kubeproxy_connections_active") == "gauge"
    assert set(kinds.values()) == {"counter"}


def test_without_services_the_families_are_still_there() -> None:
    text = b"".join(Traffic().exposition({})).decode()
    assert text.count("# TYPE") == text.count("# HELP") == 5
    assert len(text.splitlines()) == 10


def test_families_and_scopes_of_a_service_port_are_one_sum() -> None:
    other = FrontendName(ServicePortName("default", "web", "metrics"), Family.IPV4)
    found = scrape(
        Traffic(),
        {V4: Counters(accepted=1), V6: Counters(accepted=2), LOCAL: Counters(accepted=4), other: Counters(accepted=8)},
    )
    assert accepted(found) == 7
    assert accepted(found, other.service_port) == 8


def test_the_sum_does_not_fall_when_one_of_its_frontends_goes() -> None:
    traffic = Traffic()
    scrape(traffic, {V4: Counters(accepted=100, active=1), V6: Counters(accepted=50, active=7)})
    found = scrape(traffic, {V4: Counters(accepted=101, active=1)})
    assert accepted(found) == 151
    assert found["kubeproxy_connections_active", (("namespace", "default"), ("port", "http"), ("service", "web"))] == 1
    found = scrape(traffic, {V4: Counters(accepted=101), V6: Counters(accepted=3)})
    assert accepted(found) == 154
    found = scrape(traffic, {V6: Counters(accepted=4)})
    assert accepted(found) == 155


def test_a_frontend_that_began_anew_goes_on_from_where_it_was() -> None:
    traffic = Traffic()
    scrape(traffic, {V4: Counters(accepted=100), V6: Counters(accepted=50)})
    assert accepted(scrape(traffic, {V4: Counters(accepted=100), V6: Counters(accepted=1)})) == 151


def test_a_service_port_that_went_and_came_back_is_a_new_one() -> None:
    traffic = Traffic()
    scrape(traffic, {V4: Counters(accepted=100), V6: Counters(accepted=1)})
    scrape(traffic, {V4: Counters(accepted=100)})
    assert all(name[1] == () for name in scrape(traffic, {}))
    assert accepted(scrape(traffic, {V4: Counters(accepted=2)})) == 2


@given(st.lists(st.dictionaries(st.sampled_from([V4, V6, LOCAL]), st.integers(0, 5), min_size=1), min_size=1))
def test_a_counter_never_falls_while_its_service_port_is_there(growth: list[dict[FrontendName, int]]) -> None:
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


def test_ten_thousand_services_come_in_small_slices() -> None:
    counters = {
        FrontendName(ServicePortName(f"namespace-{number % 50}", f"service-{number}", "http"), family): Counters(
            accepted=number, active=1, bytes_in=number * 1000, bytes_out=number * 5000
        )
        for number in range(10_000)
        for family in Family
    }
    traffic = Traffic()
    list(traffic.exposition(counters))
    slices, took = list[bytes](), list[float]()
    before = time.perf_counter()
    for part in traffic.exposition(counters):
        slices.append(part)
        took.append(time.perf_counter() - before)
        before = time.perf_counter()
    lines = b"".join(slices).count(b"\n")
    print(
        f"\n{len(counters)} frontends, {lines} lines, {sum(map(len, slices)) / 1e6:.1f} MB: "
        f"{sum(took) * 1e3:.0f} ms in {len(slices)} slices, the longest {max(took) * 1e3:.1f} ms"
    )
    assert lines == 6 * 10_000 + 10
    assert max(part.count(b"\n") for part in slices) <= 500
    assert len(slices) >= 6 * 10_000 / 500 + 20_000 / 500
