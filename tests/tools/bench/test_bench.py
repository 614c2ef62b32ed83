"""The benchmark runs, and every measure gives its figures. The tests do not judge the figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tools.bench.machine import missing_packages
from tests.tools.bench.measures import LOADS

pytestmark = pytest.mark.long

needs_programs = pytest.mark.skipif(bool(missing_packages()), reason=f"needs {', '.join(missing_packages())}")


def bench(target: Path, *options: str) -> tuple[dict[str, Any], str]:
    """The document that it wrote, and its output."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.tools.bench",
            "--rounds",
            "1",
            "--seconds",
            "0.3",
            "--json",
            str(target),
            *options,
        ],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(target.read_text()), done.stdout


@pytest.mark.netns
@needs_programs
def test_every_load_of_the_peers_gives_its_figures(tmp_path: Path) -> None:
    loads = ",".join(load.name for load in LOADS)
    picture = tmp_path / "bench.svg"
    written, printed = bench(
        tmp_path / "bench.json",
        "--peers",
        "direct,dnat,kernel,haproxy,nginx,haproxy3",
        "--only",
        loads,
        "--chart",
        str(picture),
    )
    measured = {(sample["measure"], sample["peer"]) for sample in written["samples"]}
    assert measured == {
        *(
            (load.name, peer)
            for load in LOADS
            for peer in ("direct", "dnat", "kernel", "haproxy", "nginx")
            if load.name != "udp"
        ),
        ("udp", "direct"),
        ("udp", "dnat"),
        ("udp", "kernel"),
        ("udp", "nginx"),
        ("requests", "haproxy3"),
        ("connections", "haproxy3"),
    }
    for measure, metric in (("requests", "per_s"), ("connections", "per_s"), ("bulk8", "gbit_per_s"), ("udp", "per_s")):
        assert all(figure > 0 for figure in written["summary"][measure][metric]["median"].values())
    assert written["summary"]["requests"]["cpu_s"]["median"]["haproxy"] > 0
    assert "new connections" in printed
    assert picture.read_text().startswith("<svg")


@pytest.mark.netns
@needs_programs
def test_a_small_cluster_gives_every_figure_of_scale(tmp_path: Path) -> None:
    written, printed = bench(
        tmp_path / "bench.json", "--only", "scale", "--services", "60", "--scenarios", "API,under-load"
    )
    medians = {key: entry["median"] for key, entry in written["summary"]["scale"].items()}
    assert set(medians["last_s"]) == {"API", "under-load"}
    assert set(medians["change_p99_ms"]) == {"API"}
    assert set(medians["meanwhile_ratio"]) == {"under-load"}
    assert not any(medians["silent"].values())
    assert "60 services" in printed


@pytest.mark.netns
@needs_programs
def test_an_idle_connection_takes_memory(tmp_path: Path) -> None:
    written, _ = bench(tmp_path / "bench.json", "--only", "idle", "--peers", "haproxy")
    assert 1 < written["summary"]["idle"]["pss_kib"]["median"]["haproxy"] < 20


@pytest.mark.netns
def test_an_unknown_name_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.tools.bench", "--only", "speed"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "'speed' is none of requests, connections" in done.stderr


@pytest.mark.netns
def test_the_parts_of_the_kernel_path_have_a_cost() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.tools.bench.kernel_packets", "2"],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    names = [line[:48].strip() for line in done.stdout.splitlines()[1:]]
    assert names[:3] == ["direct", "plain DNAT", "kernel path"]
    assert "without the rescue" in names
    assert all(line.count("·") == 2 for line in done.stdout.splitlines()[1:])
