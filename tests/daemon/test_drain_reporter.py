"""The drain report of a node: what is written to the API server, and what happens when that fails."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import structlog

from kubeproxy.daemon import drain_reporter, report_schedule
from kubeproxy.daemon.drain_reporter import DrainReporter
from kubeproxy.daemon.report_room import size_of
from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.errors import ApiError, UnreachableError
from kubeproxy.model import Address, Node, ServiceName
from kubeproxy.model.drain_report import REPORT, DrainState, NodeReport, ServiceReport, decode_report
from kubeproxy.model.drain_request import DrainRequest, DrainRequests, Want
from kubeproxy.model.errors import KernelError
from kubeproxy.runtime.tasks import TaskSet
from tests.support.doubles.data_plane import FakeDataPlane
from tests.support.waiting import until

A = Address("10.0.0.1")
WEB = ServiceName("shop", "web")
NODE = Node("node-a", uid="u1")
DRAINING = {WEB: DrainState(ServiceReport(7), counted=frozenset({A}), draining=frozenset({A}))}


class FakeLeases:
    """The API server's Leases."""

    def __init__(self) -> None:
        self.leases: dict[str, dict[str, Any]] = {}
        self.writes: list[str] = []
        self.fault: ApiError | None = None

    async def get_json(self, path: str, query: object = None) -> bytearray:
        assert path == "/api/v1/nodes"
        return bytearray(b'{"metadata":{},"items":[{}]}')

    async def send_json(
        self, method: str, path: str, body: bytes, *, content_type: str = "application/json"
    ) -> bytearray:
        self.writes.append(method)
        if self.fault is not None:
            raise self.fault
        lease = json.loads(body)
        name = path.rpartition("/")[2] if method == "PATCH" else lease["metadata"]["name"]
        if method == "PATCH" and name not in self.leases:
            raise ApiError("leases: not found", cause="refused", status=404, reason="NotFound")
        self.leases[name] = {**self.leases.get(name, {}), **lease}
        return bytearray(body)

    @property
    def report(self) -> NodeReport:
        lease = self.leases["kubeproxy-drain-node-a"]
        return decode_report(lease["metadata"]["annotations"][REPORT])


async def no_connections(addresses: Collection[Address]) -> Mapping[Address, int]:
    """The kernel leads no connection to endpoints."""
    return {}


@asynccontextmanager
async def running(
    leases: FakeLeases, plane: FakeDataPlane, node: Callable[[], Node | None] = lambda: NODE
) -> AsyncIterator[tuple[DrainReporter, list[bool]]]:
    written: list[bool] = []
    reporter = DrainReporter("node-a", data_plane=plane, node=node, on_written=written.append)
    crashes: list[BaseException] = []
    tasks = TaskSet(lambda _, error: crashes.append(error))
    client = cast(Client, leases)
    task = tasks.start(reporter.run(client, no_connections), name="reporter")
    try:
        yield reporter, written
    finally:
        await tasks.end(task)
        await reporter.end(client)
    assert not crashes


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain_reporter, "LOOK_S", 0.02)


async def test_nothing_is_written_while_reports_are_off() -> None:
    leases = FakeLeases()
    async with running(leases, FakeDataPlane()) as (reporter, _):
        reporter.drains_changed(DRAINING)
        await asyncio.sleep(0)
    assert leases.writes == []


async def test_first_report_creates_the_lease_owned_by_the_node() -> None:
    leases = FakeLeases()
    async with running(leases, FakeDataPlane()) as (reporter, written):
        reporter.use(True)
        await until(lambda: written == [True])
    assert leases.writes == ["PATCH", "POST", "PATCH"]
    metadata = leases.leases["kubeproxy-drain-node-a"]["metadata"]
    assert metadata["ownerReferences"] == [{"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "u1"}]
    assert metadata["labels"] == {REPORT: "node"}


async def test_nothing_is_written_before_the_node_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain_reporter, "NODE_LOOK_S", 0.01)
    leases, known, looks = FakeLeases(), list[Node](), 0

    def node() -> Node | None:
        nonlocal looks
        looks += 1
        return known[0] if known else None

    async with running(leases, FakeDataPlane(), node) as (reporter, written):
        reporter.use(True)
        await until(lambda: looks > 3)
        assert leases.writes == []
        known.append(NODE)
        await until(lambda: written == [True])


async def test_what_has_no_room_is_left_out_and_said() -> None:
    leases, many = FakeLeases(), frozenset(Address(f"10.9.{n // 250}.{n % 250}") for n in range(17_500))
    evil = DrainState(ServiceReport(9, unused=many), counted=many, draining=frozenset())
    crowd = {ServiceName("evil", f"b{number}"): evil for number in range(2)}
    async with running(leases, FakeDataPlane()) as (reporter, written):
        reporter.use(True)
        reporter.drains_changed({**DRAINING, **crowd})
        await until(lambda: True in written)
        await until(lambda: WEB in leases.report.services)
        assert leases.report == NodeReport({WEB: ServiceReport(7)}, {"evil": 2})


async def test_only_what_has_changed_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[ServiceName] = []

    def noted(name: ServiceName, state: DrainState) -> int:
        measured.append(name)
        return size_of(name, state)

    monkeypatch.setattr(drain_reporter, "size_of", noted)
    reporter = DrainReporter("node-a", data_plane=FakeDataPlane(), node=lambda: NODE)
    crowd = {ServiceName("evil", f"b{number}"): DRAINING[WEB] for number in range(100)}
    for generation in range(10):
        changed = DrainState(ServiceReport(generation), counted=frozenset(), draining=frozenset())
        reporter.drains_changed({**crowd, WEB: changed})
    assert len(measured) == 100 + 10


async def test_generation_and_open_connections_are_reported_until_the_last_one_ends() -> None:
    leases, plane = FakeLeases(), FakeDataPlane()
    async with running(leases, plane) as (reporter, _):
        reporter.use(True)
        await until(lambda: bool(leases.leases))
        plane.open_counts = {A: 3}
        reporter.drains_changed(DRAINING)
        await until(lambda: leases.report == NodeReport({WEB: ServiceReport(7, open={A: 3})}))
        assert reporter.draining == {A}
        assert reporter.open == {A: 3}
        plane.open_counts = {}
        await until(lambda: leases.report == NodeReport({WEB: ServiceReport(7)}))


async def test_switched_off_the_report_expires_at_once() -> None:
    leases = FakeLeases()
    async with running(leases, FakeDataPlane()) as (reporter, written):
        reporter.use(True)
        await until(lambda: written == [True])
        assert leases.leases["kubeproxy-drain-node-a"]["spec"]["leaseDurationSeconds"] == 150
        reporter.use(False)
        await until(lambda: leases.leases["kubeproxy-drain-node-a"]["spec"]["leaseDurationSeconds"] == 1)


async def test_failures_are_logged_once_and_the_report_is_written_when_the_server_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kubeproxy.daemon.report_schedule.RETRY_FIRST_S", 0.01)
    monkeypatch.setattr("kubeproxy.daemon.report_schedule.RETRY_LIMIT_S", 0.01)
    leases = FakeLeases()
    leases.fault = UnreachableError("api.example: connection refused", cause="connect")
    with structlog.testing.capture_logs() as entries:
        async with running(leases, FakeDataPlane()) as (reporter, written):
            reporter.use(True)
            reporter.drains_changed(DRAINING)
            await until(lambda: len(written) > 5)
            leases.fault = None
            await until(lambda: written[-1])
            assert leases.report.services[WEB].generation == 7
    assert [entry["event"] for entry in entries] == [
        "drain report not written, retrying",
        "drain report written again",
    ]


async def test_connections_of_the_kernel_count_and_a_failed_count_keeps_the_last() -> None:
    counts: dict[Address, int] | None = {A: 2}

    async def translated_to(addresses: Collection[Address]) -> Mapping[Address, int]:
        if counts is None:
            raise KernelError("cannot count TCP flows")
        return counts

    plane = FakeDataPlane()
    plane.open_counts = {A: 3}
    reporter = DrainReporter("node-a", data_plane=plane, node=lambda: NODE)

    async def counted() -> Mapping[Address, int]:
        await reporter._count(frozenset({A}), translated_to)
        return reporter.open

    assert await counted() == {A: 5}
    counts, plane.open_counts = None, {}
    with structlog.testing.capture_logs() as entries:
        for _ in range(3):
            assert await counted() == {A: 5}
    assert [entry["event"] for entry in entries] == ["connections not counted"]
    counts = {}
    assert await counted() == {}


async def test_replaced_instance_reports_what_it_still_has_in_a_lease_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drain_reporter, "LEAVING_LOOK_S", 0.02)
    leases, plane = FakeLeases(), FakeDataPlane()
    reporter = DrainReporter("node-a", data_plane=plane, node=lambda: NODE)
    reporter.use(True)
    request = DrainRequest("me", "a", (A,), Want.DRAIN, since=5, until=time.time() + 300)
    client = cast(Client, leases)
    tasks = TaskSet(lambda _, error: None)
    task = tasks.start(reporter.leave(client, lambda: {WEB: DrainRequests(5, (request,))}), name="leaving")
    await asyncio.sleep(0)
    assert leases.leases == {}, "nothing is written without a connection"
    plane.open_counts = {A: 2}
    await until(lambda: "kubeproxy-drain-node-a.leaving" in leases.leases)
    lease = leases.leases["kubeproxy-drain-node-a.leaving"]
    assert lease["metadata"]["labels"] == {REPORT: "leaving"}
    assert decode_report(lease["metadata"]["annotations"][REPORT]).services[WEB].open == {A: 2}
    plane.open_counts = {}
    await until(lambda: leases.leases["kubeproxy-drain-node-a.leaving"]["spec"]["leaseDurationSeconds"] == 1)
    await tasks.end(task)


async def test_replaced_instance_renews_its_lease_while_connections_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain_reporter, "LEAVING_LOOK_S", 0.01)
    monkeypatch.setattr(report_schedule, "HEARTBEAT_S", 0.02)
    leases, plane = FakeLeases(), FakeDataPlane()
    plane.open_counts = {A: 2}
    reporter = DrainReporter("node-a", data_plane=plane, node=lambda: NODE)
    reporter.use(True)
    request = DrainRequest("me", "a", (A,), Want.DRAIN, since=5, until=time.time() + 300)
    tasks = TaskSet(lambda _, error: None)
    task = tasks.start(
        reporter.leave(cast(Client, leases), lambda: {WEB: DrainRequests(5, (request,))}), name="leaving"
    )
    await until(lambda: leases.writes.count("PATCH") >= 4)
    plane.open_counts = {}
    await until(lambda: leases.leases["kubeproxy-drain-node-a.leaving"]["spec"]["leaseDurationSeconds"] == 1)
    await tasks.end(task)


async def test_server_that_hangs_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain_reporter, "END_S", 0.05)
    leases = FakeLeases()
    async with running(leases, FakeDataPlane()) as (reporter, written):
        reporter.use(True)
        await until(lambda: written == [True])

        async def hang(*_: object, **__: object) -> bytearray:
            await asyncio.Event().wait()
            raise AssertionError

        monkeypatch.setattr(leases, "send_json", hang)
