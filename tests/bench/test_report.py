"""Medians, ratios and the table, without measuring anything."""

from __future__ import annotations

import pytest

from tests.bench.measures import Bulk, Http, Latency, WrkSums
from tests.bench.report import Aim, Results, Sample, document, table

PEERS = ["direct", "haproxy", "kubeproxy"]


OTHER_FIGURES = {"cpu_s": 0.1, "busy_percent": 99.0, "p99_us": 900.0}


def rounds(measure: str, metric: str, **by_peer: list[float]) -> Results:
    return Results(
        PEERS,
        [
            Sample(number, measure, peer, {**OTHER_FIGURES, metric: figure})
            for peer, figures in by_peer.items()
            for number, figure in enumerate(figures, start=1)
        ],
    )


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    # The second round was slow for everybody: neither side of its ratio may be held against another round's.
    results = rounds("bulk8", "gbit_per_s", haproxy=[4.0, 1.0, 5.0], kubeproxy=[8.0, 3.0, 10.0])
    assert results.median("bulk8", "gbit_per_s", "kubeproxy") == 8.0
    assert results.ratio("bulk8", "gbit_per_s", "kubeproxy", "haproxy") == 2.0


def test_nothing_is_compared_with_nothing() -> None:
    results = rounds("bulk8", "cpu_s", direct=[0.0, 0.0], kubeproxy=[0.5, 0.6])
    assert results.ratio("bulk8", "cpu_s", "kubeproxy", "direct") is None
    assert results.ratio("bulk8", "cpu_s", "kubeproxy", "haproxy") is None
    assert results.median("bulk8", "cpu_s", "haproxy") is None


def test_added_latency_is_what_the_same_rounds_direct_path_did_not_have() -> None:
    results = rounds("latency", "p50_us", direct=[100.0, 300.0], haproxy=[150.0, 380.0], kubeproxy=[200.0, 360.0])
    assert results.median("latency", "added_p50_us", "haproxy") == 65.0
    assert results.ratio("latency", "added_p50_us", "kubeproxy", "haproxy") == pytest.approx((100 / 50 + 60 / 80) / 2)
    assert results.median("latency", "added_p50_us", "direct") is None


@pytest.mark.parametrize(("ours", "verdict"), [(13.0, "≥ 1.3 × haproxy: met"), (12.9, "≥ 1.3 × haproxy: MISSED")])
def test_the_table_says_whether_an_aim_was_met(ours: float, verdict: str) -> None:
    results = rounds("bulk8", "gbit_per_s", direct=[30.0], haproxy=[10.0], kubeproxy=[ours])
    lines = table(results, [Bulk(8)]).splitlines()
    assert lines[0].split() == ["direct", "haproxy", "kubeproxy", "÷", "direct", "÷", "haproxy", "aim"]
    assert lines[1] == "bulk, 8 streams"
    assert lines[2].split()[:4] == ["Gbit/s", "30.00", "10.00", f"{ours:.2f}"]
    assert lines[2].endswith(verdict)


def test_an_aim_may_be_a_ceiling() -> None:
    ceiling = Aim("latency", "p50_us", 1.0, "haproxy", at_most=True)
    assert str(ceiling) == "≤ 1 × haproxy"
    assert ceiling.met(0.9)
    assert not ceiling.met(1.1)


def test_the_document_holds_samples_summary_and_aims() -> None:
    results = rounds("latency", "p50_us", direct=[100.0], haproxy=[150.0], kubeproxy=[120.0])
    aims = [Aim("latency", "p50_us", 1.0, "haproxy", at_most=True)]
    written = document(results, [Latency()], aims, machine={"cores": 4})
    assert written["machine"] == {"cores": 4}
    assert written["summary"]["latency"]["p50_us"]["median"] == {"direct": 100, "haproxy": 150, "kubeproxy": 120}
    assert written["summary"]["latency"]["added_p50_us"]["ratio"]["haproxy"] == pytest.approx(20 / 50)
    assert [verdict["met"] for verdict in written["aims"]] == [True]
    assert len(written["samples"]) == 3


def test_wrk_sums_are_read_from_its_output() -> None:
    output = 'Running 1s test @ http://10.0.0.1/\n  2 threads\n{"sums": [1200, 2000000, 3]}\n'
    assert WrkSums.parse(output) == WrkSums(requests=1200, seconds=2.0, errors=3)
    with pytest.raises(AssertionError, match="no sums"):
        WrkSums.parse("unable to connect")


def test_failures_are_in_the_table_only_when_there_were_any() -> None:
    measure = Http(kept_alive=True)
    figures = {"per_s": 10.0, "cpu_s": 1.0, "busy_percent": 99.0}
    calm = Results(["haproxy"], [Sample(1, "requests", "haproxy", {**figures, "errors": 0})])
    troubled = Results(["haproxy"], [Sample(1, "requests", "haproxy", {**figures, "errors": 7})])
    assert "failed" not in table(calm, [measure])
    assert "failed" in table(troubled, [measure])
