"""Fixtures and collection rules of all tests."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import settings

from tests.support.cases import leave_out
from tests.support.lab.host import can_make_hosts

# A loaded machine is slow, and is no counterexample. The seed of `make` is fixed: more examples would be the same ones
# in each run.
settings.register_profile("kubeproxy", deadline=None, max_examples=50)
settings.load_profile("kubeproxy")


@pytest.fixture
def logging_restored() -> Iterator[None]:
    """Restores the logging configuration after a test that changes it."""
    root, ours = logging.getLogger(), logging.getLogger("kubeproxy")
    before = root.level, ours.level, list(root.handlers)
    yield
    root.setLevel(before[0])
    ours.setLevel(before[1])
    root.handlers[:] = before[2]
    logging.captureWarnings(False)
    structlog.reset_defaults()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the files and skip what this user cannot run. Slow files begin first, so that no processor waits for one
    of them in the end. Tests that need hosts of their own are skipped, with a reason, where this user may not make
    them; those that take an hour, unless they are asked for."""
    leave_out(config, items, of=_makes_packets, paths=("nftables", "iptables"))
    if "hours" not in config.option.markexpr:
        for item in items:
            if item.get_closest_marker("hours") is not None:
                item.add_marker(pytest.mark.skip(reason="takes an hour: `-m hours` runs it"))
    lengths: dict[str, int] = {}
    for item in items:
        length = 2 if item.get_closest_marker("long") else 1 if item.get_closest_marker("netns") else 0
        path = str(item.path)
        lengths[path] = max(length, lengths.get(path, 0))
    items.sort(key=lambda item: -lengths[str(item.path)])
    if all(item.get_closest_marker("netns") is None for item in items) or can_make_hosts():
        return
    skip = pytest.mark.skip(reason="needs root (or `unshare -Urn`) to make network namespaces")
    for item in items:
        if item.get_closest_marker("netns") is not None:
            item.add_marker(skip)


def pytest_collection_finish() -> None:
    """Take what the imports have made out of the passes of the garbage collector, which were a tenth of all time."""
    gc.freeze()


def _makes_packets(case: pytest.Function) -> bool:
    """Return whether a case belongs to the tests of the rules with real packets."""
    return case.get_closest_marker("netns") is not None and not {"netfilter", "rescue"}.isdisjoint(case.path.parts)
