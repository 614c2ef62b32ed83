"""Every way to a Service: by either adapter, family and protocol, to each kind of address, from outside and within."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.lab import Daemon
from tests.system.e2e.conftest import PATHS, lasting
from tests.system.e2e.full_services import (
    CELLS,
    CLIENT,
    Cell,
    Whole,
    answers,
    await_all,
    hear,
    rules,
)
from tests.system.e2e.stage import KERNEL, Stage, until

pytestmark = pytest.mark.netns

LASTING = Whole(1)
PASSING = Whole(2)


@pytest.fixture(scope="module", params=PATHS)
def daemon(request: pytest.FixtureRequest, mirrored: Stage) -> Iterator[Daemon]:
    """One for all tests with an adapter, and a Service that stays."""
    yield from lasting(mirrored, LASTING, request.param)


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_it_is_served(request: pytest.FixtureRequest, mirrored: Stage, daemon: Daemon, cell: Cell) -> None:
    said = hear(cell.host(mirrored), LASTING.address(cell.kind, cell.family), cell.protocol)
    assert said.pod in ("pod-0", "pod-1")
    # The kernel path masquerades traffic to external addresses under the Cluster policy, and no other.
    is_seen = KERNEL in request.node.callspec.id and cell.origin == "client" and cell.kind == "cluster IP"
    assert (said.client == CLIENT[cell.family]) is is_seen


def test_deleted_it_is_gone(mirrored: Stage, daemon: Daemon) -> None:
    before = rules(mirrored.node)
    mirrored.write(PASSING.name, *PASSING.objects(2, 3))
    await_all(mirrored, PASSING, 2, 3)
    assert rules(mirrored.node) != before
    mirrored.remove(PASSING.name)
    until(lambda: rules(mirrored.node) == before, "the rules are as they were")
    assert not any(answers(mirrored, PASSING).values())
    assert all(answers(mirrored, LASTING, timeout_s=5.0).values())
