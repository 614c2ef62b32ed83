"""What a Deployment lacks for rollouts that lose nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from kubeproxy.cli import main
from kubeproxy.commands.rollout.advise import Wanted, advise

HOOK = {"httpGet": {"port": 10258, "path": "/drain?timeout=25s"}}


def deployment(*containers: dict[str, Any], pod: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    found = containers or ({"name": "app", "ports": [{"containerPort": 80}], "readinessProbe": {}},)
    return {
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {"replicas": 6, **spec, "template": {"spec": {"containers": list(found), **(pod or {})}}},
    }


def pod_patch(given: dict[str, Any], wanted: Wanted = Wanted()) -> dict[str, Any]:  # noqa: B008 - frozen
    patch = advise(given, wanted).patch
    found: dict[str, Any] = patch.get("spec", {}).get("template", {}).get("spec", {})
    return found


def test_what_an_ordinary_deployment_lacks() -> None:
    found = advise(deployment({"name": "app"}), Wanted())
    assert found.patch == {
        "spec": {
            "template": {"spec": {"containers": [{"name": "app", "lifecycle": {"preStop": HOOK}}]}},
            "minReadySeconds": 5,
            "strategy": {"rollingUpdate": {"maxUnavailable": 0}},
        }
    }
    assert [reason.partition(":")[0] for reason in found.reasons] == [
        "lifecycle.preStop",
        "minReadySeconds",
        "maxUnavailable",
    ]


def test_after_the_patch_nothing_is_missing() -> None:
    given = deployment(
        {"name": "app", "lifecycle": {"preStop": HOOK}},
        minReadySeconds=5,
        strategy={"rollingUpdate": {"maxUnavailable": 0}},
    )
    found = advise(given, Wanted())
    assert not found.patch
    assert found.lines("web")[1:] == ["# Nothing is missing."]


@pytest.mark.parametrize("present", [[], [{"conditionType": "example.com/registered"}]])
def test_a_gate_takes_the_place_of_a_guessed_time(present: list[dict[str, str]]) -> None:
    given = deployment({"name": "app"}, pod={"readinessGates": present})
    found = advise(given, Wanted(gate=True))
    patch = found.patch["spec"]
    assert patch["template"]["spec"]["readinessGates"] == [*present, {"conditionType": "kubeproxy/in-use"}]
    assert "minReadySeconds" not in patch
    assert "no new pod ever becomes ready" in found.warnings[0]
    given["spec"]["template"]["spec"] |= patch["template"]["spec"]
    again = advise(given, Wanted())
    assert set(again.patch["spec"]) == {"strategy"}
    assert again.warnings == found.warnings


@pytest.mark.parametrize(
    ("grace", "timeout_s", "expected"),
    [(None, 25, None), (None, 26, 31), (60, 55, None), (10, 25, 30), (0, 25, 30)],
)
def test_the_grace_period_covers_the_hook(grace: int | None, timeout_s: int, expected: int | None) -> None:
    pod = {} if grace is None else {"terminationGracePeriodSeconds": grace}
    found = pod_patch(deployment(pod=pod), Wanted(timeout_s=timeout_s))
    assert found.get("terminationGracePeriodSeconds") == expected


def test_a_hook_that_sleeps_is_replaced() -> None:
    found = pod_patch(deployment({"name": "app", "lifecycle": {"preStop": {"sleep": {"seconds": 15}}}}))
    assert found["containers"] == [{"name": "app", "lifecycle": {"preStop": {"sleep": None, **HOOK}}}]


@pytest.mark.parametrize("hook", [{"exec": {"command": ["quit"]}}, {"httpGet": {"port": 80, "path": "/quit"}}])
def test_a_hook_that_does_something_stays(hook: dict[str, Any]) -> None:
    found = advise(deployment({"name": "app", "lifecycle": {"preStop": hook}}), Wanted())
    assert "template" not in found.patch["spec"]
    assert any("container app has a preStop hook of its own" in warning for warning in found.warnings)


def test_every_container_gets_the_hook() -> None:
    found = pod_patch(deployment({"name": "app"}, {"name": "proxy"}), Wanted(port=10300))
    assert [container["name"] for container in found["containers"]] == ["app", "proxy"]
    assert found["containers"][1]["lifecycle"]["preStop"]["httpGet"]["port"] == 10300


def test_pods_on_the_hosts_network_get_no_hook() -> None:
    found = advise(deployment(pod={"hostNetwork": True}), Wanted(timeout_s=60))
    assert "template" not in found.patch["spec"]
    assert any(warning.startswith("hostNetwork:") for warning in found.warnings)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, {"maxUnavailable": 0}),
        ({"replicas": 1}, None),
        ({"replicas": 3}, None),  # a quarter of three is none
        ({"strategy": {"rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}}}, {"maxUnavailable": 0, "maxSurge": 1}),
        ({"strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": "50%"}}}, None),
        ({"strategy": {"type": "Recreate"}}, None),
    ],
)
def test_no_old_pod_goes_before_its_successor(spec: dict[str, Any], expected: dict[str, Any] | None) -> None:
    found = advise(deployment(**spec), Wanted()).patch["spec"].get("strategy")
    assert found == (None if expected is None else {"rollingUpdate": expected})


def test_warnings() -> None:
    given = deployment({"name": "app", "ports": [{"containerPort": 80}]}, replicas=1, strategy={"type": "Recreate"})
    words = [warning.split()[0] for warning in advise(given, Wanted()).warnings]
    assert words == ["strategy", "container", "replicas:"]


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        ({}, "spec.template.spec.containers: found none"),
        ({"spec": {"template": []}}, "template: found list"),
    ],
)
def test_what_is_no_deployment(broken: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        advise(broken, Wanted())


def test_a_file_with_several(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "all.yaml"
    other = deployment()
    other["metadata"]["name"] = "api"
    listed = {"kind": "List", "items": [other, {"kind": "Service"}]}
    path.write_text(yaml.safe_dump_all([{"kind": "ConfigMap"}, deployment(), listed]))
    assert main.status_of(["rollout", "advise", "-f", str(path), "--timeout", "40s", "--gate"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("# deployment/web: ")
    first, second = yaml.safe_load_all(printed)
    assert first == second
    assert first["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 45
    assert "readinessGates" in first["spec"]["template"]["spec"]
    assert "# deployment/api: " in printed


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("kind: Service\n", "found no Deployment"),
        ("kind: [\n", "it.yaml: line 1"),
        ("- 1\n", "allowed are objects"),
        ("kind: Deployment\n", "spec.template.spec.containers: found none"),
    ],
)
def test_other_files_are_refused(text: str, error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "it.yaml"
    path.write_text(text)
    assert main.status_of(["rollout", "advise", "-f", str(path)]) == 1
    assert error in capsys.readouterr().err


def test_a_file_or_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.status_of(["rollout", "advise", "deployment/web", "-f", "x.yaml"]) == 1
    assert "not both" in capsys.readouterr().err
