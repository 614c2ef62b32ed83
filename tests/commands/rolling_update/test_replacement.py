"""Whole updates in memory and virtual time: output, writes, marks, pods."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from kubeproxy.commands.rolling_update.controller import DESIRED_REPLICAS, NEXT, ORIGINAL_REPLICAS, SOURCE
from kubeproxy.commands.rolling_update.options import Cleanup
from tests.commands.rolling_update.stage import RESOURCE, Killed, Promises, Rest, Stage, controller, play


def _name(out: str) -> str:
    match = re.search(r"Created (\S+)", out)
    assert match is not None
    return match[1]


def test_another_image() -> None:
    async def scenario(it: Stage) -> None:
        await it.begin(replicas=3)
        promises = Promises(it.api, least=3, most=4)
        ran = await it.run("web", image="web:2")
        assert (ran.status, ran.err) == (0, "")
        name = _name(ran.out)
        assert re.fullmatch(r"web-[0-9a-f]{32}", name)
        assert ran.lines == [
            f"Created {name}",
            f"Scaling up {name} from 0 to 3, scaling down web from 3 to 0 (keep 3 pods available, don't exceed 4 pods)",
            f"Scaling {name} up to 1",
            "Scaling web down to 2",
            f"Scaling {name} up to 2",
            "Scaling web down to 1",
            f"Scaling {name} up to 3",
            "Scaling web down to 0",
            "Update succeeded. Deleting old controller: web",
            f"Renaming {name} to web",
            "replicationcontroller/web rolling updated",
        ]
        await it.settle("web")
        assert it.names() == ["web"]
        assert it.images() == ["web:2"] * 3
        assert promises.broken == []
        it.unmarked()
        survivor = it.rc("web")
        assert survivor["metadata"]["annotations"] == {"team": "a"}
        assert survivor["spec"]["unknownField"] == {"kept": 1}
        assert survivor["spec"]["selector"].keys() == {"app", "deployment"}

    play(scenario)


def test_the_order_of_the_labels_makes_no_pod() -> None:
    """Template, pods, selector: no pod is made, lost or released while the old controller gets its key."""

    async def scenario(it: Stage) -> None:
        await it.begin(replicas=3)
        before = {pod["metadata"]["uid"] for pod in it.pods()}
        rest = Rest(it.api, kill_after=6)  # the mark, three pods, the selector, the new controller
        with pytest.raises(Killed):
            await it.run("web", image="web:2", rest=rest)
        assert rest.writes[0] == rest.writes[4] == f"PUT {RESOURCE}/web"
        assert [write.partition("/")[0] for write in rest.writes[1:4]] == ["PATCH pods"] * 3
        assert rest.writes[5] == f"POST {RESOURCE}"
        await asyncio.sleep(30)
        after = it.pods()
        assert {pod["metadata"]["uid"] for pod in after} == before
        value = it.rc("web")["spec"]["selector"]["deployment"]
        assert value.endswith("-orig")
        assert all(pod["metadata"]["labels"] == {"app": "web", "deployment": value} for pod in after)
        assert all(pod["metadata"]["ownerReferences"] for pod in after)

    play(scenario)


def test_a_stray_pod_is_deleted_and_a_pod_made_by_hand_is_not() -> None:
    async def scenario(it: Stage) -> None:
        await it.begin(replicas=2)

        def fault(method: str, path: str) -> None:
            if not made and path.endswith("/pods") and "deployment" in it.rc("web")["spec"]["selector"]:
                made.extend(("web-stray", "by-hand"))
                for name in made:
                    pod = {"metadata": {"name": name, "labels": {"app": "web"}}, "spec": {}}
                    it.api.create("pods", "default", pod)

        made: list[str] = []
        ran = await it.run("web", image="web:2", rest=Rest(it.api, fault=fault), update_period_s=5.0)
        assert ran.status == 0, ran.err
        names = {pod["metadata"]["name"] for pod in it.api.all("pods")}
        assert "web-stray" not in names
        assert "by-hand" in names

    play(scenario)


def test_a_file() -> None:
    async def scenario(it: Stage) -> None:
        await it.begin("web", replicas=2, app="web", version="1")
        it.files["new.yaml"] = controller("next", replicas=4, image="web:2", app="web", version="2")
        ran = await it.run("web", filenames=("new.yaml",))
        assert ran.status == 0, ran.err
        assert ran.lines[:2] == [
            "Created next",
            "Scaling up next from 0 to 4, scaling down web from 2 to 0 (keep 4 pods available, don't exceed 5 pods)",
        ]
        assert ran.lines[-2:] == [
            "Update succeeded. Deleting web",
            'replicationcontroller/next rolling updated to "next"',
        ]
        await it.settle("next")
        assert (it.names(), it.images()) == (["next"], ["web:2"] * 4)
        it.unmarked()

    play(scenario)


def test_a_file_without_a_size_keeps_that_of_the_old_controller() -> None:
    async def scenario(it: Stage) -> None:
        await it.begin("web", replicas=2, app="web", version="1")
        it.files["new.yaml"] = controller("next", image="web:2", app="web", version="2")
        del it.files["new.yaml"]["spec"]["replicas"]
        ran = await it.run("web", filenames=("new.yaml",))
        assert ran.status == 0, ran.err
        assert it.rc("next")["spec"]["replicas"] == 2

    play(scenario)


@pytest.mark.parametrize("policy", Cleanup)
def test_cleanup_policies(policy: Cleanup) -> None:
    async def scenario(it: Stage) -> None:
        await it.begin(replicas=2)
        ran = await it.run("web", "next", image="web:2", cleanup=policy)
        assert ran.status == 0, ran.err
        expected = {Cleanup.DELETE: ["next"], Cleanup.RENAME: ["web"], Cleanup.PRESERVE: ["next", "web"]}
        assert it.names() == expected[policy]
        await asyncio.sleep(60)
        assert it.images() == ["web:2"] * 2
        it.unmarked()

    play(scenario)


def test_the_chosen_container() -> None:
    async def scenario(it: Stage) -> None:
        item = controller(replicas=1)
        item["spec"]["template"]["spec"]["containers"].append({"name": "side", "image": "side:1"})
        it.api.create(RESOURCE, "default", item)
        await it.settle("web")
        ran = await it.run("web", image="side:2")
        assert (ran.status, ran.writes) == (1, [])
        assert "must specify container to update when updating a multi-container pod" in ran.err
        ran = await it.run("web", image="side:2", container="none")
        assert "container none not found in pod" in ran.err
        with pytest.raises(Killed):
            await it.run("web", image="side:2", container="side", rest=Rest(it.api, kill_after=6))
        ran = await it.run("web", image="side:2", container="side")
        assert ran.status == 0, ran.err
        assert "Found existing update in progress" in ran.out
        images = [each["image"] for each in it.rc("web")["spec"]["template"]["spec"]["containers"]]
        assert images == ["web:1", "side:2"]

    play(scenario)


def test_the_same_image() -> None:
    async def scenario(it: Stage) -> None:
        await it.begin(replicas=1)
        ran = await it.run("web", image="web:1")
        assert (ran.status, ran.writes) == (1, [])
        assert ran.err == (
            "error: --image-pull-policy (Always|Never|IfNotPresent) must be provided when --image is the same as"
            " existing container image\n"
        )
        ran = await it.run("web", image="web:1", image_pull_policy="Always")
        assert ran.status == 0, ran.err
        (container,) = it.rc("web")["spec"]["template"]["spec"]["containers"]
        assert container["imagePullPolicy"] == "Always"

    play(scenario)


def test_what_is_refused_changes_nothing() -> None:
    async def scenario(it: Stage) -> None:
        await it.begin(replicas=1)
        await it.begin("zero", replicas=0, app="zero")
        await it.begin("foreign", replicas=1, app="foreign")
        it.files["same-name"] = controller("web", app="web", version="2")
        it.files["same-selector"] = controller("next", app="web")
        it.files["other-keys"] = controller("next", kind="web")
        version = it.api.version
        for names, options, text in (
            (("none",), {"image": "x"}, 'Error from server (NotFound): replicationcontrollers "none" not found'),
            (("we",), {"image": "x"}, '"we" not found'),
            (("none",), {"rollback": True}, '"none" not found'),
            (("web",), {"rollback": True}, "Could not find an update of web to rollback"),
            (("web", "next"), {"rollback": True}, "Could not find next to rollback."),
            (("web", "foreign"), {"rollback": True}, "Missing/unexpected annotations for controller foreign, expected"),
            (("web", "foreign"), {"image": "x"}, "Missing/unexpected annotations for controller foreign, expected"),
            (("web", "web"), {"image": "x"}, "web cannot have the same name as the existing ReplicationController web"),
            (
                ("web",),
                {"filenames": ("same-name",)},
                "same-name cannot have the same name as the existing Replication",
            ),
            (("web",), {"filenames": ("same-selector",)}, "must specify a matching key with non-equal value"),
            (("web",), {"filenames": ("other-keys",)}, "must specify a matching key with non-equal value"),
            (("zero",), {"image": "x"}, "required: > 0 replicas, actual: 0"),
        ):
            ran = await it.run(*names, **options)
            assert (ran.status, ran.out, ran.writes) == (1, "", []), (names, options)
            assert text in ran.err
            assert "to go on" not in ran.err
        assert it.api.version == version

    play(scenario)


def test_a_dry_run_writes_nothing() -> None:
    async def scenario(it: Stage) -> None:
        await it.begin("web", replicas=2, app="web", version="1")
        it.files["new.yaml"] = controller("next", app="web", version="2")
        version = it.api.version
        ran = await it.run("web", image="web:2", dry_run=True)
        assert ran.status == 0
        assert re.fullmatch(r"Rolling from:\nweb\nTo:\nweb-[0-9a-f]{32}\n", ran.out)
        ran = await it.run("web", filenames=("new.yaml",), dry_run=True, output="jsonpath={.spec.replicas}")
        assert ran.out == "Rolling from:\n2\nTo:\n3\n"
        assert it.api.version == version
        with pytest.raises(Killed):
            await it.run("web", image="web:2", rest=Rest(it.api, kill_after=8))
        await asyncio.sleep(20)
        version = it.api.version
        for options in ({"image": "web:2"}, {"rollback": True}):
            ran = await it.run("web", dry_run=True, **options)
            assert ran.status == 0
            assert it.api.version == version

    play(scenario)


def test_rollback() -> None:
    async def scenario(it: Stage) -> None:
        await it.begin(replicas=3)
        promises = Promises(it.api, least=3, most=4)
        before = {pod["metadata"]["name"] for pod in it.pods()}
        with pytest.raises(Killed):
            await it.run("web", image="web:2", rest=Rest(it.api, kill_after=7))
        await asyncio.sleep(20)
        name = it.rc("web")["metadata"]["annotations"][NEXT]
        assert it.rc(name)["spec"]["replicas"] == 1
        ran = await it.run("web", rollback=True)
        assert ran.status == 0, ran.err
        assert ran.lines == [
            'Setting "web" replicas to 3',
            "Continuing update with existing controller web.",
            f"Scaling up web from 3 to 3, scaling down {name} from 1 to 0 (keep 3 pods available, don't exceed 4 pods)",
            f"Scaling {name} down to 0",
            f"Update succeeded. Deleting {name}",
            "replicationcontroller/web rolling updated (rolled back)",
        ]
        assert it.names() == ["web"]
        assert {pod["metadata"]["name"] for pod in it.pods()} == before
        assert promises.broken == []
        it.unmarked()

    play(scenario)


def test_rollback_with_both_names_prints_the_survivor() -> None:
    async def scenario(it: Stage) -> None:
        await it.begin(replicas=2)
        with pytest.raises(Killed):
            await it.run("web", "next", image="web:2", rest=Rest(it.api, kill_after=9))
        ran = await it.run("web", "next", rollback=True, output="name")
        assert (ran.status, ran.out) == (0, "replicationcontroller/web\n")
        assert "Setting" in ran.err

    play(scenario)


def test_another_image_while_an_update_is_in_progress() -> None:
    async def scenario(it: Stage) -> None:
        await it.begin(replicas=2)
        with pytest.raises(Killed):
            await it.run("web", "next", image="web:2", rest=Rest(it.api, kill_after=8))
        await asyncio.sleep(20)
        version = it.api.version
        ran = await it.run("web", image="web:3")
        assert ran.status == 1
        assert ran.err == (
            "error: Found existing in-progress update to image (web:2).\n"
            "Either continue in-progress update with --image=web:2 or rollback with --rollback\n"
        )
        it.files["new.yaml"] = controller("third", app="web", deployment="x")
        for names, options in ((("web", "third"), {"image": "web:2"}), (("web",), {"filenames": ("new.yaml",)})):
            ran = await it.run(*names, **options)
            assert ran.status == 1
            assert "Found existing in-progress update to next." in ran.err
        assert it.api.version == version

    play(scenario)


def test_events_as_json() -> None:
    async def scenario(it: Stage) -> None:
        await it.begin(replicas=1)
        ran = await it.run("web", image="web:2", output="json")
        assert (ran.status, ran.err) == (0, "")
        events = [json.loads(line) for line in ran.lines]
        assert [each["event"] for each in events] == [
            "create",
            "begin",
            "scale-up",
            "scale-down",
            "delete",
            "rename",
            "done",
        ]
        assert events[1]["desired"] == 1
        assert events[3] | {"time": ""} == {
            "event": "scale-down",
            "time": "",
            "message": "Scaling web down to 0",
            "controller": "web",
            "replicas": 0,
        }
        assert events[-1]["object"]["metadata"]["name"] == "web"

    play(scenario)


def test_the_new_controller_as_yaml() -> None:
    async def scenario(it: Stage) -> None:
        await it.begin(replicas=1)
        ran = await it.run("web", image="web:2", output="yaml")
        assert ran.status == 0
        assert ran.out.startswith("apiVersion: v1\nkind: ReplicationController\n")
        assert "Scaling web down to 0" in ran.err

    play(scenario)


@pytest.mark.parametrize(
    ("surge", "unavailable", "least", "most"), [(0, 1, 4, 5), ("40%", "20%", 4, 7), ("100%", 0, 5, 10)]
)
def test_surge_and_unavailability(surge: int | str, unavailable: int | str, least: int, most: int) -> None:
    async def scenario(it: Stage) -> None:
        await it.begin(replicas=5)
        promises = Promises(it.api, least=least, most=most)
        ran = await it.run("web", image="web:2", max_surge=surge, max_unavailable=unavailable)
        assert ran.status == 0, ran.err
        assert f"(keep {least} pods available, don't exceed {most} pods)" in ran.out
        await it.settle("web")
        assert it.images() == ["web:2"] * 5
        assert promises.broken == []

    play(scenario)


def test_pods_that_end_slowly_take_room() -> None:
    """Neither controller has more than its share, pods within their grace period included."""

    async def scenario(it: Stage) -> None:
        await it.begin(replicas=4)
        it.cluster.kubelet.stop_s = 12.0
        most = 0

        def count(_: object) -> None:
            nonlocal most
            most = max(most, len(it.api.all("pods")))

        it.api.observers.append(count)
        ran = await it.run("web", image="web:2", max_surge=1)
        assert ran.status == 0, ran.err
        assert most == 5

    play(scenario)


def test_pods_with_a_long_grace_period() -> None:
    """To wait for them is no lack of progress; those that outlive it do not count."""

    async def scenario(it: Stage) -> None:
        await it.begin(replicas=3)
        it.cluster.kubelet.stop_s = 1000.0  # the grace period is 30 s
        ran = await it.run("web", image="web:2", timeout_s=10.0)
        assert ran.status == 0, ran.err
        assert "waits for 1 pod to end: web-" in ran.err
        assert it.images() == ["web:2"] * 3

    play(scenario)


@pytest.mark.parametrize("by_flag", [False, True])
def test_min_ready_seconds(by_flag: bool) -> None:
    """By the flag, else by the controller's own field."""

    async def scenario(it: Stage) -> None:
        await it.begin(replicas=2)
        if not by_flag:
            it.api.patch(RESOURCE, "default", "web", {"spec": {"minReadySeconds": 40}})
        began = asyncio.get_running_loop().time()
        ran = await it.run("web", image="web:2", min_ready_s=40.0 if by_flag else 0.0)
        assert ran.status == 0, ran.err
        assert asyncio.get_running_loop().time() - began > 80
        assert "waits for 1 pod of web-" in ran.err

    play(scenario)


def test_what_kubectl_leaves_after_a_rollback_is_not_used() -> None:
    """kubectl removes neither the name nor the size; a new update begins, with the present size."""

    async def scenario(it: Stage) -> None:
        await it.begin(replicas=2)
        left = {NEXT: "web-gone", ORIGINAL_REPLICAS: "9"}
        it.api.patch(RESOURCE, "default", "web", {"metadata": {"annotations": left}})
        ran = await it.run("web", rollback=True)
        assert (ran.status, ran.writes) == (1, [])
        assert "Could not find web-gone to rollback." in ran.err
        ran = await it.run("web", image="web:2")
        assert ran.status == 0, ran.err
        assert _name(ran.out) != "web-gone"
        assert it.rc("web")["spec"]["replicas"] == 2
        it.unmarked()

    play(scenario)


def test_our_update_that_kubectl_has_taken_back() -> None:
    """Its rollback leaves our lock, too; the controller was made larger since."""

    async def scenario(it: Stage) -> None:
        await it.begin(replicas=2)
        with pytest.raises(Killed):
            await it.run("web", "next", image="web:2", rest=Rest(it.api, kill_after=7))
        it.api.end("default", "next", {"propagationPolicy": "Background", "preconditions": {}})
        it.api.patch(RESOURCE, "default", "web", {"spec": {"replicas": 5}})
        await it.settle("web")
        ran = await it.run("web", image="web:3")
        assert ran.status == 0, ran.err
        await it.settle("web")
        assert it.images() == ["web:3"] * 5
        it.unmarked()

    play(scenario)


@pytest.mark.parametrize("rollback", [False, True])
@pytest.mark.parametrize("original", [False, True])
def test_an_update_that_kubectl_has_begun(rollback: bool, original: bool) -> None:
    async def scenario(it: Stage) -> None:
        old = await it.begin("web", replicas=3, app="web", deployment="first")
        new = controller("web-next", replicas=1 if original else 0, image="web:2", app="web", deployment="second")
        new["metadata"]["annotations"] = {SOURCE: f"web:{old['metadata']['uid']}", DESIRED_REPLICAS: "3"}
        it.api.create(RESOURCE, "default", new)
        marks = {NEXT: "web-next"} | ({ORIGINAL_REPLICAS: "3"} if original else {})
        it.api.patch(RESOURCE, "default", "web", {"metadata": {"annotations": marks}})
        ran = await it.run("web", **({"rollback": True} if rollback else {"image": "web:2"}))
        assert ran.status == 0, ran.err
        await it.settle("web")
        assert (it.names(), it.images()) == (["web"], ["web:1" if rollback else "web:2"] * 3)
        it.unmarked()

    play(scenario)


def test_a_rename_that_kubectl_has_begun() -> None:
    """The old controller is deleted, the new one still has its own name. Names that only begin alike do not count."""

    async def scenario(it: Stage) -> None:
        new = controller("web-next", replicas=2, image="web:2", app="web", deployment="second")
        new["metadata"]["annotations"] = {SOURCE: "web:uid-gone", DESIRED_REPLICAS: "2"}
        it.api.create(RESOURCE, "default", new)
        longer = controller("webby-next", replicas=1, app="webby")
        longer["metadata"]["annotations"] = {SOURCE: "webby:uid", DESIRED_REPLICAS: "1"}
        it.api.create(RESOURCE, "default", longer)
        await it.settle("web-next")
        pods = {pod["metadata"]["name"] for pod in it.pods()}
        ran = await it.run("web", rollback=True)
        assert ran.status == 1
        assert "it is deleted already" in ran.err
        assert ran.err.endswith(" To complete the update: kubeproxy rolling-update web --image=web:2\n")
        ran = await it.run("web", image="web:9")
        assert "Found existing in-progress update to image (web:2)" in ran.err
        ran = await it.run("web", image="web:2")
        assert ran.status == 0, ran.err
        await it.settle("web")
        await asyncio.sleep(60)
        assert {pod["metadata"]["name"] for pod in it.pods()} == pods
        assert it.names() == ["web", "webby-next"]

    play(scenario)


def test_a_terminal_shows_both_controllers() -> None:
    async def scenario(it: Stage) -> None:
        await it.begin(replicas=2)
        it.cluster.kubelet.ready_s = 20.0
        ran = await it.run("web", image="web:2", terminal=True)
        assert ran.status == 0
        assert re.search(r"old  web +2 wanted +2 present +2 ready\n", ran.err)
        assert re.search(r"new  web-[0-9a-f]{32} +1 wanted +1 present +0 ready\n", ran.err)
        assert re.search(r"waits \d+s for pod web-\S+ to become ready: ", ran.err)
        drawn, erased = ran.err.count("\n"), ran.err.count("\x1b[1A\x1b[2K")
        assert drawn == erased  # nothing of the block is left

    play(scenario)
