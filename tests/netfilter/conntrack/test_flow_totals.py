"""Sums of bytes that never fall, and open connections as of the last reading."""

from __future__ import annotations

import pytest

from kubeproxy.model import Family, FrontendName, ServicePortName
from kubeproxy.netfilter.conntrack.flow_records import DELETE, NEW, FlowRecord, records
from kubeproxy.netfilter.conntrack.flow_totals import FlowTotals
from tests.netfilter.conntrack.flow_messages import flow

WEB = FrontendName(ServicePortName("default", "web", "http"), Family.IPV4)


def seen(number: int, counts: tuple[int, int] | None, *, state: int | None = 3, port: int = 50000) -> FlowRecord:
    (found,) = records(flow(("10.2.0.2", port), number=number, counts=counts, state=state), NEW)
    return found


def ended(number: int, counts: tuple[int, int] | None) -> FlowRecord:
    (found,) = records(flow(number=number, counts=counts, state=7, end=True), DELETE)
    return found


class Ledger:
    """Totals with a reading per call."""

    def __init__(self) -> None:
        self.totals = FlowTotals()
        self.read()

    def read(self, *flows: FlowRecord, whole: bool = True) -> None:
        self.totals.begin()
        for each in flows:
            self.totals.seen(WEB, each)
        if whole:
            self.totals.finish()

    @property
    def now(self) -> tuple[int, int, int]:
        return sum(self.totals.open.get(WEB, {}).values()), self.totals.bytes_in[WEB], self.totals.bytes_out[WEB]


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def test_growth_is_added_and_flows_that_go_keep_their_bytes(ledger: Ledger) -> None:
    ledger.read(seen(1, (10, 20)))
    assert ledger.now == (1, 10, 20)
    ledger.read(seen(1, (15, 20)), seen(2, (1, 1)))
    assert ledger.now == (2, 16, 21)
    ledger.read(seen(2, (1, 1)))
    assert ledger.now == (1, 16, 21)
    ledger.read()
    assert ledger.now == (0, 16, 21)
    assert len(ledger.totals) == 0


def test_what_was_there_at_first_is_not_ours() -> None:
    ledger = Ledger.__new__(Ledger)
    ledger.totals = FlowTotals()
    ledger.read(seen(1, (10, 20)))
    assert ledger.now == (1, 0, 0)
    ledger.read(seen(1, (11, 22)))
    assert ledger.now == (1, 1, 2)


def test_an_end_makes_the_sum_exact(ledger: Ledger) -> None:
    ledger.read(seen(1, (10, 20)))
    ledger.totals.ended(WEB, ended(1, (12, 25)))
    ledger.totals.ended(WEB, ended(2, (3, 4)))  # between two readings
    ledger.read()
    assert ledger.now == (0, 15, 29)


def test_a_reused_number_is_another_flow(ledger: Ledger) -> None:
    ledger.read(seen(1, (10, 20)))
    ledger.read(seen(1, (4, 50)))
    assert ledger.now == (1, 14, 70)
    ledger.read(seen(1, (4, 50)), seen(1, (7, 7), port=50001))
    assert ledger.now == (2, 21, 77)


def test_a_flow_that_a_dump_has_twice_counts_once(ledger: Ledger) -> None:
    ledger.read(seen(1, (10, 20)), seen(1, (10, 20)), seen(1, (11, 20)))
    assert ledger.now == (1, 11, 20)


def test_a_reading_that_fails_halfway_loses_nothing(ledger: Ledger) -> None:
    ledger.read(seen(1, (10, 20)), seen(2, (1, 1)))
    ledger.read(seen(1, (11, 20)), whole=False)
    assert ledger.now == (2, 12, 21)
    ledger.read(seen(1, (12, 20)), seen(2, (2, 1)))
    assert ledger.now == (2, 14, 21)


@pytest.mark.parametrize(
    ("state", "is_open"), [(1, 0), (2, 0), (3, 1), (4, 1), (5, 1), (6, 1), (7, 0), (8, 0), (None, 1)]
)
def test_open_are_connections_between_handshake_and_end(ledger: Ledger, state: int | None, is_open: int) -> None:
    ledger.read(seen(1, None, state=state))
    assert ledger.now == (is_open, 0, 0)
    assert len(ledger.totals) == 0, "nothing is kept of flows without counts"


def test_sums_of_frontends_that_have_gone_are_forgotten(ledger: Ledger) -> None:
    ledger.read(seen(1, (10, 20)))
    ledger.totals.keep({WEB})
    assert ledger.now == (1, 10, 20)
    ledger.totals.keep(set())
    assert ledger.now == (1, 0, 0)
