"""What workers count together: rows, columns, and what is left of a worker that has died."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kubeproxy.dataplane.balancing.open_counts import OpenCounts, SharedRows
from kubeproxy.dataplane.messages import SetEndpoints
from kubeproxy.dataplane.workers import columns as columns_module
from kubeproxy.dataplane.workers.columns import Columns
from kubeproxy.model import Address, Balancing, Scheduler, Target
from tests.dataplane.conftest import frontend

TARGETS = tuple(Target(Address(f"10.0.0.{number}"), 80) for number in range(6))
LEAST = Balancing(Scheduler.LEAST_CONNECTIONS)


def wanted(*targets: Target, name: str = "web", balancing: Balancing = LEAST) -> SetEndpoints:
    return SetEndpoints(frontend(name), targets, balancing=balancing)


@pytest.fixture
def columns() -> Iterator[Columns]:
    found = Columns(2)
    yield found
    found.close()


def test_an_endpoint_keeps_its_column_and_no_two_have_the_same(columns: Columns) -> None:
    first = columns.assigned(wanted(*TARGETS[:3])).columns
    second = columns.assigned(wanted(*TARGETS[1:4])).columns
    other = columns.assigned(wanted(*TARGETS[:3], name="other")).columns
    assert second[:2] == first[1:]
    assert len({*second, *other}) == 6
    columns.release(frontend())
    assert set(columns.assigned(wanted(*TARGETS[:3])).columns).isdisjoint(other)


def test_other_schedulers_have_no_columns_and_give_theirs_back(columns: Columns) -> None:
    first = columns.assigned(wanted(*TARGETS)).columns
    assert columns.assigned(wanted(*TARGETS, balancing=Balancing())).columns == ()
    assert sorted(columns.assigned(wanted(*TARGETS, name="other")).columns) == sorted(first)


def test_without_a_free_column_each_worker_counts_alone(columns: Columns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns_module, "COLUMNS", 2)
    assert len(columns.assigned(wanted(TARGETS[5])).columns) == 1
    counts = [OpenCounts(SharedRows(columns.fd, row=row)) for row in range(2)]
    message = columns.assigned(wanted(*TARGETS[:3]))
    for each in counts:
        each.share(message.endpoints, message.columns)
        for target in TARGETS[:3]:
            each.opened(target)
    assert [counts[0].of(target) for target in TARGETS[:3]] == [1, 1, 1], "one counted by both would seem fuller"
    assert sorted(columns.assigned(wanted(*TARGETS[3:5])).columns) == [0, 1], "what was none is not handed out"


def test_a_worker_that_has_died_leaves_no_connections(columns: Columns) -> None:
    message = columns.assigned(wanted(*TARGETS[:2]))
    alive, dead = (OpenCounts(SharedRows(columns.fd, row=row)) for row in range(2))
    for each in (alive, dead):
        each.share(message.endpoints, message.columns)
        each.opened(TARGETS[0])
    columns.clear(1)
    assert alive.of(TARGETS[0]) == 1
    successor = OpenCounts(SharedRows(columns.fd, row=1))
    successor.share(message.endpoints, message.columns)
    successor.opened(TARGETS[0])
    assert alive.of(TARGETS[0]) == successor.of(TARGETS[0]) == 2


class CountsMachine(RuleBasedStateMachine):
    """Three workers that count together, beside a model; endpoints come and go while connections are open."""

    WORKERS = 3

    def __init__(self) -> None:
        super().__init__()
        self.columns = Columns(self.WORKERS)
        self.workers = [self._worker(row) for row in range(self.WORKERS)]
        self.open = [dict[Target, int]() for _ in range(self.WORKERS)]
        self.message = wanted()
        self.other = OpenCounts(SharedRows(self.columns.fd, row=0))
        """Of another frontend, which takes columns that are free."""

    def _worker(self, row: int) -> OpenCounts:
        return OpenCounts(SharedRows(self.columns.fd, row=row))

    def teardown(self) -> None:
        self.columns.close()

    @rule(numbers=st.sets(st.integers(0, 5)), least=st.booleans())
    def update(self, numbers: set[int], least: bool) -> None:
        targets = [TARGETS[number] for number in sorted(numbers)]
        self.message = self.columns.assigned(wanted(*targets, balancing=LEAST if least else Balancing()))
        for worker in self.workers:
            worker.share(self.message.endpoints, self.message.columns)
        message = self.columns.assigned(wanted(*targets[:2], name="other"))
        self.other.share(message.endpoints, message.columns)
        self.other.opened(TARGETS[0])

    @rule(row=st.integers(0, 2), number=st.integers(0, 5))
    def opened(self, row: int, number: int) -> None:
        self.workers[row].opened(TARGETS[number])
        self.open[row][TARGETS[number]] = self.open[row].get(TARGETS[number], 0) + 1

    @rule(row=st.integers(0, 2), number=st.integers(0, 5))
    def closed(self, row: int, number: int) -> None:
        if self.open[row].get(TARGETS[number]):
            self.workers[row].closed(TARGETS[number])
            self.open[row][TARGETS[number]] -= 1

    @rule(row=st.integers(1, 2))
    def dies(self, row: int) -> None:
        self.columns.clear(row)
        self.workers[row], self.open[row] = self._worker(row), {}
        self.workers[row].share(self.message.endpoints, self.message.columns)

    @invariant()
    def all_see_what_is_open(self) -> None:
        if self.message.columns:
            for target in self.message.endpoints:
                total = sum(each.get(target, 0) for each in self.open)
                assert [worker.of(target) for worker in self.workers] == [total] * self.WORKERS


TestCounts = CountsMachine.TestCase
TestCounts.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_process_alone_counts_without_a_table() -> None:
    counts = OpenCounts(None)
    counts.share(TARGETS, range(6))
    counts.opened(TARGETS[0])
    assert (counts.of(TARGETS[0]), counts.of(TARGETS[1])) == (1, 0)
