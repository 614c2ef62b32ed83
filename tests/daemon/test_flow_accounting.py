"""The kernel path's flows: when they are read, which ends are logged, and what bounds them."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from kubeproxy.daemon import flow_accounting
from kubeproxy.daemon.flow_accounting import FlowAccounting, FlowCounts, as_ended
from kubeproxy.dataplane.interface import Ended
from kubeproxy.model import Address, Destination, Family, FrontendName, Protocol, ServicePortName, Target, Traffic
from kubeproxy.model.errors import KernelError
from kubeproxy.netfilter.conntrack.flow_records import DELETE, NEW, FlowRecord, records
from kubeproxy.netfilter.ruleset import RuleSet, Spread
from tests.netfilter.conntrack.flow_messages import flow

WEB = FrontendName(ServicePortName("default", "web", "http"), Family.IPV4)
VIP = Destination(Address("10.96.0.10"), Protocol.TCP, 80)
POD = Target(Address("10.3.0.2"), 8080)
RULES = RuleSet(spreads={Traffic(VIP): Spread("default/web:http", (POD,), (POD,))})


def live(number: int, counts: tuple[int, int]) -> FlowRecord:
    (found,) = records(flow(number=number, counts=counts), NEW)
    return found


def gone(number: int, counts: tuple[int, int], destination: str = "10.96.0.10") -> FlowRecord:
    message = flow(destination=(destination, 80), number=number, counts=counts, state=7, end=True, left=None)
    (found,) = records(message, DELETE)
    return found


class Kernel:
    """The kernel's flows, and its subscriptions."""

    def __init__(self) -> None:
        self.flows: list[FlowRecord] = []
        self.ends: list[FlowRecord] = []
        self.subscriptions = 0
        self.overflows = 0
        self.fails = False

    def translated_flows(self) -> Iterator[FlowRecord]:
        yield from self.flows
        if self.fails:
            raise KernelError("the table is away")

    def subscribe(self) -> Kernel:
        if self.fails:
            raise PermissionError(1, "not permitted")
        self.subscriptions += 1
        return self

    def take(self, *, cpu_s: float) -> Iterator[FlowRecord]:
        while self.ends:
            yield self.ends.pop(0)

    def take_overflows(self) -> int:
        found, self.overflows = self.overflows, 0
        return found

    def close(self) -> None:
        self.subscriptions -= 1


class Bench:
    """Flows with a kernel, rules, and the events of a takeover."""

    def __init__(self, kernel: Kernel, settings: Path) -> None:
        self.kernel = kernel
        self.rules: RuleSet | None = RULES
        self.taken, self.superseded = asyncio.Event(), asyncio.Event()
        self.taken.set()
        self.predecessor = False
        self.skipped = 0
        self.flows = FlowAccounting(
            rules=lambda: self.rules,
            holder=lambda traffic: WEB,
            taken=self.taken,
            superseded=self.superseded,
            has_predecessor=lambda: self.predecessor,
            on_skipped=self.skip,
            settings=settings,
        )

    def skip(self, number: int) -> None:
        self.skipped += number

    @property
    def counts(self) -> FlowCounts | None:
        return self.flows.counts({WEB}).get(WEB)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bench:
    kernel = Kernel()
    monkeypatch.setattr(flow_accounting, "translated_flows", kernel.translated_flows)
    monkeypatch.setattr(flow_accounting, "FlowEnds", kernel.subscribe)
    return Bench(kernel, tmp_path)


async def test_bytes_count_from_the_first_reading_on(bench: Bench) -> None:
    bench.kernel.flows = [live(1, (10, 20))]
    bench.flows.expect()
    await bench.flows.run()
    assert bench.counts == (1, 0, 0)
    bench.kernel.flows = [live(1, (15, 20)), live(2, (1, 2))]
    await bench.flows.read()
    assert bench.counts == (2, 6, 2)
    assert bench.flows.counts(set()) == {}


async def test_nothing_is_read_without_rules_of_the_kernel_path(bench: Bench) -> None:
    bench.rules = RuleSet()
    bench.kernel.fails = True
    await bench.flows.read()
    assert (bench.counts, bench.flows.state()) == (None, None)
    bench.rules, bench.kernel.fails = RULES, False
    assert bench.flows.state() is not None
    bench.rules = RuleSet()  # running connections go on
    bench.kernel.flows = [live(1, (1, 1))]
    await bench.flows.read()
    assert bench.flows.state() is not None


async def test_a_failed_reading_keeps_the_counts_and_is_logged_once(bench: Bench) -> None:
    bench.kernel.flows = [live(1, (10, 20))]
    await bench.flows.read()
    bench.kernel.fails = True
    with capture_logs() as logs:
        for _ in range(3):
            await bench.flows.read()
    assert [entry["reason"] for entry in logs] == ["the table is away"]
    assert bench.counts == (1, 0, 0)
    state = bench.flows.state()
    assert state is not None
    assert state.problem == "the table is away"
    bench.kernel.fails = False
    await bench.flows.read()
    state = bench.flows.state()
    assert state is not None
    assert state.problem == ""


async def test_connections_are_counted_by_their_endpoint(bench: Bench) -> None:
    bench.kernel.flows = [live(1, (1, 1)), live(2, (1, 1))]
    pod, other = POD.address, Address("10.3.0.9")
    assert await bench.flows.open_to({pod, other}) == {pod: 2}
    assert bench.flows.open_by_endpoint(WEB) == {POD: 2}
    bench.kernel.flows = []
    assert await bench.flows.open_to({pod}) == {}, "each call waits for a reading of its own"
    bench.kernel.fails = True
    with pytest.raises(KernelError, match="the table is away"):
        await bench.flows.open_to({pod})


async def test_readings_have_a_twentieth_of_the_time_whoever_asks(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, began = 100.0, list[float]()

    def reading(rules: RuleSet) -> None:
        nonlocal now
        began.append(now)
        now += 0.5  # a table of hundreds of thousands of flows

    async def at_once(work: Callable[[], None]) -> None:
        work()

    async def sleep(delay_s: float) -> None:
        nonlocal now
        now += max(0.0, delay_s)

    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(time, "thread_time", lambda: now)
    monkeypatch.setattr(bench.flows, "_in_thread", at_once)
    monkeypatch.setattr(bench.flows, "_read", reading)
    for _ in range(5):
        await bench.flows.refresh()
        await bench.flows.open_to({POD.address})
    assert len(began) == 6
    assert min(after - before for before, after in itertools.pairwise(began)) >= 0.5 / 0.05


async def test_an_end_that_a_reading_meets_is_counted_and_logged_once(bench: Bench) -> None:
    bench.flows.use_ends(True)
    bench.flows.expect()
    await bench.flows.read()
    bench.kernel.flows = [live(1, (10, 20))]
    await bench.flows.read()
    bench.kernel.flows, bench.kernel.ends = [], [gone(1, (12, 25))]
    await bench.flows.read()
    assert bench.counts == (0, 12, 25)
    (line,) = await bench.flows.ended()
    assert (line.frontend, line.path, line.reason) == (WEB, "kernel", "closed")
    assert (line.client, line.endpoint) == (Target(Address("10.2.0.2"), 50000), POD)
    assert (line.bytes_in, line.bytes_out) == (12, 25)
    assert list(await bench.flows.ended()) == []
    assert bench.counts == (0, 12, 25)


async def test_an_end_that_a_reading_meets_while_others_are_given_out_is_not_lost(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.flows.use_ends(True)
    bench.flows.expect()
    bench.kernel.ends = [gone(1, (1, 2))]
    given_out: list[Ended] = []

    def while_the_loop_takes(*arguments: Any, **named: Any) -> Ended:
        """The reading's thread makes a line, while the event loop gives out those before it."""
        with monkeypatch.context() as patched:
            patched.setattr(bench.flows, "_in_thread", nothing)
            given_out.extend(asyncio.run_coroutine_threadsafe(bench.flows.ended(), loop).result(20))
        return as_ended(*arguments, **named)

    async def nothing(work: object) -> None:
        return None

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(flow_accounting, "as_ended", while_the_loop_takes)
    await bench.flows.read()
    given_out.extend(await bench.flows.ended())
    assert [line.frontend for line in given_out] == [WEB]


async def test_the_subscription_lives_while_it_is_wanted(bench: Bench) -> None:
    bench.flows.use_ends(True)
    assert bench.kernel.subscriptions == 0, "the kernel path is not asked for"
    bench.flows.expect()
    assert bench.kernel.subscriptions == 1
    bench.flows.use_ends(False)
    assert bench.kernel.subscriptions == 0
    assert list(await bench.flows.ended()) == []
    assert bench.kernel.subscriptions == 0
    bench.flows.use_ends(True)
    assert bench.kernel.subscriptions == 1
    bench.flows.close()
    assert bench.kernel.subscriptions == 0


async def test_one_instance_at_a_time_logs(bench: Bench) -> None:
    bench.taken.clear()
    bench.predecessor = True
    bench.flows.use_ends(True)
    bench.flows.expect()
    bench.kernel.ends = [gone(1, (1, 1))]
    assert list(await bench.flows.ended()) == [], "the predecessor logs it"
    bench.taken.set()
    bench.kernel.ends = [gone(2, (1, 1))]
    assert len(await bench.flows.ended()) == 1
    bench.superseded.set()
    bench.kernel.ends = [gone(3, (1, 1))]
    assert len(await bench.flows.ended()) == 1, "the successor began after it"
    assert bench.kernel.subscriptions == 0
    assert list(await bench.flows.ended()) == []
    assert bench.kernel.subscriptions == 0


async def test_without_a_predecessor_ends_wait_for_the_rules(bench: Bench) -> None:
    bench.rules = None
    bench.taken.clear()
    bench.flows.use_ends(True)
    bench.flows.expect()
    bench.kernel.ends = [gone(1, (1, 1))]
    assert list(await bench.flows.ended()) == []
    bench.rules = RULES
    assert len(await bench.flows.ended()) == 1


async def test_a_flood_is_bounded_and_its_loss_counted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_accounting, "LINES_MAX", 10)
    bench.flows.use_ends(True)
    bench.flows.expect()
    await bench.flows.read()
    bench.kernel.ends = [
        gone(number, (1, 2), strange) for number in range(25) for strange in ("10.96.0.10", "10.96.9.9")
    ]
    bench.kernel.overflows = 2
    with capture_logs() as logs:
        assert len(await bench.flows.ended()) == 10
        bench.kernel.overflows = 1
        await bench.flows.ended()
    assert bench.skipped == 15
    assert bench.counts == (0, 25, 50), "bytes count also without a line"
    state = bench.flows.state()
    assert state is not None
    assert (state.ends, state.overflows, state.ends_followed) == (25, 3, True)
    assert [entry["event"] for entry in logs] == ["ends of connections were lost"]


async def test_a_refused_subscription_is_reported_with_advice(bench: Bench) -> None:
    bench.kernel.fails = True
    bench.flows.use_ends(True)
    bench.flows.expect()
    with capture_logs() as logs:
        for _ in range(3):
            assert list(await bench.flows.ended()) == []
    (entry,) = logs
    assert entry["event"] == "kernel path's connections not logged"
    assert "CAP_NET_ADMIN" in entry["reason"]


async def test_the_setting_of_the_kernel_decides_whether_bytes_count(bench: Bench, tmp_path: Path) -> None:
    for text, counted in (("0\n", False), ("1\n", True)):
        (tmp_path / "nf_conntrack_acct").write_text(text)
        state = bench.flows.state()
        assert state is not None
        assert state.bytes_counted is counted


def test_without_times_a_line_has_the_time_of_the_report() -> None:
    line = as_ended(gone(1, (1, 2)), WEB, {}, now=17.0)
    assert (line.began, line.duration_s, line.attempts, line.dial_s) == (17.0, None, None, None)
