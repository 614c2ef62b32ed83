"""Decisions of a shutdown; `tests/system/e2e/test_restart_and_upgrade.py` has what clients see of it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from kubeproxy.daemon import shutdown
from kubeproxy.daemon.shutdown import RulesAtExit, Shutdown, arrival_s, last_s, rules_at_exit
from kubeproxy.daemon.signals import Signals
from kubeproxy.runtime.tasks import TaskSet


@pytest.mark.parametrize(("ours", "cleanup_on_exit", "rules"), [
    (True, False, RulesAtExit.PAUSE),
    (True, True, RulesAtExit.REMOVE),
    (False, False, RulesAtExit.LEAVE),
    (False, True, RulesAtExit.LEAVE),
])  # fmt: skip
def test_rules_of_other_instances_stay(ours: bool, cleanup_on_exit: bool, rules: RulesAtExit) -> None:
    assert rules_at_exit(ours=ours, cleanup_on_exit=cleanup_on_exit) is rules


@pytest.mark.parametrize(("grace_s", "last", "arrival"), [
    (10.0, 1.0, 0.5),
    (1.0, 0.5, 0.5),
    (0.5, 0.25, 0.25),
    (0.0, 0.0, 0.0),
])  # fmt: skip
def test_the_last_part_is_within_the_grace_period(grace_s: float, last: float, arrival: float) -> None:
    assert last_s(grace_s) == last
    assert arrival_s(grace_s) == arrival


class Others:
    """All that takes part in the end, with a packet filter that hangs."""

    open_connections = 0

    def __init__(self, successor: str = "") -> None:
        self.steps: list[str] = []
        self.successor = successor
        self.kernel = self

    async def stop(self, *, cleanup: bool, pause: bool = False) -> None:
        if not self.successor:
            await asyncio.Event().wait()

    async def move(self, successor: str) -> tuple[int, int]:
        assert successor == self.successor
        self.steps.append("move")
        await asyncio.Event().wait()
        raise AssertionError

    def release_claims(self) -> None:
        pass

    async def retire(self) -> None:
        self.steps.append("retire")

    async def drain(self, grace_s: float) -> int:
        return 0

    async def flush(self) -> None:
        pass

    async def forget_ended(self, *, ours: bool) -> None:
        assert ours
        self.steps.append("forget")

    def close(self) -> asyncio.Future[None]:
        self.steps.append("close")
        return asyncio.ensure_future(asyncio.sleep(0))


@pytest.mark.timeout(30)
async def test_a_packet_filter_that_hangs_does_not_block_the_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutdown, "RULES_S", 0.01)
    others = cast(Any, Others())
    leaving = Shutdown(
        signals=Signals(),
        takeover=others,
        proxier=others,
        data_plane=others,
        access_log=others,
        tasks=TaskSet(lambda name, error: None),
    )
    with capture_logs() as logs:
        await leaving.leave(RulesAtExit.PAUSE, within_s=0.0)
    assert others.steps == ["forget", "retire", "forget", "close", "forget", "close"]
    assert [line["reason"] for line in logs] == ["no answer within 0.01 s"]


@pytest.mark.timeout(30)
@pytest.mark.parametrize("hurried", [False, True])
async def test_a_successor_that_hangs_does_not_keep_it_alive(monkeypatch: pytest.MonkeyPatch, hurried: bool) -> None:
    """A second signal ends the waiting, too."""
    monkeypatch.setattr(shutdown, "MOVE_S", 3600.0 if hurried else 0.01)
    others, signals, tasks = cast(Any, Others("new")), Signals(), TaskSet(lambda name, error: None)
    if hurried:
        signals.at_once.set()
    leaving = Shutdown(
        signals=signals, takeover=others, proxier=others, data_plane=others, access_log=others, tasks=tasks
    )
    await leaving.drain_after_takeover(0.0)
    assert others.steps == ["move", "forget", "retire", "forget", "close", "forget", "close"]
    await tasks.close()
