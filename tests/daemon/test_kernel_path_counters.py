"""Connections of the kernel path, added to the counters of frontends."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

import pytest

from kubeproxy.daemon.flow_accounting import FlowAccounting, FlowCounts
from kubeproxy.daemon.kernel_path_counters import FRESH_S, KernelTraffic
from kubeproxy.dataplane.interface import Counters
from kubeproxy.model import Address, Destination, FrontendName, Protocol, Traffic
from kubeproxy.model.errors import KernelError
from kubeproxy.model.snapshot import DataPath, FrontendState
from kubeproxy.netfilter.nftables.execute import NotFoundError
from tests.observability.status.observation import GOOD, MAIL, WEB, frontend, name

AT = Traffic(Destination(Address("10.96.0.1"), Protocol.TCP, 80))


class Flows(FlowAccounting):
    """Flows as the kernel has them."""

    def __init__(self) -> None:
        self.now: dict[FrontendName, FlowCounts] = {}

    async def refresh(self) -> None:
        self.seen = dict(self.now)

    def counts(self, names: Collection[FrontendName]) -> Mapping[FrontendName, FlowCounts]:
        return {name: counts for name, counts in self.seen.items() if name in names}


class Kernel:
    """Counters as the kernel has them."""

    def __init__(self) -> None:
        self.counts: dict[Traffic, int] = {}
        self.fails: KernelError | None = None
        self.asked: list[Collection[Traffic]] = []

    async def read(self, destinations: Collection[Traffic] | None) -> Mapping[Traffic, int]:
        if destinations is not None:
            self.asked.append(set(destinations))
        if self.fails:
            raise self.fails
        return dict(self.counts)


async def test_growth_is_summed_over_counters_that_begin_anew() -> None:
    kernel = Kernel()
    web = FrontendState(frontend(WEB, "10.96.0.1", GOOD), 40001, DataPath.KERNEL, "", (GOOD,))
    mail = FrontendState(frontend(MAIL, "10.96.0.2", GOOD), 40002, DataPath.USERSPACE, "there is no rule yet")
    shown = [web, mail]
    traffic = KernelTraffic(lambda: shown, Flows(), read=kernel.read)
    counters = {name(WEB): Counters(accepted=3), name(MAIL): Counters(accepted=1)}

    async def by_kernel() -> int:
        traffic._next_at = float("-inf")
        return (await traffic.added_to(counters))[name(WEB)].by_kernel

    kernel.counts = {AT: 9500}  # of an earlier process
    assert await by_kernel() == 0
    await traffic.begin()
    assert await by_kernel() == 0
    kernel.counts = {AT: 9505}
    assert await by_kernel() == 5
    assert kernel.asked == [{AT}, {AT}]
    kernel.counts = {AT: 9509}
    assert await by_kernel() == 9
    kernel.counts = {AT: 2}  # another number of endpoints
    assert await by_kernel() == 11
    kernel.fails = KernelError("nft: busy")
    assert await by_kernel() == 11
    kernel.fails = None
    kernel.counts = {AT: 3}
    assert await by_kernel() == 12
    # What the kernel led is counted when the frontend has gone over to the userspace path, too.
    shown[:] = [FrontendState(web.frontend, 40001, DataPath.USERSPACE, "there is no endpoint"), mail]
    assert await by_kernel() == 12
    asked = len(kernel.asked)
    result = await traffic.added_to(counters)
    assert len(kernel.asked) == asked
    assert (result[name(WEB)].accepted, result[name(MAIL)]) == (3, Counters(accepted=1))
    shown.clear()
    traffic._next_at = float("-inf")
    assert await traffic.added_to(counters) is counters


@pytest.mark.parametrize(
    ("failure", "counted"), [(KernelError("nft: busy"), 0), (NotFoundError("nft: no table"), 9500)]
)
async def test_counters_that_could_not_be_read_at_the_start_are_not_taken_for_new(
    failure: KernelError, counted: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of a table that did not exist at the start are new."""
    kernel = Kernel()
    web = FrontendState(frontend(WEB, "10.96.0.1", GOOD), 40001, DataPath.KERNEL, "", (GOOD,))
    traffic = KernelTraffic(lambda: [web], Flows(), read=kernel.read)
    kernel.counts, kernel.fails = {AT: 9500}, failure
    await traffic.begin()
    kernel.fails = None
    for more in (0, 4):
        kernel.counts = {AT: 9500 + more}
        traffic._next_at = float("-inf")
        counters = await traffic.added_to({})
        assert (counters[name(WEB)].by_kernel if counters else 0) == counted + more
    assert ("nft: busy" in capsys.readouterr().out) is (counted == 0)


async def test_a_slow_reading_is_done_less_often() -> None:
    readings = 0

    async def read(destinations: Collection[Traffic] | None) -> Mapping[Traffic, int]:
        nonlocal readings
        readings += destinations is not None
        await asyncio.sleep(0.15)
        return {}

    web = FrontendState(frontend(WEB, "10.96.0.1", GOOD), 40001, DataPath.KERNEL, "", (GOOD,))
    traffic = KernelTraffic(lambda: [web], Flows(), read=read)
    await traffic.begin()
    await traffic.added_to({})
    await traffic.added_to({})
    assert readings == 1
    assert traffic._next_at - asyncio.get_running_loop().time() > FRESH_S


async def test_open_connections_and_bytes_are_added_also_where_the_kernel_leads_no_new_ones() -> None:
    flows = Flows()
    web = FrontendState(frontend(WEB, "10.96.0.1", GOOD), 40001, DataPath.USERSPACE, "there is no endpoint")
    shown = [web]
    traffic = KernelTraffic(lambda: shown, flows, read=Kernel().read)
    counters = {name(WEB): Counters(accepted=3, active=1)}
    flows.now = {name(WEB): FlowCounts(2, 300, 4000), name(MAIL): FlowCounts(1, 1, 1)}
    assert await traffic.added_to(counters) == {
        name(WEB): Counters(accepted=3, active=1, kernel_open=2, kernel_bytes_in=300, kernel_bytes_out=4000)
    }
    flows.now = {}
    traffic._next_at = float("-inf")
    assert await traffic.added_to(counters) is counters
