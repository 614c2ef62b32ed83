"""Dashboard and alerts ask for metrics that there are, by labels that they have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kubeproxy.observability
from tests.system.deploy.manifests import MONITORING, rules

DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text())
OF_PROMETHEUS = {"up", "process_cpu_seconds_total", "process_resident_memory_bytes"}
ROWS = [
    "Up and in step",
    "Network programming",
    "Traffic",
    "Failures",
    "Ejected endpoints",
    "Kernel path",
    "Descriptors, lag, workers",
    "UDP",
    "API watch",
]


def known() -> str:
    """The code that names metrics, with the one prefix that it abbreviates written out."""
    sources = Path(kubeproxy.observability.__file__).parent.rglob("*.py")
    text = "\n".join(source.read_text() for source in sources)
    return text.replace("{prefix}", "kubeproxy_sync_proxy_rules_")


def metrics(expr: str) -> set[str]:
    """The metrics that an expression asks for, a histogram's by the name of the whole."""
    names = set(re.findall(r"\b(?:kubeproxy|process)_[a-z_]+\b|\bup\b(?=\{)", expr))
    return {re.sub(r"(_duration_seconds|_lag_seconds)_(bucket|count|sum)$", r"\1", name) for name in names}


def queries() -> Iterator[tuple[str, str]]:
    """Every expression, with its panel or alert."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]
    for name, rule in rules().items():
        yield name, rule["expr"]


@pytest.mark.parametrize(("place", "expr"), list(queries()))
def test_what_is_asked_for_exists(place: str, expr: str) -> None:
    asked = metrics(expr)
    assert asked
    for name in asked - OF_PROMETHEUS:
        # Quoted whole, as the code names it; counters may leave their suffix to the library.
        assert re.search(rf'"{name}"', known()), f"{place}: there is no metric {name}"


def panels(kind: str = "") -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if not kind or panel["type"] == kind]


def test_its_rows_are_what_an_operator_looks_for() -> None:
    assert [row["title"] for row in panels("row")] == ROWS


def test_it_can_be_imported_anywhere() -> None:
    assert "id" not in DASHBOARD, "that is the number in one Grafana's own database"
    assert DASHBOARD["uid"] == "kubeproxy"
    assert [variable["name"] for variable in DASHBOARD["templating"]["list"]] == ["datasource", "cluster", "instance"]
    ids = [panel["id"] for panel in panels()]
    assert len(ids) == len(set(ids))
    for panel in panels():
        if panel["type"] != "row":
            assert panel["datasource"] == {"type": "prometheus", "uid": "$datasource"}
            assert panel["description"]
            for target in panel["targets"]:
                assert 'job="kubeproxy"' in target["expr"]
                assert 'instance=~"$instance"' in target["expr"]


def test_panels_do_not_cover_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
