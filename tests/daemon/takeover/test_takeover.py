"""Owners and successors, over real sockets in this process; names are each test's own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from uuid import uuid4

import msgspec
import pytest
import uvloop

from kubeproxy.daemon.takeover import predecessor as takeover_predecessor
from kubeproxy.daemon.takeover import takeover as takeover
from kubeproxy.daemon.takeover.control_socket import ControlSocket
from kubeproxy.daemon.takeover.predecessor import RETRY_S, Predecessor
from kubeproxy.daemon.takeover.protocol import Message, receive_first, send_first, told
from kubeproxy.daemon.takeover.rule_transfer import RuleTransfer
from kubeproxy.daemon.takeover.takeover import OwnerCallbacks, Takeover
from kubeproxy.dataplane.balancing.affinity import pieces
from kubeproxy.dataplane.messages import Binding, RestoreBindings
from kubeproxy.model import Address, Family, FrontendName, ServicePortName, Target
from kubeproxy.model.errors import KernelError
from kubeproxy.netfilter.ruleset import RuleSet
from kubeproxy.runtime import net_admin
from kubeproxy.runtime.unix_names import listening
from tests.support.doubles.conntrack import FakeConntrack
from tests.support.doubles.data_plane import FakeDataPlane
from tests.support.doubles.netfilter import FakeNetfilter


class Story:
    """What an owner was asked to do, in order."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.obstacle: Callable[[], Awaitable[None]] | None = None
        self.bound: list[RestoreBindings] = []
        """What its data plane knows of clients."""
        self.forgets: Exception | None = None
        self.leads_here: bool | KernelError = False
        """Whether the rules still lead to it."""
        self.ponders = False
        """Whether its data plane has no answer."""

    def duties(self) -> OwnerCallbacks:
        async def hold(on: bool) -> None:
            self.words.append("hold" if on else "resume")

        async def yield_all() -> None:
            if self.obstacle is not None:
                await self.obstacle()
            self.words.append("yield")

        async def bindings() -> list[RestoreBindings]:
            self.words.append("recall")
            if self.forgets is not None:
                raise self.forgets
            if self.ponders:
                await asyncio.Event().wait()
            return self.bound

        async def leads_here() -> bool:
            if isinstance(self.leads_here, KernelError):
                raise self.leads_here
            return self.leads_here

        return OwnerCallbacks(
            share=lambda on: self.words.append("share" if on else "unshare"),
            hold=hold,
            leads_here=leads_here,
            bindings=bindings,
            yield_all=yield_all,
        )


@pytest.fixture
def name() -> str:
    """How the names of this test's processes begin."""
    return f"kubeproxy-test/{uuid4()}/"


@pytest.fixture(autouse=True)
def capable(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests may be run by a user without CAP_NET_ADMIN; tests/runtime/test_net_admin.py and
    tests/system/e2e/test_security_takeover.py show what the proof is worth."""
    challenge = net_admin.Challenge()
    if not net_admin.answer(os.dup(challenge.fileno())):
        monkeypatch.setattr(net_admin, "answer", _pretend)
        monkeypatch.setattr(net_admin.Challenge, "answered", True)
    challenge.close()


def _pretend(descriptor: int) -> bool:
    os.close(descriptor)
    return True


async def dial(name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to the one process of this test."""
    (only,) = listening(name)
    return await asyncio.open_unix_connection(f"\0{only}")


@asynccontextmanager
async def process(name: str, story: Story | None = None) -> AsyncIterator[tuple[Takeover, Predecessor | None]]:
    """One in the line."""
    takeover = Takeover((story or Story()).duties(), version="1", prefix=name)
    try:
        found = await takeover.begin()
        takeover.answer()
        yield takeover, found
    finally:
        await takeover.close()


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
        second.own()
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


async def test_a_newcomer_owns_the_node_once_its_predecessor_has_died(name: str) -> None:
    async with process(name) as (owner, _), process(name) as (_, predecessor):
        assert predecessor is not None
        await owner.close()
        await until(lambda: predecessor.gone)
        async with process(name) as (_, found):
            assert found is not None
            found.close()
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
            second.own()
            predecessor.close()
    assert story.words == ["share", "yield"]


async def test_who_waits_for_its_turn_can_be_told_to_give_up(name: str) -> None:
    stop = asyncio.Event()
    async with process(name), process(name) as (_, predecessor):
        assert predecessor is not None
        third = Takeover(Story().duties(), version="1", prefix=name)
        waiting = asyncio.ensure_future(third.begin(given_up=stop.is_set))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3 * RETRY_S):
                await asyncio.shield(waiting)
        stop.set()
        async with asyncio.timeout(30):
            assert await waiting is None
        await third.close()
        predecessor.close()


async def test_of_several_that_come_at_once_one_owns_the_node_and_the_others_follow(name: str) -> None:
    many = [Takeover(Story().duties(), version="1", prefix=name) for _ in range(4)]
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:

        async def come(one: Takeover) -> None:
            predecessor = await one.begin()
            one.answer()
            if predecessor is not None:
                await predecessor.take()
                one.own()
                predecessor.close()

        for one in many:
            group.create_task(come(one))
    assert sum(one.predecessor is None for one in many) == 1
    assert sum(one.superseded.is_set() for one in many) == 3, "one after the other"
    for one in many:
        await one.close()


async def test_nothing_is_asked_of_an_owner_that_is_not_ready(name: str) -> None:
    """Its duties are done by parts that it makes after it has begun."""
    story = Story()
    owner, newcomer = (Takeover(story.duties(), version="1", prefix=name) for _ in range(2))
    assert await owner.begin() is None
    waiting = asyncio.ensure_future(newcomer.begin())
    await asyncio.sleep(3 * RETRY_S)
    assert not waiting.done()
    assert story.words == []
    owner.answer()
    async with asyncio.timeout(30):
        predecessor = await waiting
    assert predecessor is not None
    predecessor.close()
    await newcomer.close()
    await owner.close()


async def test_an_owner_that_hung_makes_way_when_it_answers_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover_predecessor, "ANSWER_S", 0.1)
    monkeypatch.setattr(takeover, "ANSWER_S", 0.1)
    story, ours = Story(), Story()
    hung = Takeover(story.duties(), version="1", prefix=name)
    assert await hung.begin() is None
    hung.answer()
    asyncio.get_running_loop().remove_reader(hung._socket._sock.fileno())  # type: ignore[union-attr]  # nobody accepts
    async with process(name, ours) as (newcomer, predecessor):
        assert predecessor is None
        newcomer.in_force()
        hung._socket._resume()
        await until(lambda: "resume" in ours.words)
        assert story.words[-3:] == ["share", "hold", "yield"]
    await hung.close()


async def test_an_owner_does_not_leave_while_rules_lead_to_it(name: str) -> None:
    story = Story()
    async with process(name, story) as (owner, _), process(name) as (_, predecessor):
        assert predecessor is not None
        await predecessor.hold()
        for reason in (True, KernelError("no netlink")):
            story.leads_here = reason
            assert await predecessor.take() is not None
        assert not owner.superseded.is_set()
        story.leads_here = False
        assert await predecessor.take() is None
        assert owner.superseded.is_set()
        assert story.words == ["share", "hold", "yield"]
        predecessor.close()


async def test_a_successor_does_not_keep_the_owner_from_its_rules_for_ever(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takeover, "HOLD_S", 0.1)
    story = Story()
    async with process(name, story), process(name) as (_, predecessor):
        assert predecessor is not None
        await predecessor.hold()
        await until(lambda: story.words == ["share", "hold", "unshare", "resume"])
        predecessor.close()


async def test_the_older_of_two_that_cannot_speak_yields(name: str) -> None:
    stories = Story(), Story()
    older, younger = (Takeover(story.duties(), version="1", prefix=name) for story in stories)
    await older.begin()
    assert not older.rival_lives()
    younger._search.passed_over.add(older._socket.name)
    await younger.begin()
    assert older.rival_lives()
    assert not younger.rival_lives()
    older.yield_to_rival()
    older.yield_to_rival()
    await asyncio.wait_for(older.superseded.wait(), 30)
    assert stories[0].words == ["yield"]
    await older.close()
    await younger.close()


async def test_an_owner_that_ends_says_so_without_complaint(name: str) -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    story = Story()
    owner = Takeover(story.duties(), version="1", prefix=name)
    await owner.begin()
    owner.answer()
    reader, writer = await dial(name)
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
            reader, writer = await dial(name)
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
        reader, writer = await dial(name)
        writer.write(garbage)
        with contextlib.suppress(ConnectionResetError):  # it did not even read all of it
            assert await reader.read() == b""
        writer.close()
        async with process(name) as (_, predecessor):
            assert predecessor is not None
            predecessor.close()


async def test_what_a_stranger_sends_along_is_not_kept(name: str) -> None:
    """Descriptors that nobody asked for, and first words that nobody understands."""

    def open_descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    async with process(name):
        (only,) = listening(name)
        before = open_descriptors()
        for first in (b'{"do": "dance"}\n', b'{"orphan": "x"}\n', b'{"do": "hello"}\n', b"garbage\n"):
            for then in (b"", b'{"proved": true}\n'):
                with socket.socket(socket.AF_UNIX) as peer:
                    peer.connect(f"\0{only}")
                    read, write = os.pipe()
                    socket.send_fds(peer, [first], [read])
                    await asyncio.sleep(0.05)
                    with contextlib.suppress(OSError):
                        socket.send_fds(peer, [then], [write])
                    os.close(read)
                    os.close(write)
                    await asyncio.sleep(0.05)
        await until(lambda: open_descriptors() == before)


async def test_the_first_transaction_and_its_flows_are_the_handover(name: str) -> None:
    story, taken = Story(), asyncio.Event()

    async def on_taken() -> None:
        taken.set()

    async with process(name, story), process(name) as (successor, _):
        fake, conntrack = FakeNetfilter(), FakeConntrack()
        rule_transfer = RuleTransfer(fake, conntrack, successor, FakeDataPlane(), on_taken=on_taken)
        fake.fail()
        with pytest.raises(KernelError):
            await rule_transfer.apply(RuleSet(), verify=True)
        assert story.words == ["share", "recall", "hold", "resume"]
        await rule_transfer.apply(RuleSet(), verify=True)
        assert story.words[4:] == ["recall", "hold"], "flows may still lead to the predecessor"
        assert not taken.is_set()
        conntrack.fail()
        with pytest.raises(KernelError):
            await rule_transfer.reconcile(None, RuleSet())
        assert story.words[4:] == ["recall", "hold", "yield"], "flows are no obstacle"
        assert taken.is_set()
        await rule_transfer.apply(RuleSet(), verify=True)
        await rule_transfer.reconcile(None, RuleSet())
        assert story.words[-1] == "yield"
        assert len(conntrack.calls) == 2


async def test_who_dies_before_the_flows_are_deleted_has_not_taken_over(name: str) -> None:
    story = Story()

    async def on_taken() -> None:
        raise AssertionError

    async with process(name, story):
        async with process(name) as (successor, predecessor):
            assert predecessor is not None
            rule_transfer = RuleTransfer(
                FakeNetfilter(), FakeConntrack(), successor, FakeDataPlane(), on_taken=on_taken
            )
            await rule_transfer.apply(RuleSet(), verify=True)
            predecessor.close()
        await until(lambda: story.words == ["share", "recall", "hold", "unshare", "resume"])


WEB = FrontendName(ServicePortName("default", "web", "http"), Family.IPV4)
POD = Target(Address("10.0.0.1"), 8080)


def clients(count: int) -> list[RestoreBindings]:
    """So many, all bound to the same endpoint."""
    return list(pieces(WEB, [Binding(f"10.1.{n // 250}.{n % 250}", POD, float(count - n)) for n in range(count)]))


async def test_clients_are_known_before_the_rules_lead_them_here(name: str) -> None:
    story, plane, seen = Story(), FakeDataPlane(), 0
    story.bound = clients(10_000)

    class Rules(FakeNetfilter):
        async def apply(self, wanted: RuleSet, *, verify: bool) -> bool:
            nonlocal seen
            seen = len(plane.sent)
            return await super().apply(wanted, verify=verify)

    async def on_taken() -> None:
        pass

    async with process(name, story), process(name) as (successor, _):
        rule_transfer = RuleTransfer(Rules(), FakeConntrack(), successor, plane, on_taken=on_taken)
        await rule_transfer.apply(RuleSet(), verify=True)
        assert seen == len(plane.sent)
        assert plane.sent == story.bound
        await rule_transfer.reconcile(None, RuleSet())
        await rule_transfer.apply(RuleSet(), verify=True)
        assert len(plane.sent) == seen, "once"


@pytest.mark.parametrize("forgets", [TimeoutError(), MemoryError(), KernelError("no"), ZeroDivisionError()])
async def test_an_owner_that_cannot_tell_of_clients_is_followed_all_the_same(name: str, forgets: Exception) -> None:
    story, taken = Story(), asyncio.Event()
    story.forgets = forgets

    async def on_taken() -> None:
        taken.set()

    async with process(name, story), process(name) as (successor, _):
        rule_transfer = RuleTransfer(FakeNetfilter(), FakeConntrack(), successor, FakeDataPlane(), on_taken=on_taken)
        await rule_transfer.apply(RuleSet(), verify=True)
        await rule_transfer.reconcile(None, RuleSet())
        assert story.words == ["share", "recall", "hold", "yield"]
        assert taken.is_set()


async def test_an_owner_does_not_keep_its_successor_waiting(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "RECALL_S", 0.05)
    story = Story()
    story.ponders = True
    async with process(name, story), process(name) as (successor, found):
        assert found is not None
        assert await successor.recall() == []
        await found.hold()
        await found.take()
        assert not found.silent
        assert story.words == ["share", "recall", "hold", "yield"]
        found.close()


async def test_what_the_data_plane_does_not_take_is_no_obstacle(name: str) -> None:
    story, plane = Story(), FakeDataPlane()
    story.bound = clients(1)

    async def on_taken() -> None:
        pass

    async with process(name, story), process(name) as (successor, _):
        plane.broken = "no worker process is in service"
        rule_transfer = RuleTransfer(FakeNetfilter(), FakeConntrack(), successor, plane, on_taken=on_taken)
        await rule_transfer.apply(RuleSet(), verify=True)
        await rule_transfer.reconcile(None, RuleSet())
        assert story.words == ["share", "recall", "hold", "yield"]


def line(message: Message) -> bytes:
    """As it is said."""
    return msgspec.json.encode(message) + b"\n"


class Older:
    """An owner of another version, played: what it says to each word."""

    def __init__(self, name: str, answers: dict[str, list[bytes]]) -> None:
        self._name = name
        self._answers = answers
        self.words: list[str] = []

    async def __aenter__(self) -> Older:
        self._socket = ControlSocket(self._name)
        self._socket.listen(lambda sock: self._serving.append(asyncio.ensure_future(self._serve(sock))))
        self._serving: list[asyncio.Future[None]] = []
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._socket.close()
        await asyncio.gather(*self._serving)

    async def _serve(self, sock: socket.socket) -> None:
        hello, descriptors = await receive_first(sock)
        assert hello is not None
        assert all(map(net_admin.answer, descriptors))
        challenge = net_admin.Challenge()
        send_first(sock, {"prove": True}, [challenge.fileno()])
        await receive_first(sock)
        assert challenge.answered
        challenge.close()
        reader, writer = await asyncio.open_unix_connection(sock=sock)
        self.words.append(hello["do"])
        writer.writelines(self._answers["hello"])
        while line := await reader.readline():
            self.words.append(json.loads(line)["do"])
            writer.writelines(self._answers.get(self.words[-1], [b'{"done": "%s"}\n' % self.words[-1].encode()]))
        writer.close()


async def test_one_that_does_not_know_the_word_is_not_asked(name: str) -> None:
    async with Older(name, {"hello": [b'{"pid": 1, "version": "0"}\n']}) as older, process(name) as (successor, found):
        assert found is not None
        assert await successor.recall() == []
        await found.hold()
        await found.take()
        found.close()
        assert older.words == ["hello", "hold", "take"]


async def test_what_is_not_understood_is_passed_over(name: str) -> None:
    (piece,) = clients(3)
    strange = [b'{"bound": {"client": "10.0.0.9"}}\n', b'{"news": 1}\n', line(told(piece))]
    answers = {
        "hello": [b'{"pid": 1, "version": "9", "recalls": true}\n'],
        "recall": [*strange, b'{"done": "recall"}\n'],
        "hold": [*strange, b'{"done": "hold"}\n'],
    }
    async with Older(name, answers), process(name) as (successor, found):
        assert found is not None
        assert await successor.recall() == [piece]
        await found.hold()
        assert not found.gone
        found.close()


class FakeOrphan:
    """A worker of a dead control process, played."""

    def __init__(self, name: str, *, answers: list[bytes], recalls: bool = True) -> None:
        self._name = name
        self._answers = answers
        self._introduction = {"orphan": os.getpid(), "run": "x"} | ({"recalls": True} if recalls else {})
        self.words: list[str] = []

    async def live(self) -> None:
        """Until it is sent away, or has no answer."""
        reader, writer = await dial(self._name)
        writer.write(json.dumps(self._introduction).encode() + b"\n")
        while line := await reader.readline():
            self.words.extend(json.loads(line))
            if self.words[-1] == "retire" or not self._answers:
                break
            writer.writelines(self._answers)
        writer.close()


def said(*pieces: RestoreBindings) -> list[bytes]:
    """What an orphan answers that knows these."""
    return [line(word) for word in (*map(told, pieces), {"told": True})]


async def test_orphans_tell_what_they_know(name: str) -> None:
    first, second = RestoreBindings(WEB, (Binding("a", POD, 9.0),)), RestoreBindings(WEB, (Binding("b", POD, 5.0),))
    orphans = [
        FakeOrphan(name, answers=[*said(first)[:1], b'{"bound": 1}\n', *said()]),
        FakeOrphan(name, answers=said(second)),
        FakeOrphan(name, answers=said(first), recalls=False),
        FakeOrphan(name, answers=[]),
    ]
    others = Takeover(Story().duties(), version="1", prefix=name, others=lambda: True)
    async with asyncio.TaskGroup() as group:
        assert await others.begin() is None
        for orphan in orphans:
            group.create_task(orphan.live())
        for _ in range(2):
            assert await others.recall() == [RestoreBindings(WEB, first.bindings + second.bindings)]
        assert [orphan.words for orphan in orphans] == [["recall"] * 2, ["recall"] * 2, [], ["recall"]]
        others.in_force()
    assert orphans[2].words == ["retire"]
    await until(lambda: others.orphans == 0)
    assert await others.recall() == []
    await others.close()


async def test_nobody_waits_for_orphans_where_nobody_lives(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "GATHER_S", 3600)
    async with process(name) as (owner, _), asyncio.timeout(30):
        assert await owner.recall() == []


async def test_what_comes_too_late_is_not_waited_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (piece,) = clients(3)
    answers = {
        "hello": [b'{"pid": 1, "version": "9", "recalls": true}\n'],
        "recall": [line(told(piece))],
        "hold": [b'{"done": "recall"}\n', b'{"done": "hold"}\n'],
    }
    async with Older(name, answers) as older, process(name) as (successor, found):
        assert found is not None
        with monkeypatch.context() as hasty:
            hasty.setattr(takeover_predecessor, "ANSWER_S", 0.1)
            assert await successor.recall() == [piece]
        await found.hold()
        await found.take()
        assert older.words == ["hello", "recall", "hold", "take"]
        found.close()
