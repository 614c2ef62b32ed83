"""deploy/controllers and its systemd unit: understood by Kubernetes and systemd, and with the rights that are used."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kubeproxy.cli.controller_manager import controller_manager, enabled, settings_of
from kubeproxy.controllers.deployments.drain_plan import OPT_IN
from kubeproxy.controllers.manager.manager import READINESS_LEASE
from kubeproxy.controllers.proxy_requests.timeouts import USE_TIMEOUT
from kubeproxy.controllers.readiness.gates import GATE
from kubeproxy.kubernetes.delegated_access import DelegatedAccess
from kubeproxy.kubernetes.object_client import STRATEGIC
from tests.controllers.cluster import Cluster, pod_template
from tests.controllers.manager.test_manager import Manager, _virtual_clocks
from tests.controllers.proxies import Proxies, expose
from tests.controllers.virtual_time import run
from tests.kubernetes.test_delegated_access import Reviewer
from tests.system.deploy.manifests import COMPONENTS, DEPLOY, ROOT, read
from tests.system.deploy.schema import faults

HERE = DEPLOY / "controllers"
DRAINS = COMPONENTS / "drain-reports"
READINESS = COMPONENTS / "readiness"
GATED = {
    "metadata": {"name": "gated", "labels": {"app": "web"}, "annotations": {USE_TIMEOUT: "5s"}},
    "spec": {"containers": [{"name": "app", "image": "web:1"}], "readinessGates": [{"conditionType": GATE}]},
}
UNIT = ROOT / "systemd" / "kubeproxy-controllers.service"
MODELS = {
    "ServiceAccount": "V1ServiceAccount",
    "ClusterRole": "V1ClusterRole",
    "ClusterRoleBinding": "V1ClusterRoleBinding",
    "Role": "V1Role",
    "RoleBinding": "V1RoleBinding",
    "Deployment": "V1Deployment",
}
OBJECTS = sorted(path for path in HERE.glob("*.yaml") if path.name != "kustomization.yaml")

__all__ = ["_virtual_clocks"]


@pytest.mark.parametrize("path", OBJECTS, ids=lambda path: path.name)
def test_kubernetes_knows_every_field(path: Path) -> None:
    item = read(path)
    assert not list(faults(item, MODELS[item["kind"]]))


def test_nothing_is_left_out() -> None:
    assert {path.name for path in OBJECTS} == set(read(HERE / "kustomization.yaml")["resources"])


def _granted(*roles: Path) -> set[str]:
    rules = [rule for role in roles for rule in read(role)["rules"]]
    return {f"{verb} {resource}" for rule in rules for verb in rule["verbs"] for resource in rule["resources"]}


OWN = _granted(HERE / "cluster-role.yaml", HERE / "role.yaml")
FOR_DRAINS = _granted(DRAINS / "controllers-cluster-role.yaml", DRAINS / "reader-role.yaml")


def test_the_rights_are_those_that_are_used() -> None:
    """Everything that the controllers do in a scenario with all of it is allowed, and nothing else is."""

    async def scenario() -> set[str]:
        cluster = Cluster()
        cluster.deploy(revisionHistoryLimit=0)
        item = {
            "metadata": {"name": "rc"},
            "spec": {"replicas": 2, "selector": {"app": "rc"}, "template": pod_template(labels={"app": "rc"})},
        }
        cluster.api.create("replicationcontrollers", "default", item)
        expose(cluster.api)
        cluster.api.create("pods", "default", GATED)
        it = Manager(cluster, "first")
        await cluster.complete()
        # Adopting reads the owner first: pods of both kinds, and a ReplicaSet.
        for pod in cluster.api.all("pods"):
            cluster.api.patch("pods", "default", pod["metadata"]["name"], {"metadata": {"ownerReferences": None}})
        for replica_set in cluster.api.all("replicasets"):
            name = replica_set["metadata"]["name"]
            cluster.api.patch("replicasets", "default", name, {"metadata": {"ownerReferences": None}})
        await asyncio.sleep(20)
        proxies = Proxies(cluster.api, 1)
        cluster.api.patch("deployments", "default", "web", {"metadata": {"annotations": {OPT_IN: "true"}}})
        await asyncio.sleep(5)
        cluster.set_image("web:2")
        await cluster.complete()
        proxies.close()
        cluster.api.patch(
            "deployments", "default", "web", {"metadata": {"annotations": {"deprecated.deployment.rollback.to": "9"}}}
        )
        # The same Event again is counted by a PATCH.
        for _ in range(2):
            cluster.edit({"replicas": 5})
            await cluster.complete()
            cluster.edit({"replicas": 3})
            await cluster.complete()
        await asyncio.sleep(60)
        await it.end()
        return set(cluster.api.requests)

    used = run(scenario()) | _used_by_the_secure_port()
    granted = {right for right in OWN | FOR_DRAINS if not right.startswith("update ")}
    assert used <= granted, used - granted
    assert granted <= used, granted - used


def test_readiness_gates_need_no_other_rights() -> None:
    async def scenario() -> set[str]:
        cluster = Cluster()
        expose(cluster.api)
        proxies = Proxies(cluster.api, 1)
        await asyncio.sleep(1)
        it = Manager(cluster, "first", controllers=frozenset({"readiness"}), lease=READINESS_LEASE)
        proxies.stuck.add("node-0")
        cluster.api.create("pods", "default", GATED)
        await asyncio.sleep(20)
        closed = [{"type": GATE, "status": "False"}]
        cluster.api.patch("pods", "default", "gated", {"status": {"conditions": closed}}, STRATEGIC)
        await asyncio.sleep(60)  # The same Event again is counted by a PATCH.
        await it.end()
        proxies.close()
        return {used for used in cluster.api.requests if not used.startswith("list nodes")}

    used = run(scenario()) | _used_by_the_secure_port()
    granted = _granted(*READINESS.glob("*role.yaml"), DRAINS / "reader-role.yaml")
    assert used == granted


def test_services_may_be_written_only_where_drains_are_on() -> None:
    assert {right for right in OWN if right.endswith(" services")} == set()
    assert {"list services", "watch services", "patch services"} | {
        f"{verb} leases" for verb in ("get", "list", "watch")
    } == FOR_DRAINS


def _used_by_the_secure_port() -> set[str]:
    server = Reviewer()
    access = DelegatedAccess(server)
    asyncio.run(access.demand("/metrics", "GET", authorization="Bearer good", certificate=None))
    return {f"create {path.rpartition('/')[2]}" for path in server.paths}


@pytest.mark.parametrize("directory", [HERE, READINESS], ids=lambda path: path.name)
def test_the_command_line_is_understood(directory: Path) -> None:
    container = read(directory / "deployment.yaml")["spec"]["template"]["spec"]["containers"][0]
    command, *args = container["args"]
    assert command == "controller-manager"
    given = controller_manager.make_context(command, args).params
    (port,) = container["ports"]
    assert given["secure_port"] == port["containerPort"]
    assert given["address"] == "127.0.0.1"
    for probe in (container["livenessProbe"]["httpGet"], container["readinessProbe"]["httpGet"]):
        assert (probe["scheme"], probe["port"]) == ("HTTPS", port["name"])
        assert probe["path"] in given["authorization_always_allow_paths"].split(",")
    lease = settings_of(given, enabled(given["controllers"])).lease.name
    assert lease in read(directory / "role.yaml")["rules"][1]["resourceNames"]


def _settings() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in UNIT.read_text().splitlines():
        if match := re.fullmatch(r"([A-Za-z]+)=(.*)", line):
            found.setdefault(match[1], []).append(match[2])
    return found


def test_the_units_command_line_is_understood() -> None:
    (start,) = _settings()["ExecStart"]
    words = [word for word in start.split()[1:] if word != "$KUBEPROXY_CONTROLLERS_OPTIONS"]
    assert controller_manager.make_context(words[0], words[1:]).params["kubeconfig"] == "${KUBECONFIG}"
    assert _settings()["RestartPreventExitStatus"] == ["64"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here (package systemd)")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    text: Any = UNIT.read_text().replace("@PREFIX@/bin/kubeproxy", "/bin/true")
    unit.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert UNIT.name not in done.stderr
