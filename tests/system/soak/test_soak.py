"""The soak itself, for half a minute; `make soak` runs it for as long as one likes."""

from __future__ import annotations

import os
import random

import pytest

from tests.support.compiled_modules import ARE_THERE, environment
from tests.system.soak.run import soak

SEED = int(os.environ.get("SOAK_SEED", random.randrange(1 << 32)))
SECONDS = 30.0


@pytest.mark.netns
@pytest.mark.timeout(600)
@pytest.mark.parametrize("both_paths", [False, True], ids=["userspace", "both paths"])
def test_nothing_fails_that_nothing_explains_and_nothing_grows(
    both_paths: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The userspace path alone is compiled, where that form is there; the other run has the sources.
    for name, setting in environment(compiled=ARE_THERE and not both_paths).items():
        monkeypatch.setenv(name, setting)
    report = soak(seed=SEED, seconds=SECONDS, both_paths=both_paths)
    print(report.text())
    assert report.good, f"SOAK_SEED={SEED}"
    assert report.tally.right["short"] > 500
    assert any(path.startswith("kernel") for path in report.tally.paths) is both_paths
