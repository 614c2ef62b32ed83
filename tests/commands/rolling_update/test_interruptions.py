"""The process is killed after each single write, then the command is run again: the end is the same."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from kubeproxy.commands.rolling_update.options import Cleanup
from tests.commands.rolling_update.stage import Killed, Promises, Ran, Rest, Stage, controller, play
from tests.controllers.api import Json

IMAGE: dict[str, Any] = {"image": "web:2"}
BACK: dict[str, Any] = {"rollback": True}
FILE: dict[str, Any] = {"filenames": ("new.yaml",)}
CASES: dict[str, tuple[tuple[str, ...], dict[str, Any], dict[str, str]]] = {
    "image": (("web",), IMAGE, {}),
    "image-with-key": (("web",), IMAGE, {"app": "web", "deployment": "first"}),
    "named": (("web", "next"), IMAGE, {}),
    "file": (("web",), FILE, {"app": "web", "version": "1"}),
    "preserve": (("web", "next"), IMAGE | {"cleanup": "preserve"}, {}),
    "rename-file": (("web",), FILE | {"cleanup": "rename"}, {"app": "web", "version": "1"}),
}


def _options(given: dict[str, Any]) -> dict[str, Any]:
    return {key: Cleanup(value) if key == "cleanup" else value for key, value in given.items()}


async def _prepared(it: Stage, labels: dict[str, str]) -> Promises:
    it.files["new.yaml"] = controller("next", replicas=3, image="web:2", app="web", version="2")
    await it.begin("other", replicas=1, app="other")
    await it.begin("web", replicas=3, **labels)
    return Promises(it.api, least=4, most=5)


def _kept(item: Json) -> Json:
    labels = dict.fromkeys(item["spec"]["template"]["metadata"]["labels"])
    return {
        "name": item["metadata"]["name"],
        "annotations": item["metadata"].get("annotations"),
        "replicas": item["spec"]["replicas"],
        "selector": dict.fromkeys(item["spec"]["selector"]),
        "labels": labels,
        "image": item["spec"]["template"]["spec"]["containers"][0]["image"],
        "rest": item["spec"]["unknownField"],
    }


async def _outcome(it: Stage) -> Json:
    for name in it.names():
        await it.settle(name)
    await asyncio.sleep(60)
    it.unmarked()
    return {"controllers": [_kept(it.rc(name)) for name in it.names() if "-" not in name], "images": it.images()}


async def _killed(it: Stage, after: int, *names: str, **options: Any) -> bool:
    """Whether the command was killed; False: it came to its end with fewer writes."""
    rest = Rest(it.api, kill_after=after)
    try:
        ran = await it.run(*names, rest=rest, **options)
    except Killed:
        await asyncio.sleep(5)
        return True
    assert ran.status == 0, ran.err
    return False


def _whole(names: tuple[str, ...], options: dict[str, Any], labels: dict[str, str]) -> tuple[Json, list[str]]:
    """The end of an update without an interruption, and its writes."""
    found: list[Any] = []

    async def scenario(it: Stage) -> None:
        await _prepared(it, labels)
        ran = await it.run(*names, **_options(options))
        assert ran.status == 0, ran.err
        found.extend([await _outcome(it), ran.writes])

    play(scenario)
    return found[0], found[1]


@pytest.mark.parametrize("case", CASES)
def test_killed_after_each_write_and_resumed(case: str) -> None:
    names, options, labels = CASES[case]
    expected, writes = _whole(names, options, labels)
    assert len(writes) >= 9
    for after in range(1, len(writes)):

        async def scenario(it: Stage, after: int = after) -> None:
            promises = await _prepared(it, labels)
            assert await _killed(it, after, *names, **_options(options)), after
            ran = await it.run(*names, **_options(options))
            assert ran.status == 0, (after, writes[after - 1], ran.err)
            assert await _outcome(it) == expected, (after, writes[after - 1])
            assert promises.broken == [], (after, writes[after - 1])

        play(scenario)


@pytest.mark.parametrize("case", ["image", "named", "preserve", "rename-file"])
def test_killed_after_each_write_and_rolled_back(case: str) -> None:
    """Up to the deletion of the old controller everything can be undone; from then on nothing of it is touched."""
    names, options, labels = CASES[case]
    _, writes = _whole(names, options, labels)
    deletion = next((at for at, write in enumerate(writes, 1) if write == "DELETE replicationcontrollers/web"), 0)
    back: list[Json] = []
    for after in range(1, len(writes)):

        async def scenario(it: Stage, after: int = after) -> None:
            promises = await _prepared(it, labels)
            before = it.names()
            assert await _killed(it, after, *names, **_options(options))
            ran: Ran = await it.run(names[0], rollback=True)
            if deletion and after >= deletion:
                assert ran.status == 1, (after, writes[after - 1], ran.out)
                assert it.images() == ["web:1", *["web:2"] * 3]
                return
            assert ran.status == 0, (after, writes[after - 1], ran.err)
            back.append(await _outcome(it))
            assert it.names() == before
            assert it.images() == ["web:1"] * 4
            assert promises.broken == [], (after, writes[after - 1])

        play(scenario)
    assert len(back) >= 6
    assert all(each == back[0] for each in back)


def test_a_rollback_that_is_killed_after_each_write() -> None:
    """Resumed by another rollback, or turned round by the update."""
    total: list[int] = []

    async def whole(it: Stage) -> None:
        await _prepared(it, {})
        assert await _killed(it, 10, "web", **IMAGE)
        ran = await it.run("web", rollback=True)
        assert ran.status == 0
        total.append(len(ran.writes))

    play(whole)
    for forward in (False, True):
        for after in range(1, total[0]):

            async def scenario(it: Stage, after: int = after, forward: bool = forward) -> None:
                promises = await _prepared(it, {})
                assert await _killed(it, 10, "web", **IMAGE)
                assert await _killed(it, after, "web", rollback=True)
                ran = await it.run("web", **(IMAGE if forward else BACK))
                assert ran.status == 0, (after, forward, ran.err)
                await _outcome(it)
                assert it.names() == ["other", "web"]
                assert it.images() == (["web:1", *["web:2"] * 3] if forward else ["web:1"] * 4)
                assert promises.broken == [], after

            play(scenario)


def test_killed_again_and_again() -> None:
    """Two writes in each run, of which the first is the lock."""

    async def scenario(it: Stage) -> None:
        promises = await _prepared(it, {})
        runs = 0
        while await _killed(it, 2, "web", **IMAGE):
            runs += 1
            assert runs < 60
        assert runs > 6
        await _outcome(it)
        assert it.images() == ["web:1", *["web:2"] * 3]
        assert promises.broken == []

    play(scenario)


@pytest.mark.parametrize("seed", range(24))
def test_a_history_at_random(seed: int) -> None:
    """Runs forward and back that are killed anywhere, in turn, also while others run; then one that is not."""
    random = Random(seed)

    async def scenario(it: Stage) -> None:
        promises = await _prepared(it, {})
        for _ in range(random.randint(2, 7)):
            options = random.choice([IMAGE, IMAGE, BACK])
            rest = Rest(it.api, kill_after=random.randint(1, 14))
            with suppress(Killed):
                await it.run("web", rest=rest, **options)
            await asyncio.sleep(random.choice([0.0, 0.3, 5.0]))
        last = random.choice([IMAGE, BACK])
        ran = await it.run("web", **last)
        if ran.status and "rollback" in last:  # it was too late, or there was nothing to take back
            ran = await it.run("web", **IMAGE)
        assert ran.status == 0 or "must be provided when --image is the same" in ran.err, ran.err
        await _outcome(it)
        assert it.names() == ["other", "web"]
        assert it.images() in (["web:1"] * 4, ["web:1", *["web:2"] * 3])
        assert promises.broken == []

    play(scenario)
