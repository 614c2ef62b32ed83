"""`kubeproxy.rescue.ejector`: one state of each endpoint, for the rules and for the workers."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from structlog.testing import capture_logs

from kubeproxy.dataplane.messages import MarkEndpoint
from kubeproxy.model import Address, Family, FrontendName, Protocol, ServicePortName, Target
from kubeproxy.netfilter.ruleset import RuleSet
from kubeproxy.proxier.data_path_choice import Ejected
from kubeproxy.rescue import ejector as ejector_module
from kubeproxy.rescue.ejector import NAMED_MAX, NAMED_S, Ejector
from kubeproxy.rescue.kernel_path_ejections import Endpoint
from tests.support.doubles.data_plane import FakeDataPlane

WEB = FrontendName(ServicePortName("default", "web", "http"), Family.IPV4)
POD, OTHER = Target(Address("10.3.0.2"), 8080), Target(Address("10.3.1.2"), 8080)


class FakeProxier:
    """Knows some endpoints, and records what is ejected."""

    def __init__(self) -> None:
        self.in_force: RuleSet | None = None
        self.endpoints = {POD, OTHER}
        self.applied: list[Ejected] = []
        self.waiting = 0
        """Calls of `eject` that have not returned."""
        self.free = asyncio.Event()
        self.free.set()

    def frontends_with(self, protocol: Protocol, target: Target) -> tuple[FrontendName, ...]:
        return (WEB,) if protocol is Protocol.TCP and target in self.endpoints else ()

    async def eject(self, ejected: Ejected) -> None:
        self.waiting += 1
        try:
            await self.free.wait()
            self.applied.append(ejected)
        finally:
            self.waiting -= 1

    def set_ejected(self, ejected: Ejected) -> None:
        self.applied.append(ejected)


def ejector() -> tuple[Ejector, FakeProxier, FakeDataPlane]:
    proxier, data_plane = FakeProxier(), FakeDataPlane()
    return Ejector(proxier, proxier, data_plane), proxier, data_plane


async def test_rules_and_workers_learn_of_a_failure_and_of_its_end() -> None:
    made, proxier, data_plane = ejector()
    await made.failed(Protocol.TCP, POD, "silent")
    assert made.is_ejected(Protocol.TCP, POD)
    assert proxier.applied == [{(Protocol.TCP, POD): True}]
    assert data_plane.sent == [MarkEndpoint(WEB, POD, "silent")]
    await made.failed(Protocol.TCP, POD, "refused")
    assert len(proxier.applied) == 1, "once"
    await made.answered(Protocol.TCP, POD)
    assert proxier.applied[1:] == [{}]
    assert data_plane.sent[1:] == [MarkEndpoint(WEB, POD, None)]


async def test_what_is_no_endpoint_is_left_alone() -> None:
    made, proxier, data_plane = ejector()
    stranger = Target(Address("192.0.2.1"), 22)
    assert not made.knows(Protocol.TCP, stranger)
    assert not made.knows(Protocol.UDP, POD)
    await made.failed(Protocol.TCP, stranger, "refused")
    await made.failed(Protocol.UDP, POD, "unreachable")
    assert not made.ejected
    assert not proxier.applied
    assert not data_plane.sent


async def test_the_first_to_notice_is_kept() -> None:
    made, proxier, _ = ejector()
    await made.noticed({Endpoint(Protocol.TCP, POD): "timeout", Endpoint(Protocol.TCP, OTHER): "refused"})
    await made.failed(Protocol.TCP, POD, "silent")
    assert {endpoint.target: (it.noticed_by, it.reason) for endpoint, it in made.ejected.items()} == {
        POD: ("worker", "timeout"),
        OTHER: ("worker", "refused"),
    }
    assert len(proxier.applied) == 1
    await made.noticed({})
    assert len(proxier.applied) == 1


async def test_endpoints_that_leave_are_forgotten() -> None:
    made, proxier, _ = ejector()
    await made.failed(Protocol.TCP, POD, "silent")
    await made.failed(Protocol.TCP, OTHER, "silent")
    proxier.endpoints.remove(POD)
    with capture_logs() as logs:
        made.forget(made.ejected[Endpoint(Protocol.TCP, POD)].since + 7.0)
    assert logs == [
        {
            "event": "ejected endpoint removed from its Service",
            "log_level": "info",
            "endpoint": str(POD),
            "protocol": Protocol.TCP,
            "after_s": 7.0,
        }
    ]
    assert [endpoint.target for endpoint in made.ejected] == [OTHER]
    assert proxier.applied[-1] == {(Protocol.TCP, OTHER): True}
    await made.forget_all()
    assert proxier.applied[-1] == {}


async def test_a_data_plane_in_trouble_does_not_keep_the_rules() -> None:
    made, proxier, data_plane = ejector()
    data_plane.broken = "no worker"
    await made.failed(Protocol.TCP, POD, "silent")
    assert proxier.applied == [{(Protocol.TCP, POD): True}]


async def test_failures_that_come_together_are_one_change_of_the_rules() -> None:
    made, proxier, _ = ejector()
    await asyncio.gather(made.failed(Protocol.TCP, POD, "silent"), made.failed(Protocol.TCP, OTHER, "silent"))
    assert proxier.applied == [{(Protocol.TCP, POD): True, (Protocol.TCP, OTHER): True}]
    await asyncio.gather(made.answered(Protocol.TCP, POD), made.answered(Protocol.TCP, OTHER))
    assert proxier.applied[1:] == [{}]


async def test_one_call_at_most_waits_for_the_proxier() -> None:
    """So a change of endpoints, which waits for the same lock, is the next but one at the latest."""
    made, proxier, _ = ejector()
    targets = [Target(Address(f"10.4.{number // 250}.{number % 250}"), 80) for number in range(1000)]
    proxier.endpoints.update(targets)
    proxier.free.clear()
    failures = []
    for target in targets:
        failures.append(asyncio.create_task(made.failed(Protocol.TCP, target, "silent")))
        await asyncio.sleep(0)
    assert proxier.waiting == 1
    assert not any(task.done() for task in failures), "none is in force yet"
    proxier.free.set()
    await asyncio.gather(*failures)
    assert len(proxier.applied) == 2
    assert proxier.applied[-1] == {(Protocol.TCP, target): True for target in targets}


async def test_a_cancelled_failure_keeps_no_other_from_the_rules() -> None:
    made, proxier, _ = ejector()
    proxier.free.clear()
    first = asyncio.create_task(made.failed(Protocol.TCP, POD, "silent"))
    while not proxier.waiting:
        await asyncio.sleep(0)
    second = asyncio.create_task(made.failed(Protocol.TCP, OTHER, "silent"))
    await asyncio.sleep(0)
    first.cancel()
    proxier.free.set()
    await second
    assert proxier.applied[-1] == {(Protocol.TCP, POD): True, (Protocol.TCP, OTHER): True}


async def test_hundreds_of_endpoints_that_flap_do_not_fill_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    made, proxier, _ = ejector()
    targets = [Target(Address(f"10.4.{number // 250}.{number % 250}"), 80) for number in range(500)]
    proxier.endpoints.update(targets)
    now, seconds = 1000.0, 20
    monkeypatch.setattr(ejector_module, "_now", lambda: now)
    with capture_logs() as lines:
        for _ in range(seconds):
            for target in targets:
                await made.failed(Protocol.TCP, target, "refused")
                await made.answered(Protocol.TCP, target)
            now += 1.0
            made.log_others(now)
    assert len(lines) <= 2 * (NAMED_MAX + 1) * seconds / NAMED_S
    found = Counter[bool]()
    for line in lines:
        found["ejected" in line["event"]] += line.get("endpoints", 1)
    assert found == dict.fromkeys((True, False), seconds * len(targets)), "all are counted"
