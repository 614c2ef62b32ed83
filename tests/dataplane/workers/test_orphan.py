"""Orphaned workers: they keep serving, find the new owner, and retire at its request or after their grace period."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kubeproxy.daemon.takeover.control_socket import ControlSocket
from kubeproxy.daemon.takeover.instances import is_marker
from kubeproxy.daemon.takeover.protocol import HELLOS, receive_first, send_first
from kubeproxy.dataplane.messages import Binding
from kubeproxy.dataplane.workers.channel import Channel
from kubeproxy.dataplane.workers.move_protocol import Load, Receipt
from kubeproxy.dataplane.workers.takeover_messages import (
    FROM_ORPHANS,
    MOVES,
    MOVES_SINCE,
    PROTOCOL,
    SHOWN,
    Bindings,
    Done,
    Move,
    OrphanHello,
    Show,
    decode,
)
from kubeproxy.model import Target
from kubeproxy.runtime import peer_capability
from kubeproxy.runtime.peer_capability import Purpose
from tests.dataplane.conftest import ask, echo, endpoint, eventually, frontend, sends

CONTROL = """if True:
    import asyncio, json, sys
    from kubeproxy.daemon.takeover.instances import InstanceMarker
    from kubeproxy.dataplane.messages import Listen, SetEndpoints, Tune
    from kubeproxy.dataplane.workers.pool import WorkerDataPlane
    from kubeproxy.model import Address, Family, FrontendName, Protocol, ServicePortName, Target

    async def main(count, owner, grace_s, shutdown_grace_s, port, affinity_timeout_s):
        marker = InstanceMarker()
        plane = WorkerDataPlane(count, on_end=print, on_crash=print, marker=marker.fileno(), owner_prefix=owner)
        held = plane.reserve(Protocol.TCP, Address("127.0.0.1"), 0)
        name = FrontendName(ServicePortName("default", "web", ""), Family.IPV4)
        await plane.send([
            Tune(orphan_grace_s=grace_s, shutdown_grace_s=shutdown_grace_s),
            Listen(name, Protocol.TCP, Address("127.0.0.1"), held.port),
            SetEndpoints(name, (Target(Address("127.0.0.1"), port),), affinity_timeout_s),
        ])
        while len(workers := await plane.worker_status()) < count:
            await asyncio.sleep(0.01)
        print(json.dumps({"run": marker.run, "port": held.port, "pids": [each.pid for each in workers]}), flush=True)
        await asyncio.sleep(3600)

    asyncio.run(main(*json.loads(sys.argv[1])))
"""


@dataclass
class Orphans:
    """Orphaned workers and the address they listen at."""

    address: tuple[str, int]
    pids: list[int]
    run: str
    """The name of their run."""

    @property
    def alive(self) -> list[int]:
        """The processes that still run; a zombie does not."""
        return [pid for pid in self.pids if _state(pid) not in ("", "Z")]


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


@contextlib.asynccontextmanager
async def orphans(
    target: Target,
    *,
    owner: str = "",
    grace_s: float = 60.0,
    shutdown_grace_s: float = 10.0,
    count: int = 2,
    affinity_timeout_s: int | None = None,
) -> AsyncIterator[Orphans]:
    """Workers that serve this target, just after their control process was killed."""
    arguments = json.dumps([count, owner, grace_s, shutdown_grace_s, target.port, affinity_timeout_s])
    control = await asyncio.create_subprocess_exec(sys.executable, "-c", CONTROL, arguments, stdout=subprocess.PIPE)
    assert control.stdout is not None
    output = json.loads(await asyncio.wait_for(control.stdout.readline(), 30))
    control.kill()
    await control.wait()
    left = Orphans(("127.0.0.1", output["port"]), output["pids"], output["run"])
    try:
        yield left
    finally:
        for pid in left.alive:
            os.kill(pid, signal.SIGKILL)
        await eventually(lambda: not left.alive)


@dataclass
class Owner:
    """A fake owner, and the workers that have connected."""

    name: str
    came: list[OrphanHello]
    writers: list[asyncio.StreamWriter]
    readers: list[asyncio.StreamReader]
    tasks: list[asyncio.Future[None]]
    server: ControlSocket | None = None
    proves: bool = True
    """Whether it proves CAP_NET_ADMIN."""
    asks: bool = False
    """Whether it asks for the marker."""
    markers: list[bool] = field(default_factory=list)
    """For each worker that has shown something, whether that is the marker of its run."""

    async def listen(self) -> None:
        self.server = ControlSocket(self.name)
        self.server.listen(lambda sock: self.tasks.append(asyncio.ensure_future(self.welcome(sock))))

    async def welcome(self, sock: socket.socket) -> None:
        message, descriptors = await receive_first(sock, HELLOS)
        assert isinstance(message, OrphanHello)
        assert len(descriptors) == 1
        assert self.server is not None
        for descriptor in descriptors:
            if self.proves:
                peer_capability.answer(descriptor, Purpose.RETIRE, self.server.name)
            else:
                os.close(descriptor)
        if self.asks:
            send_first(sock, Show())
            with contextlib.suppress(ConnectionError):
                _, shown = await receive_first(sock, SHOWN)
                self.markers += [is_marker(descriptor, message.run) for descriptor in shown]
        reader, writer = await asyncio.open_unix_connection(sock=sock)
        self.came.append(message)
        self.writers.append(writer)
        self.readers.append(reader)

    def send(self, line: bytes) -> None:
        for writer in self.writers:
            writer.write(line)

    def have_move(self, way: socket.socket) -> None:
        """Ask the only worker to move its connections there."""
        with way, socket.socket(fileno=os.dup(self.writers[0].get_extra_info("socket").fileno())) as sock:
            send_first(sock, Move((0,), 1), [way.fileno()])

    def hang_up(self) -> None:
        for writer in self.writers:
            writer.close()
        self.writers.clear()
        self.readers.clear()

    def close(self) -> None:
        if self.server is not None:
            self.server.close()
            self.server = None
        self.hang_up()


@pytest.fixture
async def owner() -> AsyncIterator[Owner]:
    owner = Owner(f"kubeproxy-test-{uuid.uuid4().hex[:8]}/", [], [], [], [])
    yield owner
    owner.close()


async def refused(address: tuple[str, int]) -> bool:
    try:
        _, writer = await asyncio.open_connection(*address)
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:
        return False  # Queued at a listener that was just being closed.
    writer.transport.abort()
    return False


async def until_refused(address: tuple[str, int]) -> None:
    async with asyncio.timeout(30):
        while not await refused(address):
            await asyncio.sleep(0.01)


async def connected(address: tuple[str, int]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"x")
    assert await reader.readexactly(1) == b"x"
    return reader, writer


async def test_they_serve_on_and_end_without_an_owner() -> None:
    async with endpoint(sends("hello")) as target, orphans(target, grace_s=1.0) as left:
        for _ in range(10):
            assert await ask(left.address) == "hello"
        assert left.alive == left.pids
        await eventually(lambda: not left.alive)
        assert await refused(left.address)


async def test_an_owner_retires_them(owner: Owner) -> None:
    async with endpoint(echo) as target, orphans(target, owner=owner.name) as left:
        reader, writer = await connected(left.address)
        await owner.listen()
        await eventually(lambda: len(owner.came) == 2)
        assert sorted(owner.came, key=lambda came: left.pids.index(came.pid)) == [
            OrphanHello(PROTOCOL, pid, left.run, MOVES, MOVES_SINCE) for pid in left.pids
        ]
        others = await connected(left.address)
        owner.send(b'{"type": "another"}\n{"type": "ret')
        others[1].write(b"y")
        assert await others[0].readexactly(1) == b"y", "they keep serving until they are retired"
        owner.send(b'ire"}\n')
        await until_refused(left.address)
        writer.write(b"z")
        assert await reader.readexactly(1) == b"z", "open connections go on"
        assert len(left.alive) >= 1
        writer.close()
        others[1].close()
        await eventually(lambda: not left.alive)


async def test_they_send_their_bindings(owner: Owner) -> None:
    """More than fits into a socket at once; they serve meanwhile, and answer again."""
    clients = {f"127.2.{number // 250}.{number % 250 + 1}" for number in range(4000)}

    async def come(client: str) -> None:
        reader, writer = await asyncio.open_connection(*left.address, local_addr=(client, 0))
        await reader.read()
        writer.close()

    async def answer(reader: asyncio.StreamReader) -> list[Binding]:
        found: list[Binding] = []
        while (message := decode(await reader.readline(), FROM_ORPHANS)) != Done("recall"):
            assert isinstance(message, Bindings)
            assert message.bound.frontend == frontend("web")
            found += message.bound.bindings
        return found

    async with endpoint(sends("hello")) as target, orphans(target, owner=owner.name, affinity_timeout_s=600) as left:
        for some in chunked(sorted(clients), 100):
            await asyncio.gather(*map(come, some))
        await owner.listen()
        await eventually(lambda: len(owner.readers) == 2)
        for _ in range(2):
            owner.send(b'{"type": "recall"}\n')
            await asyncio.wait_for(come("127.2.0.1"), 30)
            found = [await asyncio.wait_for(answer(reader), 30) for reader in owner.readers]
            assert sorted(binding.client for each in found for binding in each) == sorted(clients)
            for each in found:
                assert each
                assert {binding.target for binding in each} == {target}
                assert [binding.age_s for binding in each] == sorted((b.age_s for b in each), reverse=True)
        owner.send(b'{"type": "retire"}\n')
        await eventually(lambda: not left.alive)


def chunked(clients: list[str], size: int) -> Iterator[list[str]]:
    """Slices of `size` clients."""
    for at in range(0, len(clients), size):
        yield clients[at : at + size]


async def test_a_retired_worker_waits_for_a_receipt(owner: Owner) -> None:
    """What the other instance refuses goes on in the worker."""
    async with endpoint(echo) as target, orphans(target, owner=owner.name, count=1) as left:
        reader, writer = await connected(left.address)
        await owner.listen()
        await eventually(lambda: len(owner.writers) == 1)
        theirs, ours = socket.socketpair()
        channel: Channel[Load] = Channel(ours, Load)
        channel.send(Receipt(0, 100))
        owner.have_move(theirs)
        loads: list[tuple[Load, tuple[int, ...]]] = []

        def read() -> bool:
            loads.extend(channel.receive())
            return bool(loads)

        await eventually(read)
        owner.send(b'{"type": "retire"}\n')
        await until_refused(left.address)
        ((load, descriptors),) = loads
        for descriptor in descriptors:
            os.close(descriptor)
        channel.send(Receipt(load.number, 0, (0,)))
        writer.write(b"y")
        assert await reader.readexactly(1) == b"y"
        writer.close()
        await eventually(lambda: not left.alive)
        channel.close()


async def test_a_retired_worker_ends_within_the_grace_period(owner: Owner) -> None:
    async with endpoint(echo) as target, orphans(target, owner=owner.name, shutdown_grace_s=0.5) as left:
        reader, writer = await connected(left.address)
        await owner.listen()
        await eventually(lambda: len(owner.came) == 2)
        owner.send(b'{"type": "retire"}\n')
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(), 30)
        writer.close()
        await eventually(lambda: not left.alive)


@pytest.mark.parametrize(
    "end", [Owner.hang_up, lambda owner: owner.send(b"garbage\n" + b"x" * 5000)], ids=["hangs up", "talks nonsense"]
)
async def test_a_broken_owner_is_left_and_another_searched(owner: Owner, end: Callable[[Owner], None]) -> None:
    async with endpoint(sends("hello")) as target, orphans(target, owner=owner.name) as left:
        await owner.listen()
        await eventually(lambda: len(owner.came) == 2)
        end(owner)
        await eventually(lambda: len(owner.came) == 4)
        assert await ask(left.address) == "hello"
        owner.send(b'{"type": "retire"}\n')
        await eventually(lambda: not left.alive)


async def test_a_slow_owner_is_waited_for_while_it_lives(owner: Owner) -> None:
    async with endpoint(sends("hello")) as target, orphans(target, owner=owner.name, grace_s=1.0) as left:
        await owner.listen()
        await eventually(lambda: len(owner.came) == 2)
        async with orphans(target, grace_s=1.0) as lonely:
            await eventually(lambda: not lonely.alive)
        assert await ask(left.address) == "hello"
        assert left.alive == left.pids
        owner.close()
        await eventually(lambda: not left.alive)


async def test_sigterm_ends_orphans() -> None:
    async with endpoint(sends("hello")) as target, orphans(target) as left:
        for pid in left.pids:
            os.kill(pid, signal.SIGTERM)
        await eventually(lambda: not left.alive)
        assert await refused(left.address)


@pytest.mark.parametrize("word", ["retire", "recall"])
async def test_an_owner_without_a_proof_is_not_obeyed(owner: Owner, word: str) -> None:
    """A process of the same user without CAP_NET_ADMIN; clients of affinity are not its business either."""
    owner.proves = False
    async with endpoint(sends("hello")) as target, orphans(target, owner=owner.name) as left:
        await owner.listen()
        await eventually(lambda: len(owner.came) == 2)
        first = owner.readers[:]
        owner.send(f'{{"type": "{word}"}}\n'.encode())
        await eventually(lambda: len(owner.came) == 4)
        assert [await reader.read() for reader in first] == [b"", b""]
        assert await ask(left.address) == "hello"
        assert left.alive == left.pids
        owner.proves = True
        owner.hang_up()
        await eventually(lambda: len(owner.writers) == 2)
        owner.send(b'{"type": "retire"}\n')
        await eventually(lambda: not left.alive)


async def test_a_false_owner_does_not_hide_the_true_one(owner: Owner) -> None:
    """It listens under an older name, and sends nothing."""
    false = ControlSocket(owner.name)
    false.listen(lambda sock: held.append(sock))
    held: list[socket.socket] = []
    async with endpoint(sends("hello")) as target, orphans(target, owner=owner.name) as left:
        await eventually(lambda: len(held) == 2)
        await owner.listen()
        await eventually(lambda: len(owner.writers) == 2)
        owner.send(b'{"type": "retire"}\n')
        await eventually(lambda: not left.alive)
    false.close()
    for sock in held:
        sock.close()


@pytest.mark.parametrize("proves", [True, False])
async def test_they_show_the_marker_of_their_run_to_an_owner_that_has_proven_itself(owner: Owner, proves: bool) -> None:
    """By it their connections may move. Whoever else gets it could claim to be a worker."""
    owner.proves, owner.asks = proves, True
    async with endpoint(echo) as target, orphans(target, owner=owner.name) as left:
        reader, writer = await connected(left.address)
        await owner.listen()
        await eventually(lambda: len(owner.came) >= 2)
        assert owner.markers == [True] * 2 * proves
        writer.write(b"y")
        assert await reader.readexactly(1) == b"y"
        writer.close()


IMPOSTOR = """if True:
    import contextlib, os, socket, sys
    os.setuid(65534)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind("\\0" + sys.argv[1])
    listening.listen()
    print(flush=True)
    while True:
        client, _ = listening.accept()
        with contextlib.suppress(BrokenPipeError):
            client.sendall(b'{"type": "retire"}\\n')
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, which takes root")
async def test_a_request_of_another_user_is_ignored() -> None:
    name = f"kubeproxy-test-{uuid.uuid4().hex[:8]}"
    impostor = await asyncio.create_subprocess_exec(
        *(sys.executable, "-S", "-c", IMPOSTOR, name), stdout=subprocess.PIPE
    )
    assert impostor.stdout is not None
    try:
        await asyncio.wait_for(impostor.stdout.readline(), 30)
        async with endpoint(sends("hello")) as target, orphans(target, owner=name, grace_s=2.0) as left:
            began = asyncio.get_running_loop().time()
            await eventually(lambda: not left.alive)
            assert asyncio.get_running_loop().time() - began > 1.0, "they were retired"
    finally:
        impostor.kill()
        await impostor.wait()
