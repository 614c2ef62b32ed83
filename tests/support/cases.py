"""Chooses cases of tests with several parameters, because all combinations would take too long."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from zlib import crc32

import pytest


def leave_out(
    config: pytest.Config,
    items: list[pytest.Item],
    *,
    of: Callable[[pytest.Function], bool],
    paths: Collection[str],
    chosen: Callable[[Sequence[pytest.Function]], Sequence[pytest.Function]] = lambda cases: cases,
) -> None:
    """Leave out cases of the tests for which `of` returns true. ALL_PATHS=1 leaves out none.

    A test that has several parameters runs with each value of each of them, but not with each combination. Each value
    runs with each of the data paths `paths` that the test has. `chosen` may reduce the cases of a test before.
    """
    if os.environ.get("ALL_PATHS"):
        return
    tests: dict[tuple[Path, str], list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and of(item):
            tests[item.path, item.originalname].append(item)
    left_out = {case for cases in tests.values() for case in {*cases} - {*_covering(chosen(cases), paths)}}
    config.hook.pytest_deselected(items=[*left_out])
    items[:] = [item for item in items if item not in left_out]


def _covering(cases: Sequence[pytest.Function], paths: Collection[str]) -> Iterator[pytest.Function]:
    """Yield cases until each value of each parameter has occurred with each data path."""
    values = {
        case: {
            (path, name, repr(value))
            for name, value in case.callspec.params.items()
            for path in [value for value in case.callspec.params.values() if value in paths] or [""]
        }
        for case in cases
    }
    missing = set().union(*values.values())
    rest = sorted(cases, key=lambda case: crc32(case.nodeid.encode()))
    while missing:
        case = max(rest, key=lambda case: len(missing & values[case]))
        missing -= values[case]
        yield case
