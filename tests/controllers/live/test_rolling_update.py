"""``kubeproxy rolling-update`` as a process, against a real API server and kube-controller-manager's controllers.

Skipped unless KUBERNETES_BINARIES names the directory of the programs. Pods run on simulated kubelets.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kubeproxy.commands.rolling_update.controller import MARKS, NEXT
from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.errors import ApiError
from tests.controllers.live.control_plane import BINARIES, ControlPlane, ask, binaries
from tests.controllers.live.gate import Gate
from tests.controllers.live.node import Nodes

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(binaries() is None, reason=f"{BINARIES} is not set: no real API server to start"),
]

PROGRAM = (sys.executable, "-c", "from kubeproxy.cli.main import main; main()", "rolling-update")
CONTROLLERS = "replicationcontroller,garbagecollector"
HANG_S = 120.0
UNDRAINED = "no proxy reports open connections (kubeproxy.drainReports): pods go without draining\n"
AT_ONCE = 4
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ran:
    """What a process came to."""

    status: int | None
    out: str
    err: str


class Namespace:
    """A controller ``web`` in a namespace of its own, and the command against it."""

    def __init__(self, client: Client, gate: Gate, name: str, directory: Path) -> None:
        self._client = client
        self._directory = directory
        self.gate = gate
        self.name = name

    @property
    def _path(self) -> str:
        return f"/api/v1/namespaces/{self.name}"

    async def begin(self, *, replicas: int = 2, image: str = "web:1", **labels: str) -> None:
        """Create the namespace and the controller, and wait for its pods."""
        await ask(self._client, "POST", "/api/v1/namespaces", {"metadata": {"name": self.name}})
        await ask(
            self._client, "POST", f"{self._path}/replicationcontrollers", controller("web", replicas, image, **labels)
        )
        await self.until(lambda: self.ready("web", replicas))

    async def controllers(self) -> dict[str, Json]:
        """All controllers by name."""
        found = await ask(self._client, "GET", f"{self._path}/replicationcontrollers")
        return {item["metadata"]["name"]: item for item in found["items"]}

    async def images(self) -> list[str]:
        """The images of the pods that are not being deleted."""
        found = await ask(self._client, "GET", f"{self._path}/pods")
        pods = [pod for pod in found["items"] if "deletionTimestamp" not in pod["metadata"]]
        return sorted(pod["spec"]["containers"][0]["image"] for pod in pods)

    async def ready(self, name: str, number: int) -> bool:
        """Whether a controller has so many ready pods, and is in order."""
        found = (await self.controllers()).get(name)
        if found is None:
            return False
        status = found["status"]
        return bool(
            status["replicas"] == found["spec"]["replicas"] == number == status.get("readyReplicas", 0)
            and status.get("observedGeneration", 0) >= found["metadata"]["generation"]
        )

    async def until(self, done: Callable[[], Awaitable[object]]) -> None:
        """Wait for a condition."""
        end = asyncio.get_running_loop().time() + HANG_S
        while True:
            with suppress(ApiError):
                if await done():
                    return
            assert asyncio.get_running_loop().time() < end, f"{self.name}: never came about: {await self.controllers()}"
            await asyncio.sleep(0.2)

    async def scale(self, name: str, replicas: int) -> None:
        """As a person does it."""
        path = f"{self._path}/replicationcontrollers/{name}"
        await ask(self._client, "PATCH", path, {"spec": {"replicas": replicas}})

    async def start(
        self, *args: str, stdin: Json | None = None
    ) -> tuple[asyncio.subprocess.Process, asyncio.Task[Ran]]:
        """The process, and what it will have come to."""
        process = await asyncio.create_subprocess_exec(
            *PROGRAM,
            *args,
            *("-n", self.name, "--server", self.gate.url, "--cache-dir", str(self._directory)),
            *("--update-period=0.2s", "--poll-interval=0.3s"),
            env={**os.environ, "HOME": str(self._directory), "KUBECONFIG": ""},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

        async def ends() -> Ran:
            sent = json.dumps(stdin).encode() if stdin is not None else b""
            try:
                out, err = await asyncio.wait_for(process.communicate(sent), HANG_S)
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            return Ran(process.returncode, out.decode(), err.decode())

        return process, asyncio.create_task(ends())

    async def run(self, *args: str, stdin: Json | None = None) -> Ran:
        """Run the command to its end."""
        return await (await self.start(*args, stdin=stdin))[1]

    async def run_and_kill(self, after: int, *args: str) -> Ran:
        """Run the command until its `after`th write has taken effect; SIGKILL before it gets the answer."""
        self.gate.writes.clear()
        process, ends = await self.start(*args)
        self.gate.kill, self.gate.kill_after = process.kill, after
        ran = await ends
        self.gate.kill_after = 0
        return ran

    async def in_order(self, image: str, *, replicas: int = 2, name: str = "web") -> None:
        """One controller is left, without marks, with ready pods of this image."""
        await self.until(lambda: self.ready(name, replicas))
        found = await self.controllers()
        assert list(found) == [name]
        assert not found[name]["metadata"].get("annotations", {}).keys() & set(MARKS)
        assert await self.images() == [image] * replicas


def controller(name: str, replicas: int, image: str, **labels: str) -> Json:
    """A ReplicationController with one container; `labels`: its selector."""
    selector = labels or {"app": "web"}
    return {
        "apiVersion": "v1",
        "kind": "ReplicationController",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": selector,
            "template": {"metadata": {"labels": selector}, "spec": {"containers": [{"name": "app", "image": image}]}},
        },
    }


class Lab:
    """The running control plane. Namespaces get a relay each."""

    def __init__(self, plane: ControlPlane, client: Client, directory: Path) -> None:
        self.directory = directory
        self.plane = plane
        self.client = client

    @asynccontextmanager
    async def namespace(self, name: str) -> AsyncIterator[Namespace]:
        """One namespace."""
        async with Gate(self.plane.url, "admin") as gate:
            yield Namespace(self.client, gate, name, self.directory)


Scenario = Callable[[Lab], Awaitable[None]]


def at_once(*parts: Callable[[Lab], Coroutine[None, None, None]]) -> Scenario:
    """A scenario of several that do not disturb one another."""

    async def scenario(lab: Lab) -> None:
        async with asyncio.TaskGroup() as group:
            for part in parts:
                group.create_task(part(lab))

    return scenario


def play(directory: Path, scenario: Scenario, *, ours: bool = False) -> None:
    """A scenario with etcd, kube-apiserver, two of upstream's controllers, and kubelets.

    `ours`: ReplicationControllers are kept by `kubeproxy controller-manager` instead.
    """
    programs = binaries()
    assert programs is not None

    async def whole(plane: ControlPlane) -> None:
        client = await plane.connect()
        with ExitStack() as stack:
            stack.enter_context(plane.upstream("garbagecollector" if ours else CONTROLLERS, "--concurrent-gc-syncs=5"))
            if ours:
                stack.enter_context(plane.ours("--controllers=replicationcontroller", "--leader-elect=false"))
            nodes = asyncio.create_task(Nodes(client).run())
            try:
                await scenario(Lab(plane, client, directory))
            finally:
                nodes.cancel()
                await asyncio.gather(nodes, return_exceptions=True)
                await client.close()

    with ControlPlane(directory, programs) as plane:
        asyncio.run(whole(plane))


async def _each(number: int, one: Callable[[int], Awaitable[None]]) -> None:
    """Some at once."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def in_turn(after: int) -> None:
        async with turns:
            await one(after)

    async with asyncio.TaskGroup() as group:
        for after in range(1, number):
            group.create_task(in_turn(after))


def test_forward_and_back(tmp_path: Path) -> None:
    """An image, a file, both names, and the way back; conflicts at every second write; an invalid file."""

    async def image(lab: Lab) -> None:
        async with lab.namespace("image") as it:
            await it.begin()
            it.gate.conflict_every = 2
            ran = await it.run("web", "--image=web:2")
            assert (ran.status, ran.err) == (0, UNDRAINED), ran
            assert ran.out.endswith("replicationcontroller/web rolling updated\n")
            await it.in_order("web:2")

    async def file(lab: Lab) -> None:
        async with lab.namespace("file") as it:
            await it.begin(app="web", version="1")
            new = controller("next", 3, "web:2", app="web", version="2")
            wrong = json.loads(json.dumps(new))
            wrong["spec"]["template"]["spec"]["containers"][0]["imagePullPolicy"] = "Sometimes"
            ran = await it.run("web", "-f", "-", stdin=wrong)
            assert ran.status == 1
            assert 'The ReplicationController "next" is invalid' in ran.err
            assert it.gate.writes == []
            ran = await it.run("web", "-f", "-", stdin={**new, "extra": 1})
            assert ran.status == 1
            assert 'unknown field "extra"' in ran.err
            ran = await it.run("web", "-f", "-", stdin=new)
            assert (ran.status, ran.err) == (0, UNDRAINED), ran
            await it.in_order("web:2", replicas=3, name="next")

    async def back(lab: Lab) -> None:
        async with lab.namespace("back") as it:
            await it.begin()
            killed = await it.run_and_kill(8, "web", "next", "--image=web:2")
            assert killed.status == -signal.SIGKILL
            it.gate.conflict_every = 2
            ran = await it.run("web", "next", "--rollback")
            assert (ran.status, ran.err) == (0, UNDRAINED), ran
            await it.in_order("web:1")

    play(tmp_path, at_once(image, file, back))


def test_killed_after_each_write(tmp_path: Path) -> None:
    """SIGKILL after every single write; then the same command, or the way back: the end is the same."""

    async def scenario(lab: Lab) -> None:
        async with lab.namespace("whole") as it:
            await it.begin()
            ran = await it.run("web", "--image=web:2")
            assert ran.status == 0, ran
            writes = [write.partition("/namespaces/whole/")[2].partition("/")[0] for write in it.gate.writes]
            deletion = next(at for at, write in enumerate(it.gate.writes, 1) if write.startswith("DELETE"))
        assert len(writes) >= 12

        async def resumed(after: int) -> None:
            async with lab.namespace(f"resumed-{after}") as it:
                await it.begin()
                killed = await it.run_and_kill(after, "web", "--image=web:2")
                assert killed.status == -signal.SIGKILL, (after, killed)
                ran = await it.run("web", "--image=web:2")
                assert ran.status == 0, (after, ran)
                await it.in_order("web:2")

        async def taken_back(after: int) -> None:
            async with lab.namespace(f"back-{after}") as it:
                await it.begin()
                killed = await it.run_and_kill(after, "web", "--image=web:2")
                assert killed.status == -signal.SIGKILL, (after, killed)
                ran = await it.run("web", "--rollback")
                if after >= deletion:
                    assert ran.status == 1
                    assert "it is deleted already" in ran.err
                    assert await it.images() == ["web:2"] * 2
                    return
                assert ran.status == 0, (after, ran)
                await it.in_order("web:1")

        await _each(len(writes), resumed)
        await _each(len(writes), taken_back)

    play(tmp_path, scenario)


def test_the_server_is_restarted_in_the_middle(tmp_path: Path) -> None:
    async def scenario(lab: Lab) -> None:
        async with lab.namespace("restart") as it:
            await it.begin(replicas=4)
            _, ends = await it.start("web", "--image=web:2")

            async def under_way() -> bool:
                return bool((await it.controllers())["web"]["spec"]["replicas"] in (2, 3))

            await it.until(under_way)
            lab.plane.stop("kube-apiserver", signal.SIGKILL)
            lab.plane.start_server()
            ran = await ends
            assert ran.status == 0, ran
            await it.in_order("web:2", replicas=4)

    play(tmp_path, scenario)


def test_pods_that_never_become_ready(tmp_path: Path) -> None:
    """It stops with the reason and the commands; nothing is lost; each of the commands works."""

    async def scenario(lab: Lab) -> None:
        async with lab.namespace("broken") as it:
            await it.begin()
            ran = await it.run("web", "--image=broken:2", "--timeout=4s")
            assert ran.status == 1
            assert "timed out waiting for any update progress to be made; it waits for pod web-" in ran.err
            name = (await it.controllers())["web"]["metadata"]["annotations"][NEXT]
            assert "to go on:   kubeproxy rolling-update web --image=broken:2 -n broken --server=" in ran.err
            assert f"to go back: kubeproxy rolling-update web {name} --rollback -n broken --server=" in ran.err
            assert await it.images() == ["broken:2", "web:1", "web:1"]
            back = await it.run("web", name, "--rollback")
            assert back.status == 0, back
            await it.in_order("web:1")

    play(tmp_path, scenario)


def test_other_clients(tmp_path: Path) -> None:
    """Two updates at once, a run that takes over, controllers that are scaled or deleted by hand."""

    async def together(lab: Lab) -> None:
        async with lab.namespace("together") as it:
            await it.begin()
            both = await asyncio.gather(it.run("web", "--image=web:2"), it.run("web", "--image=web:2"))
            lost = [ran for ran in both if ran.status]
            assert [ran.status for ran in lost] in ([1], []), both  # one may have begun when the other was complete
            assert all("another rolling update of web" in ran.err or "must be provided" in ran.err for ran in lost)
            await it.in_order("web:2")

    async def scaled(lab: Lab) -> None:
        async with lab.namespace("scaled") as it:
            await it.begin(replicas=4)
            _, ends = await it.start("web", "--image=web:2")

            async def under_way() -> bool:
                return bool((await it.controllers())["web"]["spec"]["replicas"] == 2)

            await it.until(under_way)
            await it.scale("web", 5)
            ran = await ends
            assert ran.status == 0, ran
            await it.in_order("web:2", replicas=4)

    async def interrupted(lab: Lab) -> None:
        async with lab.namespace("interrupted") as it:
            await it.begin(replicas=3)
            process, ends = await it.start("web", "--image=web:2", "--update-period=60s")

            async def under_way() -> bool:
                return len(await it.images()) == 4

            await it.until(under_way)
            process.send_signal(signal.SIGINT)
            ran = await ends
            assert ran.status == 130
            assert "interrupted\n" in ran.err
            assert "to go on:   kubeproxy rolling-update web --image=web:2 -n interrupted --server=" in ran.err
            ran = await it.run("web", "--image=web:2")
            assert ran.status == 0, ran
            await it.in_order("web:2", replicas=3)

    play(tmp_path, at_once(together, scaled, interrupted))


def test_files_that_are_no_controller(tmp_path: Path) -> None:
    """Each is refused with its reason, and nothing is written, also without validation."""

    async def scenario(lab: Lab) -> None:
        async with lab.namespace("files") as it:
            await it.begin(app="web", version="1")
            good = controller("next", 3, "web:2", app="web", version="2")
            wrong: list[tuple[Json, str]] = [
                ({"apiVersion": "v1", "kind": "List", "items": [good, good]}, "- specifies multiple items"),
                ({"apiVersion": "v1", "kind": "List", "items": []}, "please make sure - exists and is not empty"),
                ({**good, "kind": "Pod"}, "- contains a /v1, Kind=Pod not a ReplicationController"),
                ({**good, "spec": None}, "- is no ReplicationController: Expected `object`, got `null` - at `$.spec`"),
                ({**good, "spec": {**good["spec"], "replicas": "many"}}, "Expected `int | null`, got `str`"),
                ({**good, "spec": {**good["spec"], "selector": ["a"]}}, "at `$.spec.selector`"),
                ({**good, "metadata": {}}, "needs a name of its own"),
                (controller("next", 0, "web:2", app="web", version="2"), "required: > 0 replicas, actual: 0"),
            ]
            for body, reason in wrong:
                ran = await it.run("web", "-f", "-", "--validate=false", stdin=body)
                assert (ran.status, ran.out) == (1, ""), (body, ran)
                assert reason in ran.err, (reason, ran.err)
                assert "Traceback" not in ran.err
            assert it.gate.writes == []

    play(tmp_path, scenario)


def test_with_our_own_controllers(tmp_path: Path) -> None:
    async def scenario(lab: Lab) -> None:
        async with lab.namespace("ours") as it:
            await it.begin(replicas=3)
            ran = await it.run("web", "--image=web:2", "--max-surge=0", "--max-unavailable=1")
            assert ran.status == 0, ran
            await it.in_order("web:2", replicas=3)
            killed = await it.run_and_kill(6, "web", "--image=web:3")
            assert killed.status == -signal.SIGKILL, killed
            ran = await it.run("web", "--rollback")
            assert ran.status == 0, ran
            await it.in_order("web:2", replicas=3)

    play(tmp_path, scenario, ours=True)
