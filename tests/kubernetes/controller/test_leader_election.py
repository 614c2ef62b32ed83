"""Leading by a Lease, against an API server in memory and in virtual time."""

from __future__ import annotations

import asyncio
from random import Random
from typing import cast

import pytest
import structlog.testing

from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.errors import UnreachableError
from kubeproxy.kubernetes.controller.election_state import LeaderElection
from kubeproxy.kubernetes.controller.leader_election import Leadership, LeadershipLostError, LeaseName
from tests.controllers.api import Api
from tests.controllers.virtual_time import run, unix_time

NAME = LeaseName("kube-system", "controllers")


class _Candidate:
    def __init__(self, api: Api, identity: str, *, raises: bool = False) -> None:
        """`raises`: the work ends at the first write that is held back."""
        loop = asyncio.get_running_loop()
        self.offset = 0.0
        self.leadership = Leadership(
            cast(Client, api),
            NAME,
            LeaderElection(identity),
            clock=lambda: loop.time() + self.offset,
            unix_clock=unix_time,
            random=Random(identity),
        )
        self.worked = 0
        self.held_back = 0
        self.raises = raises
        self.task = asyncio.create_task(self.leadership.lead(self._work))

    async def _work(self) -> None:
        while True:
            try:
                self.leadership.demand()
                self.worked += 1
            except LeadershipLostError:
                self.held_back += 1
                if self.raises:
                    raise
            await asyncio.sleep(0.5)

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def _lease(api: Api) -> dict[str, object]:
    spec: dict[str, object] = api.get("leases", NAME.name, NAME.namespace)["spec"]
    return spec


def test_one_of_two_leads_and_the_other_follows_when_it_is_killed() -> None:
    async def scenario() -> None:
        api = Api(unix_time)
        first, second = _Candidate(api, "first"), _Candidate(api, "second")
        await asyncio.sleep(30)
        leader, other = (first, second) if first.worked else (second, first)
        assert leader.worked > 50
        assert other.worked == 0
        assert _lease(api)["leaseTransitions"] == 0
        await leader.end()
        killed = asyncio.get_running_loop().time()
        while not other.worked:
            await asyncio.sleep(0.1)
        assert 13 <= asyncio.get_running_loop().time() - killed <= 22
        assert _lease(api)["leaseTransitions"] == 1
        await other.end()

    run(scenario())


def test_a_released_lease_is_followed_at_once() -> None:
    async def scenario() -> None:
        api = Api(unix_time)
        first = _Candidate(api, "first")
        await asyncio.sleep(5)
        second = _Candidate(api, "second")
        await asyncio.sleep(5)
        first.task.cancel()
        await asyncio.gather(first.task, return_exceptions=True)
        await first.leadership.release()
        await asyncio.sleep(5)
        assert second.worked
        await second.end()

    run(scenario())


def test_a_server_that_is_away_ends_the_work_before_another_may_begin() -> None:
    async def scenario() -> None:
        api = Api(unix_time)
        first = _Candidate(api, "first")
        await asyncio.sleep(5)
        api.refuse = lambda *_: UnreachableError("connection refused", cause="refused")
        gone = asyncio.get_running_loop().time()
        await asyncio.wait_for(first.task, 60)
        assert asyncio.get_running_loop().time() - gone <= 13
        assert not first.leadership.is_leading()

    with structlog.testing.capture_logs() as logs:
        run(scenario())
    failed = [entry for entry in logs if entry["event"] == "lease request failed"]
    assert len(failed) == 1, "not at each of several tries"


def test_a_process_that_was_stopped_writes_nothing_when_it_wakes() -> None:
    """SIGSTOP for longer than the lease: the clock has gone on, every timer is late, the first write is held back."""

    async def scenario() -> None:
        api = Api(unix_time)
        first = _Candidate(api, "first")
        await asyncio.sleep(5)
        worked = first.worked
        assert worked
        first.offset += 16  # as if all of this time had passed between two instructions
        with pytest.raises(LeadershipLostError):
            first.leadership.demand()
        second = _Candidate(api, "second")
        second.offset = 0
        await asyncio.wait_for(first.task, 60)
        assert first.worked == worked
        await second.end()

    run(scenario())


def test_a_write_that_is_held_back_ends_the_work_and_the_loss_is_logged() -> None:
    """The part of the work that writes next may be earlier than the renewal."""

    async def scenario() -> None:
        api = Api(unix_time)
        first = _Candidate(api, "first", raises=True)
        await asyncio.sleep(5)
        first.offset += 16
        with structlog.testing.capture_logs() as logs:
            await asyncio.wait_for(first.task, 60)
        assert [each["event"] for each in logs if each["log_level"] == "error"] == ["leadership lost"]
        assert not first.leadership.is_leading()

    run(scenario())


def test_another_took_the_lease() -> None:
    async def scenario() -> None:
        api = Api(unix_time)
        first = _Candidate(api, "first")
        await asyncio.sleep(5)
        api.patch("leases", NAME.namespace, NAME.name, {"spec": {"holderIdentity": "another"}})
        await asyncio.wait_for(first.task, 60)
        assert first.leadership.holder == "another"
        assert not first.leadership.is_leading()

    run(scenario())


def test_a_conflict_on_renewal_is_no_loss() -> None:
    async def scenario() -> None:
        api = Api(unix_time)
        first = _Candidate(api, "first")
        await asyncio.sleep(5)
        renewed = _lease(api)["renewTime"]
        api.patch("leases", NAME.namespace, NAME.name, {"metadata": {"labels": {"seen": "yes"}}})
        await asyncio.sleep(30)
        assert not first.task.done()
        assert _lease(api)["renewTime"] != renewed
        assert api.get("leases", NAME.name, NAME.namespace)["metadata"]["labels"] == {"seen": "yes"}
        await first.end()

    run(scenario())
