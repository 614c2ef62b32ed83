"""Every alert fires when it should and only then: promtool, Prometheus' own judge, says so."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from docs.generators.metrics import scrape
from tests.system.deploy.manifests import MONITORING, ROOT, read, rules

promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not here (package prometheus)")

SERVICE = 'job="kubeproxy",instance="a",namespace="shop",service="web",port="http"'
NODE = 'job="kubeproxy",instance="a"'
WORKER = f'{NODE},worker="0"'


@dataclass(frozen=True, slots=True)
class Case:
    """Series for an alert to fire and for it to keep still, one value a minute (promtool's notation)."""

    fires: dict[str, str]
    still: dict[str, str]
    minutes: int = 30


def lag(metric: str, slow: int) -> dict[str, str]:
    """A histogram in which of every hundred turns `slow` are slow."""
    return {
        f'{metric}_bucket{{{NODE},le="0.1"}}': f"0+{100 - slow}x60",
        f'{metric}_bucket{{{NODE},le="1.0"}}': "0+100x60",
        f'{metric}_bucket{{{NODE},le="+Inf"}}': "0+100x60",
    }


def failures(metric: str, labels: str = NODE) -> Case:
    """A counter of failures: one every other minute, or two in all."""
    return Case({f"{metric}{{{labels}}}": "0+0.5x60"}, {f"{metric}{{{labels}}}": "0x20 1x5 2x40"})


SYNC = "kubeproxy_sync_proxy_rules"
REFUSED = {
    f'{SYNC}_nftables_sync_failures_total{{{NODE},ip_family="IPv4"}}': "0+1x60",
    f'{SYNC}_iptables_restore_failures_total{{{NODE},ip_family="IPv4"}}': "0x60",
}

CASES = {
    "KubeproxyRescueInert": Case(
        {
            f"kubeproxy_rescue_working{{{NODE}}}": "1x5 0x60",
            f'kubeproxy_data_path_frontends{{{NODE},data_path="kernel"}}': "3x60",
        },
        {
            f"kubeproxy_rescue_working{{{NODE}}}": "1x5 0x60",
            f'kubeproxy_data_path_frontends{{{NODE},data_path="kernel"}}': "0x60",
        },
    ),
    "KubeproxyRescueOverflows": Case(
        {f"kubeproxy_rescue_overflows_total{{{NODE}}}": "0+1x60"},
        {f"kubeproxy_rescue_overflows_total{{{NODE}}}": "5x60"},
    ),
    "KubeproxyDown": Case({'up{job="other"}': "1x60"}, {f"up{{{NODE}}}": "0x5 1x60"}),
    "KubeproxyInstanceDown": Case({f"up{{{NODE}}}": "1x5 0x60"}, {f"up{{{NODE}}}": "1x10 0x2 1x60"}, minutes=15),
    "KubeproxyDataPlaneDegraded": Case(
        {f'kubeproxy_degraded{{{NODE},reason="workers"}}': "0x5 1x60"},
        {
            f'kubeproxy_degraded{{{NODE},reason="workers"}}': "0x60",
        },
    ),
    "KubeproxyDegraded": Case(
        {f'kubeproxy_degraded{{{NODE},reason="leftovers"}}': "0x5 1x60"},
        {f'kubeproxy_degraded{{{NODE},reason="{own}"}}': "1x60" for own in ("draining", "manifests", "access-log")},
    ),
    "KubeproxyConntrackFull": Case(
        {f"kubeproxy_conntrack_entries{{{NODE}}}": "950x60", f"kubeproxy_conntrack_limit{{{NODE}}}": "1000x60"},
        {
            f"kubeproxy_conntrack_entries{{{NODE}}}": "850x60",
            f"kubeproxy_conntrack_limit{{{NODE}}}": "1000x60",
            f"kubeproxy_conntrack_dropped_total{{{NODE}}}": "7x60",
        },
    ),
    "KubeproxyAccessLogLosesLines": Case(
        {f"kubeproxy_access_log_lost_lines_total{{{NODE}}}": "0+1x60"},
        {
            f"kubeproxy_access_log_lost_lines_total{{{NODE}}}": "7x60",
            f"kubeproxy_access_log_skipped_connections_total{{{NODE}}}": "2x60",
        },
    ),
    "KubeproxyWorkerRestarts": Case(
        {f"kubeproxy_worker_restarts_total{{{NODE}}}": "0x20 1x60"},
        {f"kubeproxy_worker_restarts_total{{{NODE}}}": "0x5 1x60"},
    ),
    # Time begins at 0: a change came at 600, and the last sync was at 590.
    "KubeproxySyncStale": Case(
        {
            f'{SYNC}_last_queued_timestamp_seconds{{{NODE},ip_family="IPv4"}}': "600x60",
            f'{SYNC}_last_timestamp_seconds{{{NODE},ip_family="IPv4"}}': "590x60",
        },
        {
            # Nothing has changed for long, and then very often; the syncs keep up.
            f'{SYNC}_last_queued_timestamp_seconds{{{NODE},ip_family="IPv4"}}': "600x20 1260+60x60",
            f'{SYNC}_last_timestamp_seconds{{{NODE},ip_family="IPv4"}}': "601x20 1200+60x60",
        },
    ),
    "KubeproxySyncFailing": Case(
        REFUSED | {f'{SYNC}_duration_seconds_count{{{NODE},ip_family="IPv4"}}': "5x60"},
        REFUSED | {f'{SYNC}_duration_seconds_count{{{NODE},ip_family="IPv4"}}': "0+1x60"},
    ),
    "KubeproxyNetfilterFailures": failures("kubeproxy_netfilter_apply_failures_total", f'{NODE},adapter="nftables"'),
    "KubeproxyConntrackFailures": failures("kubeproxy_conntrack_failures_total"),
    "KubeproxyServicesDegraded": Case(
        {f"kubeproxy_services_degraded{{{NODE}}}": "0x5 2x60"},
        {f"kubeproxy_services_degraded{{{NODE}}}": "2x5 0 2x60"},
        minutes=21,
    ),
    "KubeproxyWatchStale": Case(
        {f'kubeproxy_watch_behind_seconds{{{NODE},resource="services"}}': "0x5 60+60x60"},
        {f'kubeproxy_watch_behind_seconds{{{NODE},resource="services"}}': "0x20 60 120 0x60"},
    ),
    "KubeproxyConfigurationFaulty": Case(
        {f"kubeproxy_config_last_reload_successful{{{NODE}}}": "1x5 0x60"},
        {f"kubeproxy_config_last_reload_successful{{{NODE}}}": "0x10 1x60"},
    ),
    "KubeproxyManifestsFaulty": Case(
        {f"kubeproxy_manifests_faults{{{NODE}}}": "1x60"}, {f"kubeproxy_manifests_faults{{{NODE}}}": "1x10 0x60"}
    ),
    "KubeproxyManifestsWarnings": Case(
        {f"kubeproxy_manifests_warnings{{{NODE}}}": "2x60"}, {f"kubeproxy_manifests_warnings{{{NODE}}}": "2x10 0x60"}
    ),
    "KubeproxyDialFailures": Case(
        {
            f"kubeproxy_connections_accepted_total{{{SERVICE}}}": "0+600x60",
            f'kubeproxy_connections_failed_total{{{SERVICE},reason="timeout"}}': "0+20x60",
            f'kubeproxy_connections_failed_total{{{SERVICE},reason="refused"}}': "0+20x60",
        },
        {
            f"kubeproxy_connections_accepted_total{{{SERVICE}}}": "0+600x60",
            f'kubeproxy_connections_failed_total{{{SERVICE},reason="timeout"}}': "0+20x60",
            # A Service without endpoints is its owner's affair.
            f'kubeproxy_connections_failed_total{{{SERVICE},reason="no_endpoint"}}': "0+300x60",
        },
    ),
    "KubeproxyEndpointsEjected": Case(
        {f"kubeproxy_endpoints_ejected{{{SERVICE}}}": "1x60"},
        {f"kubeproxy_endpoints_ejected{{{SERVICE}}}": "1x14 0 1x60"},
        minutes=20,
    ),
    "KubeproxyDescriptorsLow": Case(
        {f"kubeproxy_descriptors_used{{{WORKER}}}": "810x60", f"kubeproxy_descriptors_limit{{{WORKER}}}": "1000x60"},
        {f"kubeproxy_descriptors_used{{{WORKER}}}": "790x60", f"kubeproxy_descriptors_limit{{{WORKER}}}": "1000x60"},
    ),
    "KubeproxyAcceptPaused": Case(
        {f"kubeproxy_accept_paused_total{{{NODE}}}": "7x25 9x60"},
        {f"kubeproxy_accept_paused_total{{{NODE}}}": "7x60"},
    ),
    "KubeproxyMemoryShortage": Case(
        {f"kubeproxy_memory_shortages_total{{{NODE}}}": "7x25 9x60"},
        {f"kubeproxy_memory_shortages_total{{{NODE}}}": "7x60"},
    ),
    "KubeproxyEphemeralPortsExhausted": Case(
        {f"kubeproxy_ephemeral_ports_exhausted_total{{{NODE}}}": "7x25 9x60"},
        {f"kubeproxy_ephemeral_ports_exhausted_total{{{NODE}}}": "7x60"},
    ),
    "KubeproxyLoopLag": Case(lag("kubeproxy_loop_lag_seconds", 5), lag("kubeproxy_loop_lag_seconds", 0)),
    "KubeproxyWorkerLag": Case(
        {f"kubeproxy_worker_loop_lag_seconds{{{WORKER}}}": "0.3x60"},
        {f"kubeproxy_worker_loop_lag_seconds{{{WORKER}}}": "0.01x20 0.3x3 0.01x60"},
    ),
}


def promtool_test(directory: Path, tests: list[dict[str, Any]]) -> tuple[int, str]:
    """Its exit status and what it said."""
    spec = read(MONITORING / "prometheus-rule.yaml")["spec"]
    (directory / "rules.yaml").write_text(yaml.safe_dump(spec))
    (directory / "tests.yaml").write_text(
        yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests})
    )
    done = subprocess.run(
        ["promtool", "test", "rules", "tests.yaml"],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout + done.stderr


def scene(series: dict[str, str], **expected: Any) -> dict[str, Any]:
    """One of promtool's tests."""
    if not any(name.startswith("up{") for name in series):
        series = {f"up{{{NODE}}}": "1x60", **series}
    listed = [{"series": name, "values": values} for name, values in series.items()]
    return {"interval": "1m", "input_series": listed, **expected}


def firing(name: str, series: dict[str, str], alerts: set[str]) -> dict[str, Any]:
    """That at the end of that alert's case these fire, once each, and no other."""
    samples = [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in sorted(alerts)]
    expr = 'count by (alertname) (ALERTS{alertstate="firing"})'
    asked = {"expr": expr, "eval_time": f"{CASES[name].minutes}m", "exp_samples": samples}
    return scene(series, name=name, promql_expr_test=[asked])


@promtool
def test_the_rules_are_valid(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(read(MONITORING / "prometheus-rule.yaml")["spec"]))
    subprocess.run(["promtool", "check", "rules", tmp_path / "rules.yaml"], check=True, timeout=60, capture_output=True)


@promtool
def test_each_fires_and_no_other_does(tmp_path: Path) -> None:
    status, said = promtool_test(tmp_path, [firing(name, case.fires, {name}) for name, case in CASES.items()])
    assert status == 0, said


@promtool
def test_each_keeps_still(tmp_path: Path) -> None:
    status, said = promtool_test(tmp_path, [firing(name, case.still, set()) for name, case in CASES.items()])
    assert status == 0, said


@promtool
def test_what_they_say_is_whole(tmp_path: Path) -> None:
    """promtool shows an alert's words only where others were expected: so none are, and it shows them all."""
    asked = [
        scene(case.fires, alert_rule_test=[{"eval_time": f"{case.minutes}m", "alertname": name, "exp_alerts": []}])
        for name, case in CASES.items()
    ]
    status, said = promtool_test(tmp_path, asked)
    assert status == 1
    for name in rules():
        assert f'alertname="{name}"' in said
    assert "error" not in said.lower().replace("errors", "")
    assert "<no value>" not in said
    assert 'summary="No endpoint of shop/web answers many clients."' in said
    assert "6.667% of the connections to shop/web (http) on a failed" in said


def test_no_alert_is_untried() -> None:
    assert set(CASES) == set(rules())


def test_the_series_are_those_of_a_scrape() -> None:
    """With the labels that the daemon gives them; `job` and `instance` are Prometheus' own."""
    exported: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(scrape().decode()):
        for sample in family.samples:
            exported.setdefault(sample.name, set()).update(sample.labels)
    tried = {series for case in CASES.values() for series in (*case.fires, *case.still) if not series.startswith("up{")}
    for series in sorted(tried):
        name, labels = series.removesuffix("}").split("{")
        assert name in exported, f"the daemon exports no {name}"
        given = set(re.findall(r'(\w+)="', labels)) - {"job", "instance"}
        assert given == exported[name], series


def test_each_says_how_bad_it_is_what_it_is_and_what_to_do() -> None:
    headings = re.findall(r"^#+ (.*)$", (ROOT / "docs/operations.md").read_text(), re.MULTILINE)
    for name, rule in rules().items():
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), name
        assert rule["for"], name
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}, name
        assert rule["annotations"]["runbook_url"] == f"docs/operations.md#{name.lower()}"
        assert name in headings
