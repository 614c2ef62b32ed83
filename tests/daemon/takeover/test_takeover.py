"""Owners and new instances, over real sockets in this process; each test has names of its own."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count, cycle, takewhile
from uuid import uuid4

import pytest
import uvloop

from kubeproxy.daemon.takeover import owner as takeover_owner
from kubeproxy.daemon.takeover import predecessor as takeover_predecessor
from kubeproxy.daemon.takeover import rule_transfer
from kubeproxy.daemon.takeover import search as takeover_search
from kubeproxy.daemon.takeover import server as takeover_server
from kubeproxy.daemon.takeover import takeover as takeover_module
from kubeproxy.daemon.takeover.control_socket import ControlSocket
from kubeproxy.daemon.takeover.instances import PREFIX, InstanceMarker
from kubeproxy.daemon.takeover.order import give
from kubeproxy.daemon.takeover.owner import Owner
from kubeproxy.daemon.takeover.predecessor import Predecessor
from kubeproxy.daemon.takeover.protocol import (
    HELLOS,
    PROOFS,
    REQUESTS,
    Action,
    Hello,
    Order,
    Prove,
    Take,
    receive_first,
    send,
    send_first,
    type_of,
)
from kubeproxy.daemon.takeover.rule_transfer import RuleTransfer
from kubeproxy.daemon.takeover.search import RETRY_S
from kubeproxy.daemon.takeover.serves_enough import Offer, TakeoverRefusedError
from kubeproxy.daemon.takeover.takeover import Takeover
from kubeproxy.dataplane.balancing.affinity import pieces
from kubeproxy.dataplane.interface import Entrances
from kubeproxy.dataplane.messages import Binding, RestoreBindings
from kubeproxy.dataplane.workers.takeover_messages import (
    FOR_ORPHANS,
    MOVES,
    PROTOCOL,
    Bindings,
    Done,
    Move,
    Moved,
    OrphanHello,
    Show,
    Shown,
    decode,
    encode,
)
from kubeproxy.model import Address, Family, FrontendName, ServicePortName, Target
from kubeproxy.model.errors import KernelError
from kubeproxy.netfilter.ruleset import RuleSet
from kubeproxy.proxier.clock import Clock
from kubeproxy.proxier.kernel_sync import Kernel, KernelSync
from kubeproxy.proxier.observer import ProxierObserver
from kubeproxy.proxier.reports import Reports
from kubeproxy.proxier.ruleset_builder import RuleSetBuilder
from kubeproxy.proxier.sync_schedule import Periods, Schedule
from kubeproxy.runtime import peer_capability
from kubeproxy.runtime.abstract_sockets import listening
from kubeproxy.runtime.peer_capability import Purpose
from tests.support.doubles.conntrack import FakeConntrack
from tests.support.doubles.data_plane import FakeDataPlane
from tests.support.doubles.netfilter import FakeNetfilter
from tests.support.waiting import until


class Story(Owner):
    """An owner that writes down what it is asked for, in the order of the calls."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.obstacle: Callable[[], Awaitable[None]] | None = None
        self.bound: list[RestoreBindings] = []
        """What its data plane knows of clients."""
        self.forgets: Exception | None = None
        self.leads: bool | KernelError = False
        """Whether the rules still lead to it."""
        self.offered = Offer(5, ("manifests /one",))
        self.ponders = False
        """Whether its data plane has no answer."""
        self.entrances: list[socket.socket] = []
        """Where connections may come in."""

    def share(self, on: bool) -> None:
        self.words.append("share" if on else "unshare")

    async def hold(self, on: bool) -> None:
        self.words.append("hold" if on else "resume")

    async def leads_here(self) -> bool:
        if isinstance(self.leads, KernelError):
            raise self.leads
        return self.leads

    async def bindings(self) -> list[RestoreBindings]:
        self.words.append("recall")
        if self.forgets is not None:
            raise self.forgets
        if self.ponders:
            await asyncio.Event().wait()
        return self.bound

    async def adopt(self) -> Entrances:
        return Entrances(tuple(self.entrances), tuple(range(len(self.entrances))), len(self.entrances))

    async def yield_all(self) -> None:
        if self.obstacle is not None:
            await self.obstacle()
        self.words.append("yield")

    def grace_s(self) -> float:
        return 5.0

    def offer(self) -> Offer:
        return self.offered

    async def obey(self, order: Order) -> str | None:
        self.words.append(order.action)
        if order.action is Action.DRAIN:
            try:
                await asyncio.Event().wait()
            finally:
                self.words.append("drain ended")
        return None


@pytest.fixture
def name() -> str:
    """How the names of this test's processes begin."""
    return f"kubeproxy-test/{uuid4().hex[:8]}/"


@pytest.fixture(autouse=True)
def capable(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests may be run by a user without CAP_NET_ADMIN; tests/runtime/test_peer_capability.py and
    tests/system/e2e/test_security_takeover.py show what the proof is worth."""
    challenge = peer_capability.Challenge(Purpose.OWN, "kubeproxy-test")
    if not peer_capability.answer(os.dup(challenge.fileno()), Purpose.OWN, "kubeproxy-test"):
        monkeypatch.setattr(peer_capability, "answer", _pretend)
        monkeypatch.setattr(peer_capability.Challenge, "answered", True)
    challenge.close()


def _pretend(descriptor: int, purpose: Purpose, control: str) -> bool:
    os.close(descriptor)
    return True


async def dial(name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to the one process of this test."""
    (only,) = listening(name)
    return await asyncio.open_unix_connection(f"\0{only}")


@asynccontextmanager
async def process(name: str, story: Story | None = None) -> AsyncIterator[tuple[Takeover, Predecessor | None]]:
    """An instance that has looked for a predecessor."""
    takeover = Takeover((story or Story()), version="1", prefix=name)
    try:
        found = await takeover.begin()
        takeover.server.answer()
        yield takeover, found
    finally:
        await takeover.close()


async def test_the_first_instance_has_no_predecessor(name: str) -> None:
    async with process(name) as (_, predecessor):
        assert predecessor is None


async def test_one_that_stands_in_takes_over_from_nobody(name: str) -> None:
    """Not even by asking an owner of another protocol to stop."""
    async with process(name) as (owner, _):
        stand_in = Takeover(Story(), version="1", stands_in=True, forced=True, prefix=name)
        with pytest.raises(TakeoverRefusedError, match="is there again"):
            await stand_in.begin()
        await stand_in.close()
        assert not owner.server.stop_requested.is_set()
    stand_in = Takeover(Story(), version="1", stands_in=True, prefix=name)
    assert await stand_in.begin() is None
    await stand_in.close()


async def test_a_new_instance_takes_over_and_is_found_by_the_next(name: str) -> None:
    story = Story()
    async with process(name, story), process(name) as (second, predecessor):
        assert predecessor is not None
        assert predecessor.pid == os.getpid()
        await predecessor.hold()
        await predecessor.take(Take())
        assert story.words == ["share", "hold", "yield"]
        second.server.own()
        predecessor.close()
        async with process(name) as (_, next_one):
            assert next_one is not None
            next_one.close()


async def test_an_owner_goes_on_when_the_new_instance_dies(name: str) -> None:
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


async def test_a_new_instance_owns_the_node_after_the_predecessors_death(name: str) -> None:
    async with process(name) as (owner, _), process(name) as (_, predecessor):
        assert predecessor is not None
        await owner.close()
        await until(lambda: predecessor.gone)
        async with process(name) as (_, found):
            assert found is not None
            found.close()
        await predecessor.hold()  # it is gone, which is no obstacle
        await predecessor.take(Take())
        predecessor.close()


def test_a_dead_predecessor_is_no_obstacle_on_uvloop(name: str) -> None:
    """Writing to a closed connection raises other errors there."""

    async def story() -> None:
        async with process(name) as (owner, _), process(name) as (_, predecessor):
            assert predecessor is not None
            await owner.close()
            await until(lambda: predecessor.gone)
            for _ in range(2):
                await predecessor.hold()
                await predecessor.take(Take())
            predecessor.close()
            await predecessor.resume()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(story())


async def test_two_new_instances_take_turns(name: str) -> None:
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
            await predecessor.take(Take())
            second.server.own()
            predecessor.close()
    assert story.words == ["share", "yield"]


async def test_a_waiting_instance_can_give_up(name: str) -> None:
    stop = asyncio.Event()
    async with process(name), process(name) as (_, predecessor):
        assert predecessor is not None
        third = Takeover(Story(), version="1", prefix=name)
        waiting = asyncio.ensure_future(third.begin(given_up=stop.is_set))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3 * RETRY_S):
                await asyncio.shield(waiting)
        stop.set()
        async with asyncio.timeout(30):
            assert await waiting is None
        await third.close()
        predecessor.close()


async def test_of_several_simultaneous_instances_one_owns_and_the_others_follow(name: str) -> None:
    many = [Takeover(Story(), version="1", prefix=name) for _ in range(4)]
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:

        async def come(one: Takeover) -> None:
            predecessor = await one.begin()
            one.server.answer()
            if predecessor is not None:
                await predecessor.take(Take())
                one.server.own()
                predecessor.close()

        for one in many:
            group.create_task(come(one))
    assert sum(one.predecessor is None for one in many) == 1
    assert sum(one.server.superseded.is_set() for one in many) == 3, "one after the other"
    for one in many:
        await one.close()


async def test_an_owner_that_is_not_ready_is_busy(name: str) -> None:
    """It accepts no request until `answer`."""
    story = Story()
    owner, new = (Takeover(story, version="1", prefix=name) for _ in range(2))
    assert await owner.begin() is None
    waiting = asyncio.ensure_future(new.begin())
    await asyncio.sleep(3 * RETRY_S)
    assert not waiting.done()
    assert story.words == []
    owner.server.answer()
    async with asyncio.timeout(30):
        predecessor = await waiting
    assert predecessor is not None
    predecessor.close()
    await new.close()
    await owner.close()


async def test_an_owner_that_hung_yields_when_it_answers_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover_predecessor, "ANSWER_S", 0.1)
    monkeypatch.setattr(takeover_module, "ANSWER_S", 0.1)
    story, ours = Story(), Story()
    hung = Takeover(story, version="1", prefix=name)
    assert await hung.begin() is None
    hung.server.answer()
    asyncio.get_running_loop().remove_reader(hung._control._sock.fileno())  # type: ignore[union-attr]  # nothing accepts
    async with process(name, ours) as (new, predecessor):
        assert predecessor is None
        new.in_force()
        hung._control._resume()
        await until(lambda: "resume" in ours.words)
        assert story.words[-3:] == ["share", "hold", "yield"]
    await hung.close()


async def test_an_owner_refuses_take_while_rules_lead_to_it(name: str) -> None:
    story = Story()
    async with process(name, story) as (owner, _), process(name) as (_, predecessor):
        assert predecessor is not None
        await predecessor.hold()
        for reason in (True, KernelError("no netlink")):
            story.leads = reason
            assert await predecessor.take(Take()) is not None
        assert not owner.server.superseded.is_set()
        story.leads = False
        assert await predecessor.take(Take()) is None
        assert owner.server.superseded.is_set()
        assert story.words == ["share", "hold", "yield"]
        predecessor.close()


@pytest.mark.parametrize("words", [("hold",), ("hold", "hold"), ("hold", "resume", "hold"), ("hold", "recall")])
async def test_hold_ends_after_a_time_in_all(
    name: str, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """However often the new instance asks for something meanwhile, and however slowly it reads the answers."""
    monkeypatch.setattr(takeover_owner, "HOLD_S", 0.3)
    story = Story()
    story.bound = clients(20_000)
    async with process(name, story), process(name) as (_, predecessor):
        assert predecessor is not None
        predecessor._reader._transport.pause_reading()  # type: ignore[attr-defined]
        with contextlib.suppress(OSError):
            for word in takewhile(lambda _: "unshare" not in story.words, cycle(words)):
                await send(predecessor._writer, decode(f'{{"type": "{word}"}}'.encode(), REQUESTS))
                await asyncio.sleep(0.01)
        await until(lambda: story.words[-2:] == ["unshare", "resume"])
        predecessor.close()


async def test_a_busy_process_is_waited_for_a_time_in_all(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it owns the node or looks for an owner, too."""
    monkeypatch.setitem(takeover_search._LAST_S, takeover_search._State.BUSY, 0.3)
    monkeypatch.setitem(takeover_search._LAST_S, takeover_search._State.LOOKING, 0.3)
    for looking in (False, True):
        owner, new = (Takeover(Story(), version="1", prefix=name) for _ in range(2))
        owner.server.listen()
        if not looking:
            owner.server.found(None)
        async with asyncio.timeout(30):
            assert await new.begin() is None
        assert new._search.passed_over == {owner._control.name}
        await new.close()
        await owner.close()


async def test_processes_that_prove_nothing_have_a_time_in_all(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are silent, or hang up again and again, and new ones come."""
    monkeypatch.setattr(takeover_search, "ANSWER_S", 0.3)
    monkeypatch.setattr(takeover_search, "AT_ONCE", 8)
    sockets = []

    def bind(number: int) -> None:
        sockets.append(sock := socket.socket(socket.AF_UNIX))
        sock.bind(f"\0{name}{number:016x}-x")
        sock.listen()

    async def nag() -> None:
        for number in count(100):
            bind(number)
            await asyncio.sleep(0.05)

    for number in range(20):
        bind(number)
    nagging = asyncio.ensure_future(nag())
    new = Takeover(Story(), version="1", prefix=name)
    async with asyncio.timeout(30):
        assert await new.begin() is None
    nagging.cancel()
    await new.close()
    for sock in sockets:
        sock.close()


async def test_an_owner_with_a_full_queue_is_found(name: str) -> None:
    """Though the time of those that have proven nothing is over."""
    async with process(name) as (owner, _):
        control = owner._control
        assert control._sock is not None
        asyncio.get_running_loop().remove_reader(control._sock.fileno())
        crowd: list[socket.socket] = []
        with contextlib.suppress(BlockingIOError):
            while True:
                crowd.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
                crowd[-1].connect(f"\0{control.name}")
        new = Takeover(Story(), version="1", prefix=name)
        waiting = asyncio.ensure_future(new.begin())
        await until(lambda: new._search._is_full(control.name))
        new._search._asked_until = 0.0
        await asyncio.sleep(3 * RETRY_S)
        for sock in crowd:
            sock.close()
        control._resume()
        async with asyncio.timeout(30):
            found = await waiting
        assert found is not None
        found.close()
        await new.close()


async def test_a_released_control_socket_proves_nothing(name: str) -> None:
    """Its name may be another process's by now, and a connection from before may still be open."""
    async with process(name) as (owner, _):
        challenge = peer_capability.Challenge(Purpose.OWN, owner._control.name)
        owner.server.release()
        descriptor = os.dup(challenge.fileno())
        assert not owner._control.prove(descriptor, Purpose.OWN)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
        challenge.close()


@pytest.mark.parametrize("protocol", [PROTOCOL, PROTOCOL + 1])
async def test_a_new_instance_proves_only_what_it_is_about_to_do(name: str, protocol: int) -> None:
    """An owner of the same version has no use for a proof to stop, and one of another version none for one to take."""
    sock = ControlSocket(name)
    proven: list[bool] = []

    async def serve(peer: socket.socket) -> None:
        _, descriptors = await receive_first(peer, HELLOS)
        assert all(sock.prove(descriptor, Purpose.OWN) for descriptor in descriptors)
        wrong = Purpose.STOP if protocol == PROTOCOL else Purpose.TAKE
        challenge = peer_capability.Challenge(wrong, sock.name)
        send_first(peer, Prove(protocol, 1, "another"), [challenge.fileno()])
        await receive_first(peer, PROOFS)
        proven.append(challenge.answered)
        challenge.close()
        peer.close()

    tasks: list[asyncio.Future[None]] = []
    sock.listen(lambda peer: tasks.append(asyncio.ensure_future(serve(peer))))
    with pytest.raises(ConnectionError):
        await takeover_predecessor.greet(sock.name, Hello(PROTOCOL, 1, "one"))
    await asyncio.gather(*tasks)
    assert proven == [False]
    sock.close()


async def test_the_older_of_two_without_a_connection_yields(name: str) -> None:
    stories = Story(), Story()
    older, younger = (Takeover(story, version="1", prefix=name) for story in stories)
    await older.begin()
    assert not older.server.rival_lives()
    younger._search.passed_over.add(older._control.name)
    await younger.begin()
    assert older.server.rival_lives()
    assert not younger.server.rival_lives()
    older.server.yield_to_rival()
    older.server.yield_to_rival()
    await asyncio.wait_for(older.server.superseded.wait(), 30)
    assert stories[0].words == ["yield"]
    await older.close()
    await younger.close()


async def test_an_owner_closes_its_connections_cleanly(name: str) -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    story = Story()
    owner = Takeover(story, version="1", prefix=name)
    await owner.begin()
    owner.server.answer()
    reader, writer = await dial(name)
    writer.write(encode(OrphanHello(PROTOCOL, os.getpid(), "x")))
    await until(lambda: len(owner.server.orphans) == 1)
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


async def test_a_shutdown_waits_while_a_new_instance_turns_the_rules(name: str) -> None:
    async with process(name) as (owner, _), process(name) as (_, predecessor):
        assert predecessor is not None
        async with asyncio.timeout(1):
            await owner.server.between()
        await predecessor.hold()
        leaving = asyncio.ensure_future(owner.server.between())
        await asyncio.sleep(0.05)
        assert not leaving.done()
        await predecessor.take(Take())
        async with asyncio.timeout(1):
            await leaving
        predecessor.close()


async def test_orphans_retire_when_the_rules_are_in_force(name: str) -> None:
    async with process(name) as (owner, _):

        async def orphan() -> bytes:
            reader, writer = await dial(name)
            writer.write(encode(OrphanHello(PROTOCOL, os.getpid(), "x")))
            line = await reader.readline()
            writer.close()
            return line

        early = asyncio.create_task(orphan())
        await until(lambda: len(owner.server.orphans) == 1)
        assert not early.done()
        owner.in_force()
        assert json.loads(await early) == {"type": "retire"}
        assert json.loads(await orphan()) == {"type": "retire"}
        await until(lambda: len(owner.server.orphans) == 0)


@pytest.mark.parametrize(
    "garbage", [b"\n", b"[]\n", b'{"type": "dance"}\n', b"x" * 10_000 + b"\n", b"\xff\n", b'{"type": "orphan"}\n']
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


async def test_unexpected_descriptors_are_closed(name: str) -> None:
    """With first messages that are unknown or incomplete."""

    def open_descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    async with process(name):
        (only,) = listening(name)
        before = open_descriptors()
        for first in (b'{"type": "dance"}\n', b'{"type": "orphan"}\n', encode(Hello(PROTOCOL, 1, "x")), b"garbage\n"):
            for then in (b"", b'{"type": "proof"}\n'):
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


def kernel_sync(
    new: Takeover,
    on_taken: Callable[[], None],
    netfilter: FakeNetfilter,
    *,
    conntrack: FakeConntrack | None = None,
    plane: FakeDataPlane | None = None,
) -> KernelSync:
    """Return the kernel's side of a proxier to which a predecessor hands its rules over."""
    transfer = RuleTransfer(new, plane or FakeDataPlane(), adapter=netfilter.name, on_taken=on_taken)
    kernel = Kernel(netfilter, conntrack or FakeConntrack(), handover=transfer)
    schedule = Schedule(Periods(), lambda: 0.0)
    return KernelSync(kernel, RuleSetBuilder(), schedule, Clock(), Reports(ProxierObserver()))


async def test_the_first_transaction_and_its_flows_are_the_takeover(name: str) -> None:
    story, taken = Story(), asyncio.Event()
    async with process(name, story), process(name) as (new, _):
        fake, conntrack = FakeNetfilter(), FakeConntrack()
        sync = kernel_sync(new, taken.set, fake, conntrack=conntrack)
        fake.fail()
        assert not await sync.apply()
        assert story.words == ["share", "recall", "hold", "resume"]
        assert await sync.apply()
        assert story.words[4:] == ["recall", "hold"], "flows may still lead to the predecessor"
        assert not taken.is_set()
        conntrack.fail()
        await sync.reconcile()
        assert story.words[4:] == ["recall", "hold", "yield"], "flows are no obstacle"
        assert taken.is_set()
        await sync.apply()
        await sync.reconcile()
        assert story.words[-1] == "yield"
        assert len(conntrack.calls) == 2


async def test_a_refused_handover_begins_again_with_the_next_transaction(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing_left(*, keep: str) -> list[str]:
        return []

    monkeypatch.setattr(rule_transfer, "cleanup_all", nothing_left)
    story, taken = Story(), asyncio.Event()
    async with process(name, story), process(name) as (new, _):
        sync = kernel_sync(new, taken.set, FakeNetfilter())
        story.leads = True
        assert await sync.apply()
        await sync.reconcile()
        assert story.words == ["share", "recall", "hold", "resume"]
        assert not taken.is_set()
        story.leads = False
        assert await sync.apply()
        await sync.reconcile()
        assert story.words[4:] == ["recall", "hold", "yield"]
        assert taken.is_set()


async def test_an_instance_that_dies_before_the_flows_are_deleted_has_not_taken_over(name: str) -> None:
    story = Story()

    def on_taken() -> None:
        raise AssertionError

    async with process(name, story):
        async with process(name) as (new, predecessor):
            assert predecessor is not None
            assert await kernel_sync(new, on_taken, FakeNetfilter()).apply()
            predecessor.close()
        await until(lambda: story.words == ["share", "recall", "hold", "unshare", "resume"])


WEB = FrontendName(ServicePortName("default", "web", "http"), Family.IPV4)
POD = Target(Address("10.0.0.1"), 8080)


def clients(count: int) -> list[RestoreBindings]:
    """So many, all bound to the same endpoint."""
    return list(pieces(WEB, [Binding(f"10.1.{n // 250}.{n % 250}", POD, float(count - n)) for n in range(count)]))


async def test_bindings_are_restored_before_the_rules_change(name: str) -> None:
    story, plane, seen = Story(), FakeDataPlane(), 0
    story.bound = clients(10_000)

    class Rules(FakeNetfilter):
        async def apply(self, wanted: RuleSet, *, verify: bool) -> bool:
            nonlocal seen
            seen = len(plane.sent)
            return await super().apply(wanted, verify=verify)

    def on_taken() -> None:
        pass

    async with process(name, story), process(name) as (new, _):
        sync = kernel_sync(new, on_taken, Rules(), plane=plane)
        assert await sync.apply()
        assert seen == len(plane.sent)
        assert plane.sent == story.bound
        await sync.reconcile()
        assert await sync.apply()
        assert len(plane.sent) == seen, "once"


@pytest.mark.parametrize("forgets", [TimeoutError(), MemoryError(), KernelError("no"), ZeroDivisionError()])
async def test_an_owner_that_cannot_send_bindings_does_not_stop_the_takeover(name: str, forgets: Exception) -> None:
    story, taken = Story(), asyncio.Event()
    story.forgets = forgets
    async with process(name, story), process(name) as (new, _):
        sync = kernel_sync(new, taken.set, FakeNetfilter())
        assert await sync.apply()
        await sync.reconcile()
        assert story.words == ["share", "recall", "hold", "yield"]
        assert taken.is_set()


async def test_an_owner_with_a_slow_data_plane_answers_in_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover_server, "RECALL_S", 0.05)
    story = Story()
    story.ponders = True
    async with process(name, story), process(name) as (new, found):
        assert found is not None
        assert await new.recall() == []
        await found.hold()
        await found.take(Take())
        assert not found.silent
        assert story.words == ["share", "recall", "hold", "yield"]
        found.close()


async def test_a_data_plane_that_refuses_bindings_does_not_stop_the_takeover(name: str) -> None:
    story, plane = Story(), FakeDataPlane()
    story.bound = clients(1)

    def on_taken() -> None:
        pass

    async with process(name, story), process(name) as (new, _):
        plane.broken = "no worker process is in service"
        sync = kernel_sync(new, on_taken, FakeNetfilter(), plane=plane)
        assert await sync.apply()
        await sync.reconcile()
        assert story.words == ["share", "recall", "hold", "yield"]


class FakeOwner:
    """An owner that sends given lines as its answer to each request."""

    def __init__(self, name: str, answers: dict[str, list[bytes]], *, protocol: int = PROTOCOL) -> None:
        self._name = name
        self._answers = answers
        self._protocol = protocol
        self.requests: list[str] = []

    async def __aenter__(self) -> FakeOwner:
        self._socket = ControlSocket(self._name)
        self._socket.listen(lambda sock: self._serving.append(asyncio.ensure_future(self._serve(sock))))
        self._serving: list[asyncio.Future[None]] = []
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.end()
        await asyncio.gather(*self._serving)

    def end(self) -> None:
        """Release the name."""
        self._socket.close()

    async def _serve(self, sock: socket.socket) -> None:
        hello, descriptors = await receive_first(sock, HELLOS)
        assert all(self._socket.prove(descriptor, Purpose.OWN) for descriptor in descriptors)
        purpose = Purpose.TAKE if self._protocol == PROTOCOL else Purpose.STOP
        challenge = peer_capability.Challenge(purpose, self._socket.name)
        send_first(sock, Prove(self._protocol, 1, "another"), [challenge.fileno()])
        await receive_first(sock, PROOFS)
        assert challenge.answered
        challenge.close()
        reader, writer = await asyncio.open_unix_connection(sock=sock)
        self.requests.append(type_of(hello))
        writer.write(b'{"type": "accepted"}\n')
        while line := await reader.readline():
            self.requests.append(json.loads(line)["type"])
            writer.writelines(self._answers.get(self.requests[-1], [encode(Done(self.requests[-1]))]))
        writer.close()


async def test_a_predecessor_that_answers_nonsense_is_no_obstacle(name: str) -> None:
    (piece,) = clients(3)
    answers = {"recall": [encode(Bindings(piece)), b'{"type": "bindings", "bound": 1}\n', encode(Done("recall"))]}
    async with FakeOwner(name, answers), process(name) as (new, found):
        assert found is not None
        assert await new.recall() == [piece]
        assert not found.silent
        await found.hold()
        found.close()


class FakeOrphan:
    """A worker of a dead control process, played."""

    def __init__(self, name: str, *, answers: list[bytes], protocol: int = PROTOCOL) -> None:
        self._name = name
        self._answers = answers
        self._hello = OrphanHello(protocol, os.getpid(), "x")
        self.requests: list[str] = []

    async def live(self) -> None:
        """Until it is retired, or has no answer."""
        reader, writer = await dial(self._name)
        writer.write(encode(self._hello))
        while line := await reader.readline():
            self.requests.append(json.loads(line)["type"])
            if self.requests[-1] == "retire" or not self._answers:
                break
            writer.writelines(self._answers)
        writer.close()


def answer_of(*pieces: RestoreBindings) -> list[bytes]:
    """The answer to `Recall` of an orphan that knows these."""
    return [*(encode(Bindings(piece)) for piece in pieces), encode(Done("recall"))]


async def test_orphans_send_their_bindings(name: str) -> None:
    """One of another protocol version is not asked, and retires like the others."""
    first, second = RestoreBindings(WEB, (Binding("a", POD, 9.0),)), RestoreBindings(WEB, (Binding("b", POD, 5.0),))
    orphans = [
        FakeOrphan(name, answers=answer_of(first)),
        FakeOrphan(name, answers=answer_of(second)),
        FakeOrphan(name, answers=answer_of(first), protocol=PROTOCOL + 1),
        FakeOrphan(name, answers=[]),
    ]
    others = Takeover(Story(), version="1", prefix=name, others=lambda: True)
    async with asyncio.TaskGroup() as group:
        assert await others.begin() is None
        for orphan in orphans:
            group.create_task(orphan.live())
        for _ in range(2):
            assert await others.recall() == [RestoreBindings(WEB, first.bindings + second.bindings)]
        assert [orphan.requests for orphan in orphans] == [["recall"] * 2, ["recall"] * 2, [], ["recall"]]
        others.in_force()
    assert orphans[2].requests == ["retire"]
    await until(lambda: len(others.server.orphans) == 0)
    assert await others.recall() == []
    await others.close()


def forged(run: str) -> socket.socket:
    """A socket with the name of a run, as any process can bind it."""
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(f"\0{PREFIX}{run}")
    return sock


async def asked(name: str, owner: Takeover, hello: OrphanHello, shown: Sequence[int]) -> list[str]:
    """Introduce an orphan that shows these descriptors; return what it is asked for."""
    (only,) = listening(name)
    loop = asyncio.get_running_loop()
    words: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as sock:
        sock.connect(f"\0{only}")
        challenge = peer_capability.Challenge(Purpose.RETIRE, only)
        send_first(sock, hello, [challenge.fileno()])
        while "retire" not in words:
            for line in (await loop.sock_recv(sock, 4096)).splitlines():
                match request := decode(line, FOR_ORPHANS):
                    case Show():
                        send_first(sock, Shown(), shown)
                    case Move():
                        send_first(sock, Moved(1, 0))
                words.append(type_of(request))
        challenge.close()
    await until(lambda: len(owner.server.orphans) == 0)
    return words


async def test_an_orphan_moves_its_connections_if_it_has_the_marker_of_a_run(name: str) -> None:
    """Whatever else it shows, it only retires."""
    story = Story()
    story.entrances, inside = [(ends := socket.socketpair())[0]], ends[1]
    async with process(name, story) as (owner, _):
        owner.in_force()
        marker, other = InstanceMarker(), InstanceMarker()
        hello = OrphanHello(PROTOCOL, os.getpid(), marker.run, MOVES)
        assert await asked(name, owner, hello, [marker.fileno()]) == ["show", "move", "retire"]
        assert inside.recv(1) == b"", "the way in is the worker's alone"
        inside.close()
        with forged("forged") as sock:
            lie = OrphanHello(PROTOCOL, os.getpid(), "forged", MOVES)
            assert await asked(name, owner, lie, [sock.fileno()]) == ["show", "retire"]
        assert await asked(name, owner, hello, [other.fileno()]) == ["show", "retire"]
        assert await asked(name, owner, hello, []) == ["show", "retire"]
        marker.close()
        other.close()


@pytest.mark.parametrize(
    ("newest", "oldest", "moves"),
    [
        (MOVES + 1, MOVES, True),
        (MOVES + 2, 1, True),
        (MOVES + 1, MOVES + 1, False),
        (MOVES + 1, 0, False),
        (MOVES - 1, 0, False),
        (MOVES - 1, MOVES - 1, False),
    ],
)
async def test_an_orphan_of_another_version_moves_its_connections_by_a_common_one(
    name: str, newest: int, oldest: int, moves: bool
) -> None:
    story = Story()
    way_in, inside = socket.socketpair()
    story.entrances = [way_in]
    with way_in, inside:
        async with process(name, story) as (owner, _):
            owner.in_force()
            marker = InstanceMarker()
            hello = OrphanHello(PROTOCOL + 1, os.getpid(), marker.run, newest, oldest)
            words = await asked(name, owner, hello, [marker.fileno()])
            assert words == (["show", "move", "retire"] if moves else ["retire"])
            marker.close()


async def test_an_orphan_retires_though_there_are_no_descriptors_for_its_connections(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def adopt() -> Entrances:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    story = Story()
    monkeypatch.setattr(story, "adopt", adopt)
    async with process(name, story) as (owner, _):
        owner.in_force()
        marker = InstanceMarker()
        hello = OrphanHello(PROTOCOL, os.getpid(), marker.run, MOVES)
        async with asyncio.timeout(30):
            assert await asked(name, owner, hello, [marker.fileno()]) == ["show", "retire"]
        marker.close()


async def test_an_orphan_that_answers_nonsense_is_dropped(name: str) -> None:
    async with process(name) as (owner, _):
        reader, writer = await dial(name)
        writer.write(encode(OrphanHello(PROTOCOL, os.getpid(), "x")))
        await until(lambda: len(owner.server.orphans) == 1)
        writer.write(b'{"type": "bindings", "bound": 1}\n')
        assert await reader.read() == b""
        await until(lambda: len(owner.server.orphans) == 0)
        writer.close()


async def test_an_owner_of_another_protocol_version_is_asked_to_stop(name: str) -> None:
    """And waited for: then the node is ours."""
    stopping = {"stop": [b'{"type": "stopping", "within_s": 30.0, "more": 1}\n']}
    new = Takeover(Story(), version="1", prefix=name)
    async with FakeOwner(name, stopping, protocol=PROTOCOL + 1) as owner:
        waiting = asyncio.ensure_future(new.begin())
        await until(lambda: "stop" in owner.requests)
        await asyncio.sleep(3 * RETRY_S)
        assert not waiting.done()
        owner.end()
        async with asyncio.timeout(30):
            assert await waiting is None
        assert owner.requests == ["hello", "stop"]
    await new.close()


async def test_an_owner_of_another_protocol_version_that_does_not_stop_is_passed_over(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Because it refuses, or because it takes longer than it has announced."""
    monkeypatch.setattr(takeover_search, "STOP_MARGIN_S", 0.1)
    for answer in (b'{"type": "done", "request": "stop"}\n', b"what?\n", b'{"type": "stopping", "within_s": 0.1}\n'):
        new = Takeover(Story(), version="1", prefix=name)
        async with FakeOwner(name, {"stop": [answer]}, protocol=PROTOCOL + 1), asyncio.timeout(30):
            assert await new.begin() is None
        await new.close()


async def test_a_new_instance_of_another_protocol_version_stops_the_owner(name: str) -> None:
    story = Story()
    async with process(name, story) as (owner, _):
        (only,) = listening(name)
        new = await takeover_predecessor.greet(only, Hello(PROTOCOL + 1, 1, "another"))
        assert (new.protocol, new.same_protocol) == (PROTOCOL, False)
        assert not owner.server.stop_requested.is_set()
        assert await new.stop() == 5.0
        new.close()
        async with asyncio.timeout(30):
            await owner.server.stop_requested.wait()
        assert not owner.server.superseded.is_set()
    assert story.words == []


@pytest.mark.parametrize("protocol", [PROTOCOL, PROTOCOL + 1])
async def test_a_request_of_the_wrong_protocol_version_is_not_obeyed(name: str, protocol: int) -> None:
    """`Stop` is for other versions, the other requests are for the same one."""
    story = Story()
    async with process(name, story) as (owner, _):
        (only,) = listening(name)
        new = await takeover_predecessor.greet(only, Hello(protocol, 1, "another"))
        if new.same_protocol:
            with pytest.raises(OSError):
                await new.stop()
        else:
            await new.take(Take())
        new.close()
        assert not owner.server.stop_requested.is_set()
        assert not owner.server.superseded.is_set()
        assert "yield" not in story.words


async def test_a_drain_by_hand_ends_with_its_caller(name: str) -> None:
    story = Story()
    async with process(name, story), asyncio.timeout(30):
        caller = asyncio.ensure_future(give(Order(PROTOCOL, Action.DRAIN, "10.0.0.1", 60.0), prefix=name))
        for word in ("drain", "drain ended"):
            while word not in story.words:
                await asyncio.sleep(0.01)
            caller.cancel()


async def test_without_other_instances_there_is_no_wait_for_orphans(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover_module, "GATHER_S", 3600)
    async with process(name) as (owner, _), asyncio.timeout(30):
        assert await owner.recall() == []


async def test_a_late_answer_is_ignored(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (piece,) = clients(3)
    answers = {
        "recall": [encode(Bindings(piece))],
        "hold": [encode(Done("recall")), encode(Done("hold"))],
    }
    async with FakeOwner(name, answers) as owner, process(name) as (new, found):
        assert found is not None
        with monkeypatch.context() as hasty:
            hasty.setattr(takeover_predecessor, "ANSWER_S", 0.1)
            assert await new.recall() == [piece]
        await found.hold()
        await found.take(Take())
        assert owner.requests == ["hello", "recall", "hold", "take"]
        found.close()
