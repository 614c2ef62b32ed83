"""What is written about the metrics is what there is, and they are as Prometheus wants them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from docs.generators.metrics import render, scrape

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"

KUBE_PROXYS_OWN = (
    'kubeproxy_sync_proxy_rules_no_local_endpoints_total non-counter metrics should not have "_total" suffix'
)
"""kube-proxy has given a gauge the name of a counter."""


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == render(), "python -m docs.generators.metrics > docs/metrics.md"


def test_promtool_has_nothing_against_them() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool on this machine (Debian package prometheus)")
    checked = subprocess.run([promtool, "check", "metrics"], input=scrape(), capture_output=True, timeout=60)
    complaints = (checked.stdout + checked.stderr).decode().splitlines()
    assert complaints == [KUBE_PROXYS_OWN]
