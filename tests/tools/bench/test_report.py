"""Medians, ratios, the table and the chart, without measuring anything."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from tests.tools.bench.chart import PANELS, Panel, chart
from tests.tools.bench.measures import LOADS, REQUESTS, Bulk, Latency, WrkSums
from tests.tools.bench.memory import IdleConnections, IdleDaemon
from tests.tools.bench.report import (
    AIMS,
    Aim,
    Described,
    Results,
    Sample,
    Section,
    document,
    put_between_marks,
    table,
    verdict,
)
from tests.tools.bench.scale import SCENARIOS, Scale

PEERS = ("direct", "haproxy", "kubeproxy")

OTHER_FIGURES = {"cpu_s": 0.1, "busy_percent": 99.0, "p99_us": 900.0}


def rounds(measure: str, metric: str, **by_peer: list[float]) -> Results:
    return Results(
        [
            Sample(number, measure, peer, {**OTHER_FIGURES, metric: figure})
            for peer, figures in by_peer.items()
            for number, figure in enumerate(figures, start=1)
        ],
    )


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    # The second round was slow for every peer: neither side of its ratio may be compared with another round's.
    results = rounds("bulk8", "gbit_per_s", haproxy=[4.0, 1.0, 5.0], kubeproxy=[8.0, 3.0, 10.0])
    assert results.median("bulk8", "gbit_per_s", "kubeproxy") == 8.0
    assert results.ratio("bulk8", "gbit_per_s", "kubeproxy", "haproxy") == 2.0


def test_nothing_is_compared_with_nothing() -> None:
    results = rounds("bulk8", "cpu_s", direct=[0.0, 0.0], kubeproxy=[0.5, 0.6])
    assert results.ratio("bulk8", "cpu_s", "kubeproxy", "direct") is None
    assert results.ratio("bulk8", "cpu_s", "kubeproxy", "haproxy") is None
    assert results.median("bulk8", "cpu_s", "haproxy") is None


def test_the_cpu_of_all_is_compared_with_plain_dnat_in_the_same_round() -> None:
    results = Results()
    for number, (dnat, kernel) in enumerate([(1.0, 1.2), (2.0, 2.2), (4.0, 8.0)]):
        for peer, figure in (("dnat", dnat), ("kernel", kernel)):
            results.samples.append(Sample(number, "connections", peer, {"all_cpu_s": figure}))
    assert results.median("connections", "times_dnat_all_cpu_s", "kernel") == pytest.approx(1.2)
    assert results.median("connections", "times_dnat_all_cpu_s", "dnat") == 1.0
    alone = Results([Sample(1, "connections", "kernel", {"all_cpu_s": 1.0})])
    assert alone.median("connections", "times_dnat_all_cpu_s", "kernel") is None


def test_added_latency_is_what_the_same_rounds_direct_path_did_not_have() -> None:
    results = rounds("latency", "p50_us", direct=[100.0, 300.0], haproxy=[150.0, 380.0], kubeproxy=[200.0, 360.0])
    assert results.median("latency", "added_p50_us", "haproxy") == 65.0
    assert results.ratio("latency", "added_p50_us", "kubeproxy", "haproxy") == pytest.approx((100 / 50 + 60 / 80) / 2)
    assert results.median("latency", "added_p50_us", "direct") is None


@pytest.mark.parametrize(("ours", "said"), [(15.0, "✓ 1.50 ≥ 1.5 × haproxy"), (14.9, "✗ 1.49 ≥ 1.5 × haproxy")])
def test_the_table_shows_whether_an_aim_was_met(ours: float, said: str) -> None:
    results = rounds("bulk8", "gbit_per_s", direct=[30.0], haproxy=[10.0], kubeproxy=[ours])
    lines = table(results, [Section("one core", PEERS, [Bulk(8)])]).splitlines()
    assert lines[0].split() == ["one", "core", "direct", "haproxy", "kubeproxy", "aim"]
    assert lines[1] == "bulk, 8 streams"
    assert lines[2].split()[:4] == ["Gbit/s", "30.00", "10.00", f"{ours:.2f}"]
    assert said in lines[2]


def test_an_aim_may_be_a_ceiling_and_a_figure_by_itself() -> None:
    ceiling = Aim("idle", "pss_kib", "kubeproxy", 3.0, at_most=True)
    assert str(ceiling) == "≤ 3"
    assert ceiling.met(2.9)
    assert not ceiling.met(3.1)
    assert verdict(ceiling, 2.9) == "✓ 2.90 ≤ 3"
    assert verdict(ceiling, 300.0, named=True) == "✗ kubeproxy 300 ≤ 3"


def test_every_aim_is_about_something_that_is_measured() -> None:
    measures: list[Described] = [*LOADS, IdleConnections(), IdleDaemon(), Scale(10)]
    known = {(measure.name, metric.key) for measure in measures for metric in measure.metrics}
    assert {(aim.measure, aim.metric) for aim in AIMS} <= known
    names = {"kubeproxy", "kubeproxy3", *IdleDaemon.sources, *(scenario.name for scenario in SCENARIOS)}
    assert {aim.ours for aim in AIMS} <= names


def test_sections_of_which_nothing_was_measured_are_left_out() -> None:
    results = rounds("bulk8", "gbit_per_s", haproxy=[10.0])
    sections = [Section("one core", PEERS, [Bulk(8), Latency()]), Section("scale", ["API"], [Scale(10)])]
    written = table(results, sections)
    assert "bulk" in written
    assert "latency" not in written
    assert "scale" not in written


def test_the_document_holds_samples_summary_and_aims() -> None:
    results = rounds("latency", "p50_us", direct=[100.0], haproxy=[150.0], kubeproxy=[120.0])
    aims = [Aim("latency", "added_p50_us", "kubeproxy", 1.0, "haproxy", at_most=True)]
    written = document(results, [Section("one core", PEERS, [Latency()])], aims, machine={"cores": 4})
    assert written["machine"] == {"cores": 4}
    assert written["summary"]["latency"]["p50_us"]["median"] == {"direct": 100, "haproxy": 150, "kubeproxy": 120}
    assert written["summary"]["latency"]["added_p50_us"]["median"] == {"haproxy": 50, "kubeproxy": 20}
    assert [(verdict["met"], verdict["standing"]) for verdict in written["aims"]] == [(True, pytest.approx(20 / 50))]
    assert len(written["samples"]) == 3


def test_a_page_gets_the_tables_between_its_marks() -> None:
    page = "before\n<!-- figures: begin -->\nold\n<!-- figures: end -->\nafter\n"
    once = put_between_marks(page, "new")
    assert once == "before\n<!-- figures: begin -->\n```text\nnew\n```\n<!-- figures: end -->\nafter\n"
    assert put_between_marks(once, "new") == once
    with pytest.raises(ValueError, match="no <!-- figures: begin"):
        put_between_marks("nothing", "new")


def test_wrk_sums_are_read_from_its_output() -> None:
    output = 'Running 1s test @ http://10.0.0.1/\n  2 threads\n{"sums": [1200, 2000000, 3]}\n'
    assert WrkSums.parse(output) == WrkSums(requests=1200, seconds=2.0, errors=3)
    with pytest.raises(AssertionError, match="no sums"):
        WrkSums.parse("unable to connect")


def test_failures_are_in_the_table_only_when_there_were_any() -> None:
    figures = {"per_s": 10.0, "cpu_s": 1.0, "busy_percent": 99.0}
    section = Section("one core", ["haproxy"], [REQUESTS])
    calm = Results([Sample(1, "requests", "haproxy", {**figures, "errors": 0})])
    services_degraded = Results([Sample(1, "requests", "haproxy", {**figures, "errors": 7})])
    assert "failed" not in table(calm, [section])
    assert "failed" in table(services_degraded, [section])


def test_the_chart_is_an_svg_of_what_was_measured() -> None:
    results = rounds("bulk8", "gbit_per_s", direct=[30.0], haproxy=[10.0], kubeproxy=[20.0])
    root = ElementTree.fromstring(chart(results))
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"Bulk, Gbit/s", "direct", "haproxy", "kubeproxy", "30.0", "10.0", "20.0"} <= set(texts)
    assert "nginx" not in texts
    assert "Requests per second" not in texts
    lengths = {
        element.get("width")
        for element in root.iter("{http://www.w3.org/2000/svg}rect")
        if element.get("class") in ("ours", "theirs") and float(element.get("height", "0")) > 0
    }
    assert len(lengths) >= 3


def test_a_chart_of_nothing_is_a_chart_all_the_same() -> None:
    assert ElementTree.fromstring(chart(Results(), [Panel("a <b>", "", "x", "y", ("direct",))])) is not None


def test_every_panel_is_about_something_that_is_measured() -> None:
    measures: list[Described] = [*LOADS, IdleConnections()]
    known = {(measure.name, metric.key) for measure in measures for metric in measure.metrics}
    assert {(panel.measure, panel.metric) for panel in PANELS} <= known
