"""Conflicts, lost answers, a server that is away, pods that never become ready, other clients."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from random import Random

import pytest

from kubeproxy.commands.rolling_update.controller import HOLDER, NEXT
from kubeproxy.kubernetes.api_types import Status
from kubeproxy.kubernetes.client.errors import StatusError, UnreachableError
from tests.commands.rolling_update.stage import RESOURCE, Killed, Promises, Rest, Stage, controller, play, refused
from tests.controllers.api import _error

Fault = Callable[[str, str], Exception | None]


def _conflict() -> StatusError:
    return refused(Status(reason="Conflict", message="the object has been modified"), 409)


def _every(number: int, error: Callable[[], Exception], *, reads: bool = False) -> Fault:
    count = itertools.count(1)

    def fault(method: str, path: str) -> Exception | None:
        if method == "GET" and not reads:
            return None
        return error() if next(count) % number == 0 else None

    return fault


def _cut() -> UnreachableError:
    return UnreachableError("the connection was reset", cause="reset")


def _down() -> UnreachableError:
    return UnreachableError("connection refused", cause="refused")


FAULTS: dict[str, tuple[str, Callable[[], Fault]]] = {
    "conflicts": ("fault", lambda: _every(2, _conflict)),
    "lost answers": ("lose", lambda: _every(2, _cut)),
    "cut before": ("fault", lambda: _every(3, _cut, reads=True)),
    "server errors": ("fault", lambda: _every(3, lambda: refused(Status(reason="InternalError"), 500), reads=True)),
    "overload": ("fault", lambda: _every(4, lambda: refused(Status(reason="TooManyRequests"), 429), reads=True)),
}


@pytest.mark.parametrize("rollback", [False, True])
@pytest.mark.parametrize("kind", FAULTS)
def test_every_second_write_fails(kind: str, rollback: bool) -> None:
    where, made = FAULTS[kind]

    async def scenario(it: Stage) -> None:
        await it.begin(replicas=4)
        promises = Promises(it.api, least=4, most=5)
        if rollback:
            with pytest.raises(Killed):
                await it.run("web", image="web:2", rest=Rest(it.api, kill_after=10))
        rest = Rest(it.api)
        setattr(rest, where, made())
        ran = await it.run(
            "web",
            rest=rest,
            **({"rollback": True} if rollback else {"image": "web:2"}),
        )
        assert ran.status == 0, ran.err
        await it.settle("web")
        assert (it.names(), it.images()) == (["web"], ["web:1" if rollback else "web:2"] * 4)
        assert promises.broken == []
        it.unmarked()

    play(scenario)


@pytest.mark.parametrize("seed", range(12))
def test_faults_at_random(seed: int) -> None:
    random = Random(seed)

    def fault(method: str, path: str) -> Exception | None:
        return random.choice([_conflict, _cut, _down])() if method != "GET" and random.random() < 0.3 else None

    async def scenario(it: Stage) -> None:
        await it.begin(replicas=5)
        promises = Promises(it.api, least=5, most=7)
        lose = _every(random.randint(2, 5), _cut)
        ran = await it.run("web", image="web:2", max_surge=2, rest=Rest(it.api, fault=fault, lose=lose))
        assert ran.status == 0, ran.err
        await it.settle("web")
        assert it.images() == ["web:2"] * 5
        assert promises.broken == []

    play(scenario)


@pytest.mark.parametrize("away_s", [5.0, 40.0])
def test_the_server_is_away_in_the_middle(away_s: float) -> None:
    """And refuses everything for some seconds after its return, as its rules are not loaded yet."""

    async def scenario(it: Stage) -> None:
        await it.begin(replicas=3)
        loop = asyncio.get_running_loop()
        down_at = loop.time() + 4.0

        def fault(method: str, path: str) -> Exception | None:
            if down_at < loop.time() < down_at + away_s:
                return _down()
            if down_at < loop.time() < down_at + away_s + 5:
                return refused(Status(reason="Forbidden", message="forbidden"), 403)
            return None

        ran = await it.run("web", image="web:2", rest=Rest(it.api, fault=fault))
        assert ran.status == 0, ran.err
        if away_s > 30:
            assert "waits for the API server: connection refused" in ran.err
        await it.settle("web")
        assert it.images() == ["web:2"] * 3

    play(scenario)


def test_the_server_is_away_for_too_long() -> None:
    async def scenario(it: Stage) -> None:
        await it.begin(replicas=2)
        down_at = asyncio.get_running_loop().time() + 2.0
        away = Rest(it.api, fault=lambda method, path: _down() if asyncio.get_running_loop().time() > down_at else None)
        ran = await it.run("web", image="web:2", rest=away)
        assert ran.status == 1
        assert "The connection to the server test was refused" in ran.err
        assert "to go on:   kubeproxy rolling-update web --image=web:2\n" in ran.err
        assert (await it.run("web", image="web:2")).status == 0

    play(scenario)


def test_a_server_that_never_answers_is_not_waited_for() -> None:
    async def scenario(it: Stage) -> None:
        began = asyncio.get_running_loop().time()
        ran = await it.run("web", image="web:2", rest=Rest(it.api, fault=lambda method, path: _down()))
        assert ran.status == 1
        assert ran.err.count("\n") == 1
        assert asyncio.get_running_loop().time() - began < 1

    play(scenario)


def test_forbidden_and_invalid_end_the_command_before_anything_is_written() -> None:
    async def scenario(it: Stage) -> None:
        await it.begin(replicas=2)
        for code, reason in ((403, "Forbidden"), (422, "Invalid")):
            error = refused(Status(reason=reason, message="not allowed"), code)
            rest = Rest(it.api, fault=lambda method, path, error=error: error if method == "POST" else None)  # type: ignore[misc]
            version = it.api.version
            ran = await it.run("web", image="web:2", rest=rest)
            assert (ran.status, ran.writes) == (1, [])
            assert "to go on" not in ran.err
            assert it.api.version == version

    play(scenario)


def test_pods_that_never_become_ready() -> None:
    """The update stops and says why; nothing is lost; when the image is mended the same command goes on."""

    async def scenario(it: Stage) -> None:
        await it.begin(replicas=3)
        promises = Promises(it.api, least=3, most=4)
        it.cluster.kubelet.is_broken = lambda pod: pod["spec"]["containers"][0]["image"] == "web:2"
        ran = await it.run("web", image="web:2")
        assert ran.status == 1
        name = it.rc("web")["metadata"]["annotations"][NEXT]
        assert "error: timed out waiting for any update progress to be made; it waits for pod web-" in ran.err
        assert f"state: web has 3 of 3 pods ready; {name} has 0 of 1 pods ready; the pods keep serving\n" in ran.err
        assert "to go on:   kubeproxy rolling-update web --image=web:2\n" in ran.err
        assert f"to go back: kubeproxy rolling-update web {name} --rollback\n" in ran.err
        it.cluster.kubelet.is_broken = lambda pod: False
        for pod in it.pods():
            it.cluster.kubelet.set_ready(pod["metadata"]["name"], True)
        ran = await it.run("web", image="web:2")
        assert ran.status == 0, ran.err
        await it.settle("web")
        assert it.images() == ["web:2"] * 3
        assert promises.broken == []

    play(scenario)


def test_pods_that_never_become_ready_and_back() -> None:
    async def scenario(it: Stage) -> None:
        await it.begin(replicas=1)
        it.cluster.kubelet.is_broken = lambda pod: pod["spec"]["containers"][0]["image"] == "web:2"
        assert (await it.run("web", image="web:2")).status == 1
        ran = await it.run("web", rollback=True)
        assert ran.status == 0, ran.err
        assert it.images() == ["web:1"]
        it.unmarked()

    play(scenario)


def test_some_become_ready_and_one_does_not() -> None:
    """Progress puts the deadline off; the old pods that are still needed stay."""

    async def scenario(it: Stage) -> None:
        await it.begin(replicas=4)
        promises = Promises(it.api, least=4, most=5)
        seen: list[str] = []

        def is_broken(pod: object) -> bool:
            assert isinstance(pod, dict)
            if pod["spec"]["containers"][0]["image"] == "web:1":
                return False
            seen.append(pod["metadata"]["name"])
            return len(seen) == 3

        it.cluster.kubelet.is_broken = is_broken
        ran = await it.run("web", image="web:2")
        assert ran.status == 1
        assert it.images() == ["web:1"] * 2 + ["web:2"] * 3
        assert promises.broken == []

    play(scenario)


def test_pods_that_cannot_be_created() -> None:
    async def scenario(it: Stage) -> None:
        await it.begin(replicas=2)
        quota = refused(Status(reason="Forbidden", message="exceeded quota: pods"), 403)
        it.api.refuse = lambda verb, resource, body: (
            _error(403, "Forbidden", "exceeded quota: pods") if (verb, resource) == ("create", "pods") else None
        )
        ran = await it.run("web", image="web:2")
        assert ran.status == 1
        assert 'timed out waiting for "web-' in ran.err
        assert "to be synced: it has 0 of 1 pods: " in ran.err
        assert str(quota) in ran.err
        assert it.images() == ["web:1"] * 2

    play(scenario)


async def _later(seconds: float, action: Callable[[], object]) -> None:
    await asyncio.sleep(seconds)
    action()


@pytest.mark.parametrize("which", ["old", "new"])
def test_a_controller_is_deleted_meanwhile(which: str) -> None:
    async def scenario(it: Stage) -> None:
        await it.begin(replicas=3)
        promises = Promises(it.api, least=0, most=4)

        def delete() -> None:
            name = "web" if which == "old" else it.rc("web")["metadata"]["annotations"][NEXT]
            item = it.rc(name)
            it.api.end("default", name, {"propagationPolicy": "Background", "preconditions": {}})
            assert item

        deleting = asyncio.create_task(_later(4.5, delete))
        ran = await it.run("web", image="web:2")
        await deleting
        assert ran.status == 1
        assert "was deleted by another client while it was updated" in ran.err
        assert "to go on:   kubeproxy rolling-update web --image=web:2\n" in ran.err
        await asyncio.sleep(10)
        ran = await it.run("web", image="web:2")
        assert ran.status == 0, ran.err
        await it.settle("web")
        assert (it.names(), it.images()) == (["web"], ["web:2"] * 3)
        assert promises.broken == []
        it.unmarked()

    play(scenario)


def test_the_new_controller_is_deleted_and_the_update_rolled_back() -> None:
    """The old controller gets its pods again, though its partner is gone."""

    async def scenario(it: Stage) -> None:
        await it.begin(replicas=3)
        with pytest.raises(Killed):
            await it.run("web", image="web:2", rest=Rest(it.api, kill_after=10))
        await asyncio.sleep(10)
        assert it.rc("web")["spec"]["replicas"] == 1
        name = it.rc("web")["metadata"]["annotations"][NEXT]
        it.api.end("default", name, {"propagationPolicy": "Background", "preconditions": {}})
        ran = await it.run("web", rollback=True)
        assert ran.status == 0, ran.err
        await it.settle("web")
        assert it.images() == ["web:1"] * 3
        it.unmarked()

    play(scenario)


@pytest.mark.parametrize(("which", "size"), [("old", 6), ("old", 0), ("new", 9), ("new", 0)])
def test_scaled_by_hand_meanwhile(which: str, size: int) -> None:
    """The update goes on from there, to the size that it was begun with."""

    async def scenario(it: Stage) -> None:
        await it.begin(replicas=4)

        def scale() -> None:
            name = "web" if which == "old" else it.rc("web")["metadata"]["annotations"][NEXT]
            it.api.patch(RESOURCE, "default", name, {"spec": {"replicas": size}})

        scaling = asyncio.create_task(_later(6.2, scale))
        ran = await it.run("web", image="web:2")
        await scaling
        assert ran.status == 0, ran.err
        await it.settle("web")
        assert it.images() == ["web:2"] * 4

    play(scenario)


def test_two_updates_that_begin_together() -> None:
    """One of them is refused by the resourceVersion, and has changed nothing."""

    async def scenario(it: Stage) -> None:
        await it.begin(replicas=3)
        promises = Promises(it.api, least=3, most=4)
        both = await asyncio.gather(it.run("web", image="web:2"), it.run("web", image="web:3"))
        lost, won = sorted(both, key=lambda ran: -ran.status)
        assert (won.status, lost.status, lost.writes) == (0, 1, [])
        assert "another rolling update of web (" in lost.err
        assert "began at the same time; this one stops before it changed anything" in lost.err
        await it.settle("web")
        assert len(set(it.images())) == 1
        assert promises.broken == []
        it.unmarked()

    play(scenario)


@pytest.mark.parametrize("rollback", [False, True])
def test_a_later_run_takes_over_and_the_earlier_one_stops(rollback: bool) -> None:
    async def scenario(it: Stage) -> None:
        await it.begin(replicas=4)
        promises = Promises(it.api, least=4, most=5)
        first = asyncio.create_task(it.run("web", image="web:2"))
        await asyncio.sleep(6)
        assert HOLDER in it.rc("web")["metadata"]["annotations"]
        options = {"rollback": True} if rollback else {"image": "web:2"}
        second = await it.run("web", **options)
        stopped = await first
        assert second.status == 0, second.err
        assert stopped.status == 1
        assert "has taken over; this one stops and changes nothing further" in stopped.err
        await it.settle("web")
        assert it.images() == ["web:1" if rollback else "web:2"] * 4
        assert promises.broken == []
        it.unmarked()

    play(scenario)


def test_another_client_takes_the_name_before_the_rename() -> None:
    async def scenario(it: Stage) -> None:
        await it.begin(replicas=2)

        def fault(method: str, path: str) -> None:
            if method == "POST" and "web" not in it.names():
                it.api.create(RESOURCE, "default", controller("web", replicas=1, app="foreign"))

        ran = await it.run("web", image="web:2", rest=Rest(it.api, fault=fault))
        assert ran.status == 1
        assert "cannot be renamed: another client has created web" in ran.err
        await asyncio.sleep(30)
        assert it.images() == ["web:1", "web:2", "web:2"]
        it.api.end("default", "web", {"preconditions": {}})
        ran = await it.run("web", image="web:2")
        assert ran.status == 0, ran.err
        assert it.names() == ["web"]

    play(scenario)


def test_no_garbage_collector() -> None:
    """The rename cannot end; every pod keeps serving, and the same command completes it later."""

    async def scenario(it: Stage) -> None:
        await it.begin(replicas=2)
        it.api.collector_s = float("inf")
        ran = await it.run("web", image="web:2")
        assert ran.status == 1
        assert "to be gone: its finalizers are orphan. Does the garbage collector" in ran.err
        assert "it cannot be undone any more" in ran.err
        assert it.images() == ["web:2"] * 2
        it.api.collector_s = 0.1
        (left,) = [name for name in it.names() if name != "web"]
        it.api._later(it.api._release, it.rc(left))
        ran = await it.run("web", image="web:2")
        assert ran.status == 0, ran.err
        await asyncio.sleep(30)
        assert (it.names(), it.images()) == (["web"], ["web:2"] * 2)
        it.unmarked()

    play(scenario)


def test_pods_may_not_be_read() -> None:
    async def scenario(it: Stage) -> None:
        await it.begin(replicas=2)
        error = refused(Status(reason="Forbidden", message="pods is forbidden"), 403)
        rest = Rest(it.api, fault=lambda method, path: error if path.endswith("/pods") else None)
        ran = await it.run("web", image="web:2", rest=rest)
        assert (ran.status, ran.err, ran.writes) == (1, "Error from server (Forbidden): pods is forbidden\n", [])

    play(scenario)


def test_no_controller_manager() -> None:
    async def scenario(it: Stage) -> None:
        await it.begin(replicas=2)
        rest = Rest(it.api)
        it.api.refuse = lambda verb, resource, body: _down() if resource == RESOURCE and "status" in body else None
        ran = await it.run("web", image="web:2", rest=rest)
        assert ran.status == 1
        assert "the controller manager has not acted on it: does it run?" in ran.err
        it.api.refuse = lambda verb, resource, body: None
        assert (await it.run("web", image="web:2")).status == 0

    play(scenario)
