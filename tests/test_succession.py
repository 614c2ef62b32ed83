"""Owners and successors, over real sockets in this process; names are each test's own."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest
import uvloop

from kubeproxy import succession
from kubeproxy.errors import KernelError
from kubeproxy.handover import Handover
from kubeproxy.netfilter.conntrack_fake import FakeConntrack
from kubeproxy.netfilter.fake import FakeNetfilter
from kubeproxy.netfilter.ruleset import RuleSet
from kubeproxy.succession import RETRY_S, Duties, Predecessor, Succession


class Story:
    """What an owner was asked to do, in order."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.obstacle: Callable[[], Awaitable[None]] | None = None

    def duties(self) -> Duties:
        async def hold(on: bool) -> None:
            self.words.append("hold" if on else "resume")

        async def yield_all() -> None:
            if self.obstacle is not None:
                await self.obstacle()
            self.words.append("yield")

        return Duties(share=lambda on: self.words.append("share" if on else "unshare"), hold=hold, yield_all=yield_all)


@pytest.fixture
def name() -> str:
    return f"kubeproxy-test/{uuid4()}"


@asynccontextmanager
async def process(name: str, story: Story | None = None) -> AsyncIterator[tuple[Succession, Predecessor | None]]:
    """One in the line."""
    succession = Succession((story or Story()).duties(), version="1", name=name)
    try:
        yield succession, await succession.begin()
    finally:
        await succession.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


async def test_the_first_has_no_predecessor(name: str) -> None:
    async with process(name) as (_, predecessor):
        assert predecessor is None


async def test_a_successor_takes_over_and_is_found_by_the_next(name: str) -> None:
    story = Story()
    async with process(name, story), process(name) as (second, predecessor):
        assert predecessor is not None
        assert predecessor.pid == os.getpid()
        await predecessor.hold()
        await predecessor.take()
        assert story.words == ["share", "hold", "yield"]
        assert await second.own()
        predecessor.close()
        async with process(name) as (_, next_one):
            assert next_one is not None
            next_one.close()


async def test_an_owner_goes_on_when_its_successor_dies(name: str) -> None:
    story = Story()
    async with process(name, story):
        async with process(name) as (_, predecessor):
            assert predecessor is not None
            await predecessor.hold()
            predecessor.close()
        await until(lambda: story.words == ["share", "hold", "unshare", "resume"])
        async with process(name) as (_, again):
            assert again is not None
            again.close()


async def test_a_newcomer_has_the_name_once_its_owner_has_died(name: str) -> None:
    async with process(name) as (owner, _), process(name) as (second, predecessor):
        assert predecessor is not None
        await owner.close()
        async with asyncio.timeout(30):
            while not await second.own():
                await asyncio.sleep(0.01)
        await predecessor.hold()  # it is gone, which is no obstacle
        await predecessor.take()
        predecessor.close()


def test_a_predecessor_that_has_gone_is_no_obstacle_to_the_loop_that_we_run_on(name: str) -> None:
    """Writing to whoever has gone raises errors of its own there."""

    async def story() -> None:
        async with process(name) as (owner, _), process(name) as (_, predecessor):
            assert predecessor is not None
            await owner.close()
            await until(lambda: predecessor.gone)
            for _ in range(2):
                await predecessor.hold()
                await predecessor.take()
            predecessor.close()
            await predecessor.resume()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(story())


async def test_two_newcomers_take_turns(name: str) -> None:
    story = Story()
    async with process(name, story), process(name) as (second, predecessor):
        assert predecessor is not None
        async with asyncio.TaskGroup() as group:

            async def come_third() -> None:
                async with process(name) as (_, found):
                    assert found is not None
                    found.close()

            third = group.create_task(come_third())
            await asyncio.sleep(0)
            assert not third.done()
            await predecessor.take()
            assert await second.own()
            predecessor.close()
    assert story.words == ["share", "yield"]


async def test_who_waits_for_its_turn_can_be_told_to_give_up(name: str) -> None:
    stop = asyncio.Event()
    async with process(name), process(name) as (_, predecessor):
        assert predecessor is not None
        third = Succession(Story().duties(), version="1", name=name)
        waiting = asyncio.ensure_future(third.begin(given_up=stop.is_set))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3 * RETRY_S):
                await asyncio.shield(waiting)
        stop.set()
        async with asyncio.timeout(30):
            assert await waiting is None
        await third.close()
        predecessor.close()


async def test_a_newcomer_leaves_a_free_name_to_the_successor(name: str) -> None:
    others = True
    third = Succession(Story().duties(), version="1", name=name, others=lambda: others)
    second = Succession(Story().duties(), version="1", name=name)
    waiting = asyncio.ensure_future(third.begin())
    await asyncio.sleep(0)
    assert await second.own()
    async with asyncio.timeout(30):
        predecessor = await waiting
    assert predecessor is not None
    predecessor.close()
    await third.close()
    await second.close()


async def test_an_owner_that_hung_makes_way_when_it_answers_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(succession, "ANSWER_S", 0.1)
    story, ours = Story(), Story()
    hung = Succession(story.duties(), version="1", name=name)
    assert hung._bind()  # it listens, and accepts nobody
    async with process(name, ours) as (newcomer, predecessor):
        assert predecessor is None
        newcomer.in_force()
        assert await hung.own()
        await until(lambda: "resume" in ours.words)
        assert story.words[-3:] == ["share", "hold", "yield"]
        await until(lambda: newcomer._server is not None)
    await hung.close()


async def test_an_owner_that_ends_says_so_without_complaint(name: str) -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    story = Story()
    owner = Succession(story.duties(), version="1", name=name)
    await owner.begin()
    reader, writer = await asyncio.open_unix_connection(f"\0{name}")
    writer.write(json.dumps({"orphan": os.getpid(), "run": "x"}).encode() + b"\n")
    await until(lambda: owner.orphans == 1)
    async with process(name) as (_, predecessor):
        assert predecessor is not None
        await predecessor.hold()
        await owner.close()
        assert await reader.read() == b""
        await until(lambda: predecessor.gone)
        predecessor.close()
    writer.close()
    assert story.words == ["share", "hold"]
    assert complaints == []


async def test_one_who_leaves_waits_while_its_successor_turns_the_rules(name: str) -> None:
    async with process(name) as (owner, _), process(name) as (_, predecessor):
        assert predecessor is not None
        async with asyncio.timeout(1):
            await owner.between()
        await predecessor.hold()
        leaving = asyncio.ensure_future(owner.between())
        await asyncio.sleep(0.05)
        assert not leaving.done()
        await predecessor.take()
        async with asyncio.timeout(1):
            await leaving
        predecessor.close()


async def test_orphans_are_told_when_the_rules_are_in_force(name: str) -> None:
    async with process(name) as (owner, _):

        async def orphan() -> bytes:
            reader, writer = await asyncio.open_unix_connection(f"\0{name}")
            writer.write(json.dumps({"orphan": os.getpid(), "run": "x"}).encode() + b"\n")
            line = await reader.readline()
            writer.close()
            return line

        early = asyncio.create_task(orphan())
        await until(lambda: owner.orphans == 1)
        assert not early.done()
        owner.in_force()
        assert json.loads(await early) == {"retire": True}
        assert json.loads(await orphan()) == {"retire": True}
        await until(lambda: owner.orphans == 0)


@pytest.mark.parametrize(
    "garbage", [b"\n", b"[]\n", b'{"do": "dance"}\n', b"x" * 10_000 + b"\n", b"\xff\n", b'{"orphan": "x"}\n']
)
async def test_garbage_ends_that_connection_only(name: str, garbage: bytes) -> None:
    async with process(name):
        reader, writer = await asyncio.open_unix_connection(f"\0{name}")
        writer.write(garbage)
        assert await reader.read() == b""
        writer.close()
        async with process(name) as (_, predecessor):
            assert predecessor is not None
            predecessor.close()


async def test_the_first_transaction_and_its_flows_are_the_handover(name: str) -> None:
    story, taken = Story(), asyncio.Event()

    async def on_taken() -> None:
        taken.set()

    async with process(name, story), process(name) as (_, predecessor):
        assert predecessor is not None
        fake, conntrack = FakeNetfilter(), FakeConntrack()
        handover = Handover(fake, conntrack, predecessor, on_taken=on_taken)
        fake.fail()
        with pytest.raises(KernelError):
            await handover.apply(RuleSet(), verify=True)
        assert story.words == ["share", "hold", "resume"]
        await handover.apply(RuleSet(), verify=True)
        assert story.words == ["share", "hold", "resume", "hold"], "flows may still lead to the predecessor"
        assert not taken.is_set()
        conntrack.fail()
        with pytest.raises(KernelError):
            await handover.reconcile(None, RuleSet())
        assert story.words == ["share", "hold", "resume", "hold", "yield"], "flows are no obstacle"
        assert taken.is_set()
        await handover.apply(RuleSet(), verify=True)
        await handover.reconcile(None, RuleSet())
        assert story.words[-1] == "yield"
        assert len(conntrack.calls) == 2


async def test_who_dies_before_the_flows_are_deleted_has_not_taken_over(name: str) -> None:
    story = Story()

    async def on_taken() -> None:
        raise AssertionError

    async with process(name, story):
        async with process(name) as (_, predecessor):
            assert predecessor is not None
            await Handover(FakeNetfilter(), FakeConntrack(), predecessor, on_taken=on_taken).apply(
                RuleSet(), verify=True
            )
            predecessor.close()
        await until(lambda: story.words == ["share", "hold", "unshare", "resume"])
