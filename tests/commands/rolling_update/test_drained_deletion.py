"""Old pods are drained before they are deleted: which ones, how long, and what the progress shows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from kubeproxy.commands.rolling_update import drained_deletion
from kubeproxy.commands.rolling_update.drained_deletion import DELETION_COST, FIRST_TO_GO
from kubeproxy.controllers.api_types import Pod
from kubeproxy.controllers.proxy_requests.reports import PodDrain
from kubeproxy.kubernetes.client.errors import UnreachableError
from tests.commands.rolling_update.stage import Killed, Promises, Rest, Stage, play
from tests.controllers.api import Write


@dataclass(slots=True)
class Proxies:
    """Two nodes; the open connections of pods are a table, which the test changes."""

    open: dict[str, int] = field(default_factory=dict)
    nodes: tuple[str, ...] = ("node-a", "node-b")
    behind: frozenset[str] = frozenset()
    drains: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    broken: bool = False
    ended: bool = False

    async def proxies(self) -> Sequence[str]:
        if self.broken:
            raise UnreachableError("the connection was reset", cause="reset")
        return self.nodes

    async def connections(self, pods: Sequence[Pod]) -> Mapping[str, int]:
        return {pod.metadata.name: self.open.get(pod.metadata.name, 0) for pod in pods}

    async def start(self, pods: Sequence[Pod]) -> None:
        self.drains |= {pod.metadata.name for pod in pods}
        self.asked += [pod.metadata.name for pod in pods]

    async def wait(
        self, pods: Sequence[Pod], timeout_s: float, on_change: Callable[[Mapping[str, PodDrain]], None] | None = None
    ) -> Mapping[str, PodDrain]:
        end = asyncio.get_running_loop().time() + timeout_s
        while True:
            states = {pod.metadata.name: PodDrain(self.behind, self.open.get(pod.metadata.name, 0)) for pod in pods}
            if on_change is not None:
                on_change(dict(states))
            done = not any(state.waiting or state.connections for state in states.values())
            if done or asyncio.get_running_loop().time() >= end:
                return dict(states)
            await asyncio.sleep(0.5)

    async def withdraw(self, pods: Sequence[Pod]) -> None:
        self.drains -= {pod.metadata.name for pod in pods}

    async def clean_up(self, timeout_s: float = 0.0) -> None:
        self.ended = True


def _forget_costs(it: Stage, write: Write) -> None:
    """As with a controller that has never heard of them."""
    if write.resource == "pods" and write.new and DELETION_COST in write.new["metadata"].get("annotations", {}):
        name = write.new["metadata"]["name"]
        it.api.patch("pods", "default", name, {"metadata": {"annotations": {DELETION_COST: None}}})


def _names(it: Stage) -> list[str]:
    return sorted(pod["metadata"]["name"] for pod in it.pods())


@pytest.mark.parametrize("minor", [20, 36])
def test_the_pods_with_the_fewest_connections_go_first(minor: int) -> None:
    """Also where the controller does not regard the cost: no other old pod is deleted."""

    async def scenario(it: Stage) -> None:
        await it.begin(replicas=3)
        promises = Promises(it.api, least=3, most=4)
        first, second, third = _names(it)
        if minor < 22:
            it.api.observers.append(lambda write: _forget_costs(it, write))
        proxies = Proxies({first: 5, second: 0, third: 2})
        gone: list[str] = []

        def watch(_: object) -> None:
            left = _names(it)
            gone.extend(name for name in (first, second, third) if name not in left and name not in gone)

        it.api.observers.append(watch)
        ran = await it.run("web", image="web:2", proxies=proxies, drain_timeout_s=20.0, minor=minor)
        assert ran.status == 0, ran.err
        assert proxies.asked == gone == [second, third, first]
        assert f"Draining {second}\nScaling web down to 2\n" in ran.out
        assert f"{third}: 2 connections are still open after 20 s (--drain-timeout)" in ran.err
        assert proxies.ended
        assert promises.broken == []

    play(scenario)


def test_a_pod_goes_as_soon_as_its_connections_have_ended() -> None:
    async def scenario(it: Stage) -> None:
        await it.begin(replicas=1)
        (name,) = _names(it)
        proxies = Proxies({name: 3})
        loop = asyncio.get_running_loop()
        loop.call_later(60, proxies.open.clear)
        ran = await it.run("web", image="web:2", proxies=proxies, drain_timeout_s=1000.0)
        assert ran.status == 0, ran.err
        assert "waits for 3 open connections of pods that are drained to end" in ran.err
        assert "Warning" not in ran.err
        assert 60 < loop.time() < 200

    play(scenario)


def test_a_node_that_does_not_follow_is_named() -> None:
    async def scenario(it: Stage) -> None:
        await it.begin(replicas=1)
        proxies = Proxies(behind=frozenset({"node-b"}))
        ran = await it.run("web", image="web:2", proxies=proxies, drain_timeout_s=30.0)
        assert ran.status == 0, ran.err
        assert "waits for the proxy of node node-b to stop sending new connections" in ran.err
        assert "1 of 2 nodes have not followed within 30 s (--drain-timeout): node-b" in ran.err

    play(scenario)


@pytest.mark.parametrize("broken", [False, True])
def test_without_reports_it_behaves_as_kubectl_and_notes_it_once(broken: bool) -> None:
    async def scenario(it: Stage) -> None:
        await it.begin(replicas=3)
        ran = await it.run("web", image="web:2", proxies=Proxies(nodes=(), broken=broken))
        assert ran.status == 0
        assert "Draining" not in ran.out
        text = "the proxies cannot be asked to drain pods" if broken else "no proxy reports open connections"
        assert ran.err.count(text) == ran.err.count("\n") == 1
        assert it.images() == ["web:2"] * 3

    play(scenario)


def test_pods_that_are_not_ready_go_first_and_need_no_count() -> None:
    async def scenario(it: Stage) -> None:
        await it.begin(replicas=3)
        names = _names(it)
        it.cluster.kubelet.set_ready(names[1], False)
        proxies = Proxies({names[1]: 1, names[2]: 9})
        ran = await it.run("web", image="web:2", proxies=proxies, drain_timeout_s=5.0)
        assert ran.status == 0, ran.err
        assert proxies.asked == [names[1], names[0], names[2]]

    play(scenario)


def test_a_step_that_is_no_longer_allowed_puts_the_pods_back() -> None:
    """A new pod becomes unready while an old one is drained."""

    async def scenario(it: Stage) -> None:
        await it.begin(replicas=2)
        promises = Promises(it.api, least=1, most=3)
        proxies = Proxies(dict.fromkeys(_names(it), 1))
        loop = asyncio.get_running_loop()

        def flap(ready: bool) -> None:
            for pod in it.pods():
                if pod["spec"]["containers"][0]["image"] == "web:2":
                    it.cluster.kubelet.set_ready(pod["metadata"]["name"], ready)

        loop.call_later(8, flap, False)
        loop.call_later(30, flap, True)
        loop.call_later(30, proxies.open.clear)
        ran = await it.run("web", image="web:2", proxies=proxies, drain_timeout_s=12.0)
        assert ran.status == 0, ran.err
        assert len(proxies.asked) > 2  # one was put back, and drained again
        assert promises.broken == []
        assert it.images() == ["web:2"] * 2

    play(scenario)


def test_a_run_that_is_killed_while_it_drains_leaves_nothing_that_the_next_one_does_not_undo() -> None:
    async def scenario(it: Stage) -> None:
        await it.begin(replicas=2)
        proxies = Proxies()
        rest = Rest(it.api)
        rest.lose = lambda method, path: (
            rest.stop() if method == "PATCH" and "pods/" in path and proxies.drains else None
        )
        with pytest.raises(Killed):
            await it.run("web", image="web:2", proxies=proxies, rest=rest)
        (marked,) = [pod for pod in it.pods() if DELETION_COST in pod["metadata"].get("annotations", {})]
        assert marked["metadata"]["annotations"][DELETION_COST] == FIRST_TO_GO
        assert proxies.drains
        await asyncio.sleep(10)
        ran = await it.run("web", rollback=True, proxies=proxies)
        assert ran.status == 0, ran.err
        assert marked["metadata"]["name"] not in proxies.drains
        assert it.images() == ["web:1"] * 2
        assert all(DELETION_COST not in pod["metadata"].get("annotations", {}) for pod in it.pods())

    play(scenario)


def test_very_many_pods_go_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drained_deletion, "MOST_AT_ONCE", 2)

    async def scenario(it: Stage) -> None:
        await it.begin(replicas=5)
        proxies = Proxies()
        ran = await it.run("web", image="web:2", proxies=proxies, max_surge="100%")
        assert ran.status == 0, ran.err
        sizes = [line.rpartition(" ")[2] for line in ran.lines if line.startswith("Scaling web down")]
        assert sizes == ["3", "1", "0"]
        assert it.images() == ["web:2"] * 5

    play(scenario)
