"""The worker pool: messages to workers, replacement of dead workers, affinity, limits of a worker, shutdown."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from kubeproxy.dataplane.balancing.affinity import merged
from kubeproxy.dataplane.in_process import LocalDataPlane
from kubeproxy.dataplane.messages import (
    NOT_OPEN,
    Join,
    Listen,
    MarkEndpoint,
    Message,
    RestoreBindings,
    Retire,
    SetEndpoints,
    Tune,
)
from kubeproxy.dataplane.workers import pool
from kubeproxy.dataplane.workers.batch import CHUNK, WorkerBatch
from kubeproxy.dataplane.workers.channel import Channel
from kubeproxy.dataplane.workers.columns import Columns
from kubeproxy.dataplane.workers.count import DEFAULT_MAX, workers_for
from kubeproxy.dataplane.workers.frontend_sockets import ServedFrontend
from kubeproxy.dataplane.workers.pool import WorkerDataPlane
from kubeproxy.dataplane.workers.process import WorkerProcess, command
from kubeproxy.dataplane.workers.protocol import Frame, Report
from kubeproxy.model import Address, Destination, Family, FrontendName, Protocol, ServicePortName, Target
from kubeproxy.model.errors import KernelError
from tests.dataplane.conftest import LOOPBACK, Bench, ask, echo, endpoint, eventually, frontend, refusing_target, sends
from tests.dataplane.workers.harness import WorkerPool, listening, status, udp_client, until, worker_pool

WORKERS = 2


async def accepted(worker_pool: WorkerPool, name: str = "web") -> int:
    return (await worker_pool.plane.counters())[frontend(name)].accepted


async def test_every_worker_serves() -> None:
    async with worker_pool(WORKERS) as it, endpoint(sends("hello")) as target:
        address = await it.serve(target)
        assert listening(address[1]) == WORKERS, "the reserved port does not listen"
        for _ in range(60):
            assert await ask(address) == "hello"
        worker_status = await it.plane.worker_status()
        assert [each.number for each in worker_status] == list(range(WORKERS))
        assert [each.pid for each in worker_status] == [worker.pid for worker in it.workers]
        assert all(sum(each.dials) > 0 for each in worker_status), "the kernel spreads clients over the workers"
        assert sum(sum(each.dials) for each in worker_status) == 60
        assert await accepted(it) == 60
        assert (it.plane.restarts, it.plane.problem) == (0, None)


async def test_only_changed_counters_are_reported_again() -> None:
    async with worker_pool(1) as it, endpoint(sends("hello")) as target:
        address = await it.serve(target)
        await it.serve(target, name="other")
        assert set(await it.plane.counters()) == {frontend(), frontend("other")}
        worker = it.workers[0]
        worker.counters.clear()
        assert await ask(address) == "hello"
        await until(lambda: _has_ended(it))
        assert set(worker.counters) == {frontend()}


async def _has_ended(it: WorkerPool) -> bool:
    found = (await it.plane.counters())[frontend()]
    return (found.accepted, found.active) == (1, 0)


async def test_a_frontend_is_added_changed_and_removed() -> None:
    async with worker_pool(WORKERS) as it, endpoint(sends("one")) as one, endpoint(sends("two")) as two:
        address = await it.serve(one)
        assert await ask(address) == "one"
        await it.plane.send([SetEndpoints(frontend(), (two,))])
        assert {await ask(address) for _ in range(12)} == {"two"}
        await it.plane.send([Retire(frontend())])
        with pytest.raises(ConnectionRefusedError):
            await ask(address)
        assert await it.plane.counters() == {}
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(address)  # still reserved
        it.held[frontend()].release()
        it.plane.reserve(Protocol.TCP, LOOPBACK, address[1])


async def test_an_unreserved_port_fails_and_other_frontends_are_served() -> None:
    async with worker_pool(WORKERS) as it, endpoint(sends("hello")) as target:
        held = it.plane.reserve(Protocol.TCP, LOOPBACK, 0)
        messages: list[Message] = [
            Listen(frontend("lost"), Protocol.TCP, LOOPBACK, 1),
            SetEndpoints(frontend("lost"), (target,)),
            Listen(frontend("web"), Protocol.TCP, LOOPBACK, held.port),
            SetEndpoints(frontend("web"), (target,)),
        ]
        failures = await it.plane.send(messages)
        assert failures == {frontend("lost"): "cannot listen on 127.0.0.1 port 1: it was not reserved"}
        assert await ask(("127.0.0.1", held.port)) == "hello"
        assert set(await it.plane.counters()) == {frontend("web")}


LISTENER = FrontendName(ServicePortName("", "shared", "1"), Family.IPV4)


def shared_by(names: Iterable[str], *, port: int) -> list[Message]:
    joins = [Join(frontend(name), LISTENER, (Destination(LOOPBACK, Protocol.TCP, 80),)) for name in names]
    return [Listen(LISTENER, Protocol.TCP, LOOPBACK, port, shared=True), *joins]


async def test_frontends_fail_with_their_shared_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    async with worker_pool(2) as it:
        deliver = it.plane._deliver

        async def refuse(*batches: Any, **named: Any) -> dict[FrontendName, str]:
            return {**await deliver(*batches, **named), LISTENER: "refused"}

        assert await it.plane.send(shared_by(["a"], port=0)[1:]) == {frontend("a"): NOT_OPEN}
        unreserved = "cannot listen on 127.0.0.1 port 1: it was not reserved"
        assert await it.plane.send(shared_by(["a"], port=1)) == dict.fromkeys((LISTENER, frontend("a")), unreserved)
        messages = shared_by(["a"], port=it.plane.reserve(Protocol.TCP, LOOPBACK, 0).port)
        with monkeypatch.context() as poor:
            poor.setattr(it.plane, "_deliver", refuse)
            assert await it.plane.send(messages) == dict.fromkeys((LISTENER, frontend("a")), "refused")
        assert await it.plane.counters() == {}
        assert await it.plane.send(messages) == {}
        assert it.ends == []


async def test_a_new_worker_opens_a_shared_listener_when_all_have_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that joins meanwhile does so before the listener is open there."""
    sent: dict[WorkerProcess, list[FrontendName]] = {}
    tasks: list[asyncio.Future[Mapping[FrontendName, str]]] = []
    add_first = WorkerBatch.add_first

    def add(batch: WorkerBatch, served: ServedFrontend[Any]) -> None:
        add_first(batch, served)
        sent.setdefault(batch.worker, []).append(served.begin.frontend)
        if not tasks:
            tasks.append(asyncio.ensure_future(it.plane.send(messages[-1:])))

    async with worker_pool(2) as it:
        port = it.plane.reserve(Protocol.TCP, LOOPBACK, 0).port
        messages = shared_by([f"s{number}" for number in range(CHUNK + 9)], port=port)
        assert await it.plane.send(messages[:-1]) == {}
        monkeypatch.setattr(WorkerBatch, "add_first", add)
        os.kill(it.workers[0].pid, signal.SIGKILL)
        await eventually(lambda: len(it.workers) < 2)
        await it.complete(2)
        assert await tasks[0] == {}
        new = sent[it.workers[0]]
        assert new[-1] == LISTENER
        assert set(new) == {message.frontend for message in messages if not isinstance(message, Tune)}
        await eventually(lambda: listening(port) == 2)
        assert len(it.ends) == 1


async def test_a_port_of_another_program_cannot_be_reserved() -> None:
    async with worker_pool(1) as it:
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            other.bind(("127.0.0.1", 0))
            with pytest.raises(OSError, match="in use"):
                it.plane.reserve(Protocol.TCP, LOOPBACK, other.getsockname()[1])


@pytest.mark.parametrize("count", [1, WORKERS])
async def test_a_worker_that_is_killed_is_replaced_and_its_neighbours_notice_nothing(count: int) -> None:
    async with worker_pool(count) as it, endpoint(echo) as target:
        address = await it.serve(target)
        connections = [await asyncio.open_connection(*address) for _ in range(8 * count)]
        for _, writer in connections:
            writer.write(b"x")
        for reader, _ in connections:
            await reader.readexactly(1)
        before = await it.plane.counters()
        victim, *neighbours = it.workers
        doomed = next(
            worker_status.connections
            for worker_status in await it.plane.worker_status()
            if worker_status.pid == victim.pid
        )
        os.kill(victim.pid, signal.SIGKILL)
        lost = 0
        for reader, writer in connections:
            writer.write(b"y")
            try:
                lost += await asyncio.wait_for(reader.read(1), 10) != b"y"
            except ConnectionError:
                lost += 1
        assert lost == doomed
        await it.complete(count)
        assert [worker for worker in it.workers if worker in neighbours] == neighbours
        assert it.workers[0].pid != victim.pid
        assert [(end.number, end.pid, end.reason) for end in it.ends] == [(0, victim.pid, "killed by SIGKILL")]
        assert (it.plane.restarts, it.plane.problem) == (1, None)
        after = await it.plane.counters()
        assert after[frontend()].accepted == before[frontend()].accepted == len(connections)
        assert after[frontend()].active == len(connections) - lost
        for _, writer in connections:
            writer.close()
        met = set()
        for _ in range(20 * count):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"z")
            assert await reader.read(1) == b"z"
            writer.close()
            met |= {worker_status.pid for worker_status in await it.plane.worker_status() if sum(worker_status.dials)}
        assert it.workers[0].pid in met, "the new one serves"


async def test_new_clients_are_served_while_workers_are_killed() -> None:
    async with worker_pool(WORKERS) as it, endpoint(sends("hello")) as target:
        address = await it.serve(target)
        stop = False
        outcomes: Counter[str] = Counter()

        async def clients() -> None:
            while not stop:
                try:
                    outcomes[await ask(address)] += 1
                except ConnectionError:
                    outcomes["lost"] += 1

        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(clients())
            for number in range(WORKERS):
                await asyncio.sleep(0.2)
                os.kill(it.workers[number].pid, signal.SIGKILL)
                await eventually(lambda: len(it.workers) < WORKERS)
                await it.complete(WORKERS)
            stop = True
        # Only clients that the dead workers had accepted, or had in their queues.
        assert outcomes["lost"] <= 4 * WORKERS
        assert outcomes["hello"] > 20
        assert it.plane.restarts == WORKERS


async def test_messages_sent_while_a_worker_dies_reach_all_workers() -> None:
    async with worker_pool(2) as it, endpoint(sends("hello")) as target:
        names = [f"s{number}" for number in range(20)]
        for number, name in enumerate(names):
            if number % 10 == 5:
                await eventually(lambda: bool(it.workers))
                os.kill(it.workers[-1].pid, signal.SIGKILL)
            await it.serve(target, name=name, affinity_timeout_s=60 if number % 2 else None)
        await it.complete(2)
        await it.plane.send([Retire(frontend(name)) for name in names[:8]])
        for name in names[8:]:
            port = it.held[frontend(name)].port
            await eventually(lambda: listening(port) == 2)  # noqa: B023
            assert await ask(("127.0.0.1", port)) == "hello"
        await eventually(lambda: len({worker_frontends(worker.pid) for worker in it.workers}) == 1)


def worker_frontends(pid: int) -> int:
    """The number of open sockets of a worker, including those of connections."""
    return sum(1 for fd in Path(f"/proc/{pid}/fd").iterdir() if "socket" in _link(fd))


def _link(path: Path) -> str:
    with suppress(FileNotFoundError):
        return str(path.readlink())
    return ""


async def test_a_worker_that_keeps_dying_is_a_problem() -> None:
    async with worker_pool(2) as it, endpoint(sends("hello")) as target:
        address = await it.serve(target)
        for deaths in range(1, 4):
            await it.complete(2)
            assert it.plane.problem is None
            os.kill(it.workers[0].pid, signal.SIGSEGV)
            await eventually(lambda: len(it.ends) == deaths)  # noqa: B023
        assert it.plane.problem == "workers keep dying: 3 within 60 s, the last (number 0): killed by SIGSEGV"
        assert [end.restarts_in_s for end in it.ends] == [0.0, 0.1, 0.2]
        assert await ask(address) == "hello"


async def test_workers_that_cannot_start_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kubeproxy.dataplane.workers.supervisor.START_S", 0.5)
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    ends: list[object] = []
    plane = WorkerDataPlane(2, on_end=ends.append, on_crash=lambda *crash: pytest.fail(str(crash)))
    with pytest.raises(KernelError, match=r"no worker process is in service within 0.5 s.*No such file"):
        await plane.send([Tune()])
    assert ends
    monkeypatch.undo()
    await eventually(lambda: any(worker.in_service for worker in plane._workers.values()))
    assert await plane.send([Tune()]) == {}
    await plane.close()


async def test_a_worker_that_hangs_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """With or without a pending request, which then ends without a reply."""
    async with worker_pool(2) as it, endpoint(sends("here")) as target:
        await it.serve(target)
        await eventually(lambda: all(worker._has_reported for worker in it.workers))
        monkeypatch.setattr("kubeproxy.dataplane.workers.process.SILENT_BEATS", 1)
        os.kill(it.workers[0].pid, signal.SIGSTOP)
        assert await it.plane.send([SetEndpoints(frontend(), (target,))]) == {}
        monkeypatch.undo()
        await it.complete(2)
        assert [end.reason for end in it.ends] == ["silent for 1 s"]


async def test_an_idle_worker_reports_and_is_not_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kubeproxy.dataplane.workers.process.BEAT_S", 0.6)
    async with worker_pool(1) as it:
        reported: list[int] = []
        take = it.workers[0]._take

        def count(report: Report) -> None:
            reported.append(report.open)
            take(report)

        monkeypatch.setattr(it.workers[0], "_take", count)
        await eventually(lambda: len(reported) == 3)
        assert it.ends == []


async def test_a_stopped_control_process_does_not_kill_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kubeproxy.dataplane.workers.process.BEAT_S", 0.1)
    monkeypatch.setattr("kubeproxy.dataplane.workers.process.SILENT_BEATS", 15)
    async with worker_pool(1) as it:
        asked = asyncio.ensure_future(it.plane.worker_status())
        await asyncio.sleep(0)
        time.sleep(2)  # as if stopped
        assert len(await asked) == 1
        assert it.ends == []


async def test_a_control_process_without_memory_does_not_kill_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kubeproxy.dataplane.workers.process.BEAT_S", 100.0)
    receive, silent = Channel.receive, []

    async with worker_pool(1) as it:
        worker = it.workers[0]

        def receive_the_third_time(self: Channel[Report]) -> Iterator[tuple[Report, tuple[int, ...]]]:
            silent.append(worker._silent)
            if len(silent) < 3:
                raise MemoryError
            return receive(self)

        with monkeypatch.context() as poor:
            poor.setattr(Channel, "receive", receive_the_third_time)
            worker._silent = 5  # the next beat would kill it
            assert len(await it.plane.worker_status()) == 1
        assert silent[:3] == [5, 0, 0]
        assert it.ends == []


async def test_a_worker_without_memory_reads_its_requests_later(monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        "import sys; from kubeproxy.dataplane.workers import main as worker, protocol\n"
        "decode, left = protocol.Decoder._decode, [3]\n"
        "def poor(self, *where):\n"
        "    left[0] -= 1\n"
        "    if left[0] >= 0: raise MemoryError\n"
        "    return decode(self, *where)\n"
        "protocol.Decoder._decode = poor\n"
        "sys.exit(worker.main(sys.argv[1:]))"
    )

    def poorly(fd: int, **named: Any) -> list[str]:
        python, isolated, _, _, *arguments = command(fd, **named)
        return [python, isolated, "-c", script, *arguments]

    monkeypatch.setattr("kubeproxy.dataplane.workers.pool.command", poorly)
    async with worker_pool(1) as it:
        (worker_status,) = await it.plane.worker_status()
        assert worker_status.memory_shortages > 0
        assert it.ends == []


async def test_a_request_that_was_not_sent_for_lack_of_memory_is_not_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    def encode(frame: Frame, descriptors: int = 0) -> bytes:
        raise MemoryError

    async with worker_pool(1) as it:
        worker = it.workers[0]
        with monkeypatch.context() as poor:
            poor.setattr("kubeproxy.dataplane.workers.channel.encode", encode)
            with pytest.raises(MemoryError):
                await it.plane.worker_status()
        assert worker._pending == {}
        assert len(await it.plane.worker_status()) == 1


async def test_a_worker_that_gets_garbage_is_replaced() -> None:
    async with worker_pool(2) as it:
        channel = it.workers[1]._channel
        assert channel is not None
        channel.sock.send(b"GET / HTTP/1.1\r\n\r\n")  # the worker closes its channel and exits, as it serves nothing
        await eventually(lambda: len(it.ends) == 1)
        await it.complete(2)
        assert it.ends[0].reason == "exit status 0"


# Limits of a worker.


async def test_workers_have_no_privileges_but_to_dial_and_ignore_signals_for_the_control_process() -> None:
    async with worker_pool(1) as it, endpoint(sends("hello")) as target:
        address = await it.serve(target)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            os.kill(it.workers[0].pid, number)
        assert await ask(address) == "hello"
        assert it.ends == []
        said = status(it.workers[0].pid)
        ours = int(status(os.getpid())["CapPrm"], 16)
        kept = (1 << 13) & ours or (1 << 12) & ours
        assert said["NoNewPrivs"] == "1"
        assert int(said["CapPrm"], 16) == int(said["CapEff"], 16) == int(said["CapBnd"], 16) == kept
        assert int(said["CapInh"], 16) == int(said["CapAmb"], 16) == 0
        assert said["Name"] == "kubeproxy-0"


def test_workers_import_little() -> None:
    script = "import sys, kubeproxy.dataplane.workers.main; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"asyncio", "uvloop", "structlog", "kubernetes_asyncio", "click", "logging", "ssl", "aiohttp", "yaml"}
    assert heavy.isdisjoint(modules)
    ours = {name for name in modules if name.startswith("kubeproxy.")}
    assert all(
        name.startswith(
            (
                "kubeproxy.dataplane",
                "kubeproxy.model",
                "kubeproxy.runtime",
            )
        )
        for name in ours
    )


async def test_workers_are_small() -> None:
    async with worker_pool(1) as it, endpoint(sends("hello")) as target:
        for number in range(10):
            await it.serve(target, name=f"s{number}")
        lines = Path(f"/proc/{it.workers[0].pid}/smaps_rollup").read_text().splitlines()
        pss = next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        assert pss < 25 * 1024


# Assignment of clients to workers.


@pytest.mark.parametrize("protocol", [Protocol.TCP, Protocol.UDP])
async def test_pinned_clients_keep_their_worker_and_survive_its_death(protocol: Protocol) -> None:
    async with worker_pool(WORKERS) as it:
        with socket.socket(type=socket.SOCK_DGRAM) as pod, udp_client() as client:
            pod.bind(("127.0.0.1", 0))
            pod.setblocking(False)
            target = Target(LOOPBACK, pod.getsockname()[1])
            if protocol is Protocol.TCP:
                async with endpoint(sends("hello")) as tcp_target:
                    address = await it.serve(tcp_target, affinity_timeout_s=60)
                    for _ in range(20):
                        assert await ask(address) == "hello"
                    assert len([1 for worker_status in await it.plane.worker_status() if sum(worker_status.dials)]) == 1
                    assert (await it.plane.counters())[frontend()].affinity_entries == 1
                    busy = next(
                        worker_status for worker_status in await it.plane.worker_status() if sum(worker_status.dials)
                    )
                    os.kill(busy.pid, signal.SIGSTOP)
                    waiting = asyncio.gather(*(ask(address) for _ in range(5)))
                    await asyncio.sleep(0.1)
                    os.kill(busy.pid, signal.SIGKILL)
                    assert await waiting == ["hello"] * 5, "they wait in the socket for the next worker"
                return
            loop = asyncio.get_running_loop()
            address = await it.serve(target, protocol=Protocol.UDP)
            client.connect(address)
            for word in (b"one", b"two"):
                client.send(word)
                assert await asyncio.wait_for(loop.sock_recv(pod, 10), 5) == word
            busy = next(worker_status for worker_status in await it.plane.worker_status() if worker_status.udp_sessions)
            os.kill(busy.pid, signal.SIGSTOP)
            client.send(b"three")
            os.kill(busy.pid, signal.SIGKILL)
            assert await asyncio.wait_for(loop.sock_recv(pod, 10), 20) == b"three"

            async def counted() -> bool:  # the new worker serves before it is queried
                return (await it.plane.counters())[frontend()].active == 1

            await until(counted)


async def test_affinity_can_be_turned_on_later() -> None:
    async with worker_pool(WORKERS) as it, endpoint(sends("a")) as one, endpoint(sends("b")) as two:
        address = await it.serve(one, two)
        assert {await ask(address) for _ in range(40)} == {"a", "b"}
        busy = True
        failures: list[BaseException] = []

        async def clients() -> None:
            while busy:
                try:
                    assert await ask(address) in ("a", "b")
                except OSError as error:
                    failures.append(error)

        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(clients())
            await it.plane.send([SetEndpoints(frontend(), (one, two), 60)])
            await eventually(lambda: listening(address[1]) == WORKERS, within_s=20)
            busy = False
        assert failures == []
        before = Counter(
            {worker_status.number: sum(worker_status.dials) for worker_status in await it.plane.worker_status()}
        )
        assert len({await ask(address) for _ in range(30)}) == 1
        after = Counter(
            {worker_status.number: sum(worker_status.dials) for worker_status in await it.plane.worker_status()}
        )
        assert sorted((after - before).values()) == [30], "one worker"
        assert (await it.plane.counters())[frontend()].accepted == sum(after.values())
        # The affinity survives the death of a worker.
        os.kill(it.workers[0].pid, signal.SIGKILL)
        await eventually(lambda: len(it.workers) < WORKERS)
        await it.complete(WORKERS)
        assert len({await ask(address) for _ in range(10)}) == 1
        await it.plane.send([SetEndpoints(frontend(), (one, two), None)])
        assert {await ask(address) for _ in range(20)} == {"a", "b"}


# Affinity bindings across workers and instances.

CLIENTS = [f"127.1.0.{number}" for number in range(1, 41)]


async def paired(address: tuple[str, int]) -> dict[str, str]:
    """The endpoint that answers each client; every client has an address of its own."""

    async def answer(client: str) -> str:
        async with asyncio.timeout(20):
            reader, writer = await asyncio.open_connection(*address, local_addr=(client, 0))
            answer = (await reader.read()).decode()
            writer.close()
            return answer

    return dict(zip(CLIENTS, await asyncio.gather(*map(answer, CLIENTS)), strict=True))


@pytest.mark.parametrize("count", [1, WORKERS])
async def test_clients_keep_their_endpoints_when_a_worker_dies(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "BINDINGS_S", 0.05)
    async with worker_pool(count) as it, AsyncExitStack() as stack:
        pods = [await stack.enter_async_context(endpoint(sends(name))) for name in "abcd"]
        address = await it.serve(*pods, affinity_timeout_s=60)
        before = await paired(address)
        assert set(before.values()) == set("abcd")
        await eventually(lambda: known(it) == set(CLIENTS))
        for worker in it.workers:
            os.kill(worker.pid, signal.SIGSTOP)
        waiting = asyncio.ensure_future(paired(address))
        await asyncio.sleep(0.1)
        for worker in it.workers:
            os.kill(worker.pid, signal.SIGKILL)
        assert await waiting == before, "also clients that waited for the next workers"
        assert it.plane.restarts == count
        await it.complete(count)
        assert (await it.plane.counters())[frontend()].affinity_entries == len(CLIENTS), "each is bound in one worker"


def known(it: WorkerPool) -> set[str]:
    """The clients with bindings in the control process."""
    return {
        binding.client
        for sockets in it.plane._frontends.values()
        for number in range(len(it.workers))
        for piece in sockets.bindings_of(number, 0.0)
        for binding in piece.bindings
    }


@asynccontextmanager
async def served_by(count: int) -> AsyncIterator[WorkerPool | Bench]:
    """A data plane of `count` workers, or (0) in this process."""
    if count:
        async with worker_pool(count) as it:
            yield it
        return
    plane = LocalDataPlane()
    yield Bench(plane)
    await plane.close()


@pytest.mark.parametrize(("before", "after"), [(3, 2), (0, 2), (2, 0)])
async def test_clients_keep_their_endpoints_with_other_workers(before: int, after: int) -> None:
    async with AsyncExitStack() as stack:
        pods = [await stack.enter_async_context(endpoint(sends(name))) for name in "abcd"]
        first, second = [await stack.enter_async_context(served_by(count)) for count in (before, after)]
        old, new = [await each.serve(*pods, affinity_timeout_s=60) for each in (first, second)]
        seen = await paired(old)
        assert set(seen.values()) == set("abcd")
        sent = merged(await first.plane.bindings())
        earlier = [
            RestoreBindings(piece.frontend, tuple(each._replace(age_s=each.age_s + 30) for each in piece.bindings))
            for piece in sent
        ]
        assert await second.plane.send(earlier) == {}
        assert (await second.plane.counters())[frontend()].affinity_entries == len(CLIENTS), "each in one worker"
        restored = [binding for piece in await second.plane.bindings() for binding in piece.bindings]
        assert sorted(binding.client for binding in restored) == sorted(CLIENTS)
        assert all(30.0 <= binding.age_s < 60.0 for binding in restored), "a third instance would get them, too"
        assert await paired(new) == seen


# Queries.


async def test_ejected_endpoints_are_reported_by_worker() -> None:
    async with worker_pool(2) as it, endpoint(sends("hello")) as target:
        with refusing_target() as bad:
            address = await it.serve(bad, target)
            while len((await it.plane.ejected()).get(frontend(), ())) < 2:
                assert await ask(address) == "hello"
        found = (await it.plane.ejected())[frontend()]
        assert [(ejected.target, ejected.reason) for ejected in found] == [(bad, "refused")] * 2
        assert {ejected.worker for ejected in found} == {0, 1}
        previews = await it.plane.previews(frontend(), Address("10.0.0.1"), 40000)
        assert [preview.worker for preview in previews] == [0, 1]
        assert all(preview.order[0] == target for preview in previews)
        assert await it.plane.previews(frontend("no_endpoint"), Address("10.0.0.1"), 40000) == []


async def test_an_endpoint_that_failed_elsewhere_is_left_out_until_it_answers() -> None:
    """The kernel path has found it dead: no worker has to find out by a client's dial."""
    async with worker_pool(2) as it, endpoint(sends("a")) as dead, endpoint(sends("b")) as other:
        address = await it.serve(dead, other)
        assert await it.plane.send([MarkEndpoint(frontend(), dead, "silent")]) == {}
        found = (await it.plane.ejected())[frontend()]
        assert {(each.worker, each.target, each.reason) for each in found} == {(0, dead, "silent"), (1, dead, "silent")}
        assert {await ask(address) for _ in range(20)} == {"b"}
        assert await it.plane.send([MarkEndpoint(frontend(), dead, None)]) == {}
        assert (await it.plane.ejected()).get(frontend(), ()) == ()
        assert {await ask(address) for _ in range(40)} == {"a", "b"}
        assert await it.plane.send([MarkEndpoint(frontend("gone"), dead, "silent")]) == {}


async def test_many_messages_do_not_stop_connections() -> None:
    """Ten thousand changes are applied in slices, between which connections are served."""
    async with worker_pool(1) as it, endpoint(echo) as target:
        address = await it.serve(target)
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"x")
        await reader.readexactly(1)  # connected before the many endpoints come, none of which answers
        crowd = tuple(Target(LOOPBACK, 1 + number) for number in range(50))
        sending = asyncio.ensure_future(
            it.plane.send([SetEndpoints(frontend(), crowd)] * 10_000 + [SetEndpoints(frontend(), (target,))])
        )
        exchanges = 0
        while not sending.done():
            writer.write(b"x")
            await reader.readexactly(1)
            exchanges += 1
        assert await sending == {}
        assert exchanges > 10
        writer.close()
        assert max(worker_status.lag_s for worker_status in await it.plane.worker_status()) < 1.0


# Shutdown.


async def test_drain_waits_for_open_connections_and_retire_stops_accepting() -> None:
    async with worker_pool(2) as it, endpoint(echo) as target:
        address = await it.serve(target)
        connections = [await asyncio.open_connection(*address) for _ in range(6)]
        for reader, writer in connections:
            writer.write(b"x")
            await reader.readexactly(1)
        await eventually(lambda: it.plane.open_connections == 6)
        assert await it.plane.drain(0.1) == 6
        draining = asyncio.ensure_future(it.plane.drain(30))
        await it.plane.retire()
        with pytest.raises(ConnectionRefusedError):
            await ask(address)
        for reader, writer in connections:
            writer.write(b"y")
            assert await reader.readexactly(1) == b"y"
        assert not draining.done()
        for _, writer in connections:
            writer.close()
        assert await asyncio.wait_for(draining, 10) == 0
        assert it.plane.open_connections == 0
        os.kill(it.workers[0].pid, signal.SIGKILL)
        await eventually(lambda: len(it.workers) == 1)
        assert it.plane.restarts == 0, "no worker is needed any more"


ONE, OTHER = Address("127.0.0.2"), Address("127.0.0.3")


async def test_open_connections_are_counted_by_endpoint_address() -> None:
    async with worker_pool(WORKERS) as it:
        await _count_connections(it)


async def test_one_process_counts_open_connections_by_endpoint_address(bench: Bench) -> None:
    await _count_connections(bench)


async def _count_connections(it: WorkerPool | Bench) -> None:
    async def counts(wanted: dict[Address, int]) -> bool:
        return await it.plane.open_to({ONE, OTHER}) == wanted

    async with endpoint(echo, host=ONE) as first, endpoint(echo, host=OTHER) as second:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams, udp_client() as client:
            datagrams.bind((OTHER, 0))
            tcp = await it.serve(first)
            udp = await it.serve(Target(OTHER, datagrams.getsockname()[1]), name="udp", protocol=Protocol.UDP)
            writers = [(await asyncio.open_connection(*tcp))[1] for _ in range(5)]
            client.sendto(b"x", udp)
            await until(lambda: counts({ONE: 5, OTHER: 1}))
            assert await it.plane.open_to({OTHER}) == {OTHER: 1}
            assert await it.plane.open_to({Address("127.0.0.9")}) == {}
            await it.plane.send([SetEndpoints(frontend(), (second,))])
            assert await it.plane.open_to({ONE}) == {ONE: 5}, "open connections go on"
            for writer in writers[:2]:
                writer.close()
            await until(lambda: counts({ONE: 3, OTHER: 1}))
            for writer in writers[2:]:
                writer.close()
            await until(lambda: counts({OTHER: 1}))
            await it.plane.send([SetEndpoints(frontend("udp"), ())])
            assert await it.plane.open_to({OTHER}) == {}, "sessions get another endpoint with the next datagram"


async def test_close_resets_connections_and_leaves_nothing() -> None:
    async with worker_pool(2) as it, endpoint(echo) as target:
        address = await it.serve(target)
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"x")
        await reader.readexactly(1)
        pids = [worker.pid for worker in it.workers]
        await it.plane.close()
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
        assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
        with socket.socket() as free:
            free.bind(address)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [({}, 4), ({"": "max 100000"}, 4), ({"pod": "150000 100000"}, 2), ({"": "50000 100000", "pod": "max 100000"}, 1)],
)
def test_the_default_number_of_workers_follows_the_cpus(
    tmp_path: Path, limits: dict[str, str], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("4:memory:/elsewhere\n0::/pod/container\n")
    (tmp_path / "sys/fs/cgroup/pod/container").mkdir(parents=True)
    for group, text in limits.items():
        (tmp_path / "sys/fs/cgroup" / group / "cpu.max").write_text(f"{text}\n")
    assert workers_for(None, root=tmp_path) == expected
    assert workers_for(None, root=tmp_path / "nowhere") == DEFAULT_MAX
    assert (workers_for(0), workers_for(7)) == (0, 7)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3})
    assert workers_for(None, root=tmp_path) == 1


def test_an_internal_error_is_one_line_and_a_status() -> None:
    (ours, theirs), columns = socket.socketpair(), Columns(3)
    script = (
        "import sys; from kubeproxy.dataplane.workers import main as worker\n"
        "def fail(self): raise RuntimeError('two\\nlines')\n"
        "worker.Worker.live = fail\n"
        "sys.exit(worker.main(sys.argv[1:]))"
    )
    with ours, theirs:
        done = subprocess.run(
            [sys.executable, "-c", script, str(theirs.fileno()), "2", str(columns.fd), "", ""],
            pass_fds=[theirs.fileno(), columns.fd],
            capture_output=True,
            text=True,
            check=False,
        )
    columns.close()
    assert done.returncode == 70
    assert done.stderr.count("\n") == 1
    assert "internal error: RuntimeError: two lines < fail (<string>:2) < main (main.py:" in done.stderr
    assert done.stderr.startswith("kubeproxy worker 2 (pid ")
