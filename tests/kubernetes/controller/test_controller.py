"""Workers: when a key is tried again, and when it is given up."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from kubeproxy.kubernetes.client.errors import ApiError, UnreachableError
from kubeproxy.kubernetes.controller.controller import AWAY_S, Controller
from tests.controllers.virtual_time import run

RETRIES = 5


class Failing:
    """A sync that raises so many times."""

    def __init__(self, error: Exception, times: int) -> None:
        self.error = error
        self.left = times
        self.calls = 0
        self.at: list[float] = []
        """When it was called."""

    async def __call__(self, key: str) -> None:
        self.calls += 1
        self.at.append(asyncio.get_running_loop().time())
        if self.left:
            self.left -= 1
            raise self.error


async def _played(failing: Failing, *, max_retries: int | None = RETRIES) -> Controller:
    controller = Controller("it", failing, workers=2, max_retries=max_retries)
    working = asyncio.create_task(controller.run())
    controller.enqueue("a/b")
    await asyncio.sleep(50_000)
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    return controller


def test_a_key_is_given_up_after_so_many_retries() -> None:
    failing = Failing(ApiError("internal error", cause="status 500", status=500), 1000)
    controller = run(_played(failing))
    assert (failing.calls, controller.dropped) == (RETRIES + 1, 1)
    assert controller.idle


def test_without_a_limit_no_key_is_given_up() -> None:
    failing = Failing(ApiError("internal error", cause="status 500", status=500), 20)
    controller = run(_played(failing, max_retries=None))
    assert (failing.calls, controller.dropped) == (21, 0)


def test_a_server_that_is_away_is_no_reason_to_give_up() -> None:
    failing = Failing(UnreachableError("connection refused", cause="refused"), 4 * RETRIES)
    controller = run(_played(failing))
    assert (failing.calls, controller.dropped, controller.errors) == (4 * RETRIES + 1, 0, 4 * RETRIES)
    pauses = [later - earlier for earlier, later in pairwise(failing.at)]
    assert pauses == sorted(pauses)
    assert max(pauses) == pytest.approx(AWAY_S)


def test_other_errors_do_not_stop_the_workers() -> None:
    failing = Failing(ValueError("a fault of ours"), 2)
    controller = run(_played(failing))
    assert (failing.calls, controller.errors) == (3, 2)


def test_as_many_keys_are_synced_at_once_as_there_are_workers() -> None:
    at_once: list[int] = [0]

    async def sync(key: str) -> None:
        at_once.append(at_once[-1] + 1)
        await asyncio.sleep(1)
        at_once.append(at_once[-1] - 1)

    async def scenario() -> None:
        controller = Controller("it", sync, workers=3)
        working = asyncio.create_task(controller.run())
        for key in "abcdefg":
            controller.enqueue(key)
        await asyncio.sleep(10)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)

    run(scenario())
    assert (max(at_once), at_once[-1], len(at_once)) == (3, 0, 1 + 2 * 7)
