"""The micro-benchmarks run, each once, in a small cluster. The tests do not judge their speed."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.tools.bench import micro

pytestmark = pytest.mark.long


def test_every_micro_benchmark_does_what_it_measures() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", micro.__file__],
        env={**os.environ, "MICRO_SERVICES": "500"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) == sum(name.startswith("test_") for name in vars(micro))
