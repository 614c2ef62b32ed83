"""Every decoder meets its corpus, and whatever a fuzzer once found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS

INPUTS = sorted(path for folder in ("corpus", "regressions") for path in (Path(__file__).parent / folder).glob("*/*"))


@pytest.mark.timeout(20)
@pytest.mark.parametrize("path", INPUTS, ids=lambda path: "/".join(path.parts[-3:]))
def test_nothing_escapes(path: Path) -> None:
    TARGETS[path.parent.name](path.read_bytes())


def test_every_target_has_a_corpus() -> None:
    assert {path.parent.name for path in INPUTS} == set(TARGETS)
