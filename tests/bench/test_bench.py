"""The benchmark runs: every measure gives its figures. How high they are is nobody's business here."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.machine import PROGRAMS
from tests.bench.measures import MEASURES


@pytest.mark.netns
@pytest.mark.skipif(any(shutil.which(program) is None for program in PROGRAMS), reason=f"needs {', '.join(PROGRAMS)}")
def test_every_measure_of_haproxy_and_the_direct_path_gives_its_figures(tmp_path: Path) -> None:
    target = tmp_path / "bench.json"
    command = [sys.executable, "-m", "tests.bench", "--rounds", "1", "--seconds", "0.3"]
    done = subprocess.run(
        [*command, "--peers", "direct,haproxy", "--json", str(target)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    written = json.loads(target.read_text())
    assert {(sample["measure"], sample["peer"]) for sample in written["samples"]} == {
        (measure.name, peer) for measure in MEASURES for peer in ("direct", "haproxy")
    }
    for measure, metric in (("requests", "per_s"), ("connections", "per_s"), ("bulk8", "gbit_per_s")):
        assert all(figure > 0 for figure in written["summary"][measure][metric]["median"].values())
    assert written["summary"]["requests"]["cpu_s"]["median"]["haproxy"] > 0
    assert "new connections" in done.stdout


@pytest.mark.netns
def test_an_unknown_name_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench", "--only", "speed"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "'speed' is none of requests, connections" in done.stderr
