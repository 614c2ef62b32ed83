"""`kubeproxy.rescue.flow_release`: one reading of the flows for all endpoints that wait; none waits behind others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

import pytest
from structlog.testing import capture_logs

from kubeproxy.model import Address, Destination, Protocol, Target
from kubeproxy.model.errors import KernelError
from kubeproxy.netfilter.conntrack.delete_endpoint_flows import Deleted
from kubeproxy.netfilter.conntrack.stale_flows import TrackedFlow
from kubeproxy.rescue import flow_release
from kubeproxy.rescue.ejector import Ejector
from kubeproxy.rescue.fair_turns import Tenants
from kubeproxy.rescue.flow_release import AT_ONCE, CREDIT_S, PAUSE_MAX_S, SHARE, Budget, FlowRelease
from kubeproxy.rescue.protocol import FreedFlow
from kubeproxy.runtime.tasks import TaskSet

POD = Target(Address("10.9.0.1"), 80)
"""An endpoint of a tenant that has no other."""
CLIENT, VIP = Address("10.2.0.2"), Address("10.96.0.10")


def silent(count: int) -> list[Target]:
    """Endpoints of another tenant, on purpose."""
    return [Target(Address(f"10.0.{number // 250}.{number % 250}"), 80) for number in range(count)]


class Kernel:
    """Readings of flows, of which each endpoint has one; and what an `Ejector` knows of endpoints."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.readings: list[Sequence[Target]] = []
        self.at_once = self.most_at_once = 0
        self.broken = False
        self.freed: list[tuple[Protocol, Target, Sequence[FreedFlow]]] = []
        monkeypatch.setattr(flow_release, "delete_flows_to", self.delete)
        self.tasks = TaskSet(self._on_crash)
        self.made = FlowRelease(cast(Ejector, self), self.tasks, on_freed=lambda *freed: self.freed.append(freed))

    @staticmethod
    def _on_crash(name: str, error: BaseException) -> None:
        raise error

    def translates(self, destination: Destination) -> bool:
        return True

    def tenants(self, protocol: Protocol, target: Target) -> Tenants:
        return frozenset({"well" if target == POD else "hostile"})

    async def delete(
        self, targets: Sequence[Target], protocol: Protocol, *, is_ours: Callable[[Destination], bool]
    ) -> dict[Target, list[Deleted]]:
        assert is_ours == self.translates
        self.readings.append(targets)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        if self.broken:
            raise KernelError("its answers did not fit")
        return {
            target: [Deleted(TrackedFlow(CLIENT, 4000, VIP, 80, target.address, 80, b""), CLIENT, 4000)]
            for target in targets
        }

    async def settle(self) -> None:
        """Wait until nothing is left to do."""
        while self.tasks._tasks:
            await asyncio.gather(*self.tasks._tasks)


async def test_many_are_read_together_and_a_tenant_does_not_wait_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(monkeypatch)
    for target in (*silent(1000), POD):
        kernel.made.free(Protocol.TCP, target)
    await kernel.settle()
    assert len(kernel.readings) == 1 + 1000 // AT_ONCE
    assert POD in kernel.readings[0]
    assert kernel.most_at_once == 1
    assert sorted(target for _, target, _ in kernel.freed) == sorted([*silent(1000), POD]), "each once"
    flow = FreedFlow(CLIENT, 4000, VIP, 80, CLIENT, 4000, link=None)
    assert (Protocol.TCP, POD, [flow]) in kernel.freed


async def test_one_that_fails_while_its_flows_are_read_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(monkeypatch)
    kernel.made.free(Protocol.TCP, POD)
    kernel.made.free(Protocol.TCP, POD)
    while not kernel.at_once:
        await asyncio.sleep(0)
    kernel.made.free(Protocol.TCP, POD)
    kernel.made.free(Protocol.UDP, POD)
    await kernel.settle()
    assert [len(reading) for reading in kernel.readings] == [1, 1, 1]
    assert [protocol for protocol, _, _ in kernel.freed].count(Protocol.TCP) == 2


async def test_a_kernel_that_deletes_no_flows_does_not_fill_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(monkeypatch)
    kernel.broken = True
    with capture_logs() as lines:
        for target in silent(1000):
            kernel.made.free(Protocol.TCP, target)
        await kernel.settle()
        kernel.made.free(Protocol.TCP, POD)
        await kernel.settle()
    assert [line["event"] for line in lines] == ["cannot free failed flows"]
    assert kernel.readings[-1] == [POD], "it goes on"


def test_a_burst_has_no_pause_and_what_goes_on_takes_its_share() -> None:
    budget, now, worked = Budget(), 1000.0, 0.0
    while worked < CREDIT_S - 0.1:
        assert budget.pause_s(now, now + 0.1) == 0.0
        now, worked = now + 0.1, worked + 0.1
    began, worked = now, 0.0
    for _ in range(1000):
        now, worked = now + 0.1 + budget.pause_s(now, now + 0.1), worked + 0.1
    assert worked / (now - began) == pytest.approx(SHARE, rel=0.05)
    assert budget.pause_s(now, now + 60.0) == PAUSE_MAX_S
    assert budget.pause_s(now + 1000.0, now + 1000.1) == 0.0, "it is forgotten"
