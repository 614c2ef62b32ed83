"""deploy/ is whole, says nothing that Kubernetes would not understand, and asks for nothing that is not used."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from copy import deepcopy
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from kubeproxy.cli import main
from kubeproxy.config.diff import compare
from kubeproxy.config.load import load
from kubeproxy.config.schema import Configuration
from kubeproxy.config.validate import require_source
from kubeproxy.daemon.process_limits import HUNG_S
from kubeproxy.daemon.service_events import Reason
from kubeproxy.kubernetes.events.recorder import EventRecorder
from kubeproxy.model import Node
from kubeproxy.model.drain_report import REPORT_NAMESPACE
from kubeproxy.model.errors import ConfigError
from kubeproxy.sources.kubernetes.source import KubernetesSource
from tests.kubernetes.harness import QUICK, Remembering, connected
from tests.support.apiserver import ApiServer, Cluster
from tests.support.waiting import until
from tests.system.deploy.manifests import BASE, COMPONENTS, DEPLOY, MONITORING, read
from tests.system.deploy.schema import faults

KUSTOMIZATIONS = sorted(DEPLOY.rglob("kustomization.yaml"))
CONFIGS = sorted(DEPLOY.rglob("config.yaml"))
MODELS = {
    "ServiceAccount": "V1ServiceAccount",
    "ClusterRole": "V1ClusterRole",
    "ClusterRoleBinding": "V1ClusterRoleBinding",
    "Role": "V1Role",
    "RoleBinding": "V1RoleBinding",
    "ConfigMap": "V1ConfigMap",
    "DaemonSet": "V1DaemonSet",
    "Deployment": "V1Deployment",
    "Namespace": "V1Namespace",
    "ValidatingAdmissionPolicy": "V1ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding": "V1ValidatingAdmissionPolicyBinding",
}
LEADS = {"Role/kubeproxy-readiness", "RoleBinding/kubeproxy-readiness"}
"""The rights to the Lease by which one of two pods leads."""
CLUSTER_WIDE = {kind for kind in MODELS if kind.startswith(("Cluster", "Namespace", "Validating"))}
OBJECTS = [
    path
    for path in [*sorted(BASE.glob("*.yaml")), *sorted(COMPONENTS.glob("*/*.yaml"))]
    if path.name not in ("kustomization.yaml", "config.yaml")
]
KUSTOMIZATION_FIELDS = {
    *(
        "apiVersion",
        "kind",
        "namespace",
        "labels",
        "resources",
        "components",
        "patches",
        "images",
        "configMapGenerator",
        "replacements",
    ),
}

kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not here")


def name_of(path: Path) -> str:
    return str(path.relative_to(DEPLOY))


@cache
def built(directory: Path) -> dict[str, Any]:
    """What `kubectl kustomize` makes of a directory: objects by kind and name."""
    done = subprocess.run(["kubectl", "kustomize", directory], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "it does not even warn"
    return {f"{found['kind']}/{found['metadata']['name']}": found for found in yaml.safe_load_all(done.stdout)}


def pod(objects: dict[str, Any]) -> dict[str, Any]:
    found = objects["DaemonSet/kubeproxy"]["spec"]["template"]["spec"]
    assert isinstance(found, dict)
    return found


def container(objects: dict[str, Any]) -> dict[str, Any]:
    (only,) = pod(objects)["containers"]
    assert isinstance(only, dict)
    return only


# Files


@pytest.mark.parametrize("path", KUSTOMIZATIONS, ids=name_of)
def test_everything_that_is_named_is_there_and_everything_there_is_named(path: Path) -> None:
    kustomization = read(path)
    assert set(kustomization) <= KUSTOMIZATION_FIELDS
    generated = [entry for generator in kustomization.get("configMapGenerator", []) for entry in generator["files"]]
    named = {
        *kustomization.get("resources", []),
        *kustomization.get("components", []),
        *(patch["path"] for patch in kustomization.get("patches", [])),
        *(entry.rpartition("=")[2] for entry in generated),
    }
    for name in named:
        target = path.parent / name
        assert target.is_file() or (target / "kustomization.yaml").is_file(), name
    beside = {it.name for it in path.parent.iterdir() if it.suffix in (".yaml", ".json")} - {"kustomization.yaml"}
    assert beside <= named


@pytest.mark.parametrize("path", OBJECTS, ids=name_of)
def test_kubernetes_knows_every_field(path: Path) -> None:
    found = read(path)
    if found.pop("$patch", None) == "delete":
        assert found.keys() == {"apiVersion", "kind", "metadata"}
    seen = list(faults(found, MODELS[found["kind"]]))
    if "components" in path.parts:  # a patch need not be whole
        seen = [fault for fault in seen if "must not be `None`" not in fault and "is wanted, not None" not in fault]
    assert seen == []


def test_a_mistyped_field_would_be_found() -> None:
    daemon_set = read(BASE / "daemon-set.yaml")
    pod = daemon_set["spec"]["template"]["spec"]
    pod["hostNetworks"] = pod.pop("hostNetwork")
    pod["containers"][0]["securityContext"]["capabilities"]["drop"] = "ALL"
    del pod["containers"][0]["name"]
    del daemon_set["spec"]["selector"]
    said = "\n".join(faults(daemon_set, "V1DaemonSet"))
    assert "there is no field hostNetworks" in said
    assert "capabilities.drop: a list is wanted" in said
    assert "`name`, must not be `None`" in said
    assert "`selector`, must not be `None`" in said


# Configuration


@pytest.mark.parametrize("path", CONFIGS, ids=name_of)
def test_the_configuration_is_valid(path: Path) -> None:
    assert load({"config": [str(path)]}).warnings == ()


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (COMPONENTS / "dual-stack/config.yaml", {"healthzBindAddress", "clusterCIDR"}),
        (MONITORING / "config.yaml", {"metricsBindAddress"}),
        (DEPLOY / "example/config.yaml", set()),
    ],
    ids=lambda it: name_of(it) if isinstance(it, Path) else "",
)
def test_a_component_changes_what_it_is_for(path: Path, fields: set[str]) -> None:
    base, changed = (load({"config": [str(it)]}).configuration for it in (BASE / "config.yaml", path))
    difference = compare(base, changed)
    assert {*difference.live, *difference.restart} == fields


# What comes out


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the example with every component, as its comments say."""
    deploy = tmp_path_factory.mktemp("complete") / "deploy"
    shutil.copytree(DEPLOY, deploy)
    example = deploy / "example"
    kustomization = example / "kustomization.yaml"
    kustomization.write_text(re.sub(r"^#(components:|  - )", r"\1", kustomization.read_text(), flags=re.M))
    offered = {f"../components/{it.name}" for it in COMPONENTS.iterdir()} - {"../components/api-server"}
    assert {*read(kustomization)["components"]} == {*offered, "../monitoring"}
    config = example / "config.yaml"
    config.write_text(config.read_text().replace("0.0.0.0:10256", '"[::]:10256"').replace("127.0.0.1", "0.0.0.0"))
    return example


@kubectl
def test_the_example_applies_to_a_plain_cluster() -> None:
    """It is the base with the API server's address: no component that needs something of the cluster."""
    base, example = deepcopy(built(BASE)), deepcopy(built(DEPLOY / "example"))
    assert example.keys() == base.keys(), "the ConfigMap's name has a hash of the same contents"
    environment = {it["name"]: it.get("value") for it in container(example).pop("env")}
    assert environment["KUBERNETES_SERVICE_HOST"] == "control-plane.example.com"
    del container(base)["env"]
    for each in pod(example)["containers"], pod(example)["initContainers"]:
        assert each[0].pop("image").startswith("registry.example.com/")
    for each in pod(base)["containers"], pod(base)["initContainers"]:
        del each[0]["image"]
    assert example == base


def test_the_placeholder_of_the_api_server_is_refused() -> None:
    """By the configuration's own words, before the client asks a resolver for it."""
    configuration = load({"config": [str(DEPLOY / "example/config.yaml")]}).configuration
    address = read(DEPLOY / "example/api-server.yaml")["spec"]["template"]["spec"]["containers"][0]["env"][0]["value"]
    with pytest.raises(ConfigError, match=r"KUBERNETES_SERVICE_HOST: found control-plane\.example\.com"):
        require_source(configuration, {"KUBERNETES_SERVICE_HOST": address, "KUBERNETES_SERVICE_PORT": "6443"})
    require_source(configuration, {"KUBERNETES_SERVICE_HOST": "192.0.2.1", "KUBERNETES_SERVICE_PORT": "6443"})


@kubectl
@pytest.mark.parametrize("which", ["base", "example", "complete"])
def test_what_is_built_is_whole(which: str, complete: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    objects = built({"base": BASE, "example": DEPLOY / "example", "complete": complete}[which])
    for name, found in objects.items():
        if found["kind"] in MODELS:
            assert list(faults(found, MODELS[found["kind"]])) == [], name
        if found["kind"] not in CLUSTER_WIDE:
            of_reports = found["kind"] in ("Role", "RoleBinding") and name not in LEADS
            own = REPORT_NAMESPACE if of_reports else "kube-system"
            assert found["metadata"]["namespace"] == own, name
    pod = objects["DaemonSet/kubeproxy"]["spec"]["template"]["spec"]
    (subject,) = objects["ClusterRoleBinding/kubeproxy"]["subjects"]
    assert f"ServiceAccount/{pod['serviceAccountName']}" in objects
    assert (subject["name"], subject["namespace"]) == (pod["serviceAccountName"], "kube-system")
    assert objects["ClusterRoleBinding/kubeproxy"]["roleRef"]["name"] == "kubeproxy"
    # The configuration that the pod gets, read with the flags that it is started with.
    (volume,) = (volume for volume in pod["volumes"] if volume["name"] == "config")
    config = tmp_path / "config.yaml"
    config.write_text(objects[f"ConfigMap/{volume['configMap']['name']}"]["data"]["config.yaml"])
    command, *args = container(objects)["args"]
    assert command == "run"
    flags = [arg.replace("/etc/kubeproxy/config.yaml", str(config)).replace("$(NODE_NAME)", "node-1") for arg in args]
    assert flags != args
    assert main.status_of(["check", *flags]) == 0
    assert capsys.readouterr().out == "configuration is valid\n"
    mounted = {mount["name"] for mount in container(objects)["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}


@kubectl
def test_the_second_pod_fits_beside_the_first_and_is_waited_for() -> None:
    objects = built(BASE)
    spec = objects["DaemonSet/kubeproxy"]["spec"]
    pod = spec["template"]["spec"]
    assert pod["hostNetwork"] is True
    assert "ports" not in container(objects), "on the host's network they would keep the second pod off the node"
    assert spec["updateStrategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    assert "--here" in container(objects)["readinessProbe"]["exec"]["command"], "the first must not answer for it"
    configuration = load({"config": [str(BASE / "config.yaml")]}).configuration
    assert pod["terminationGracePeriodSeconds"] >= configuration.kubeproxy.shutdown_grace.seconds + 10
    for probe in ("startupProbe", "livenessProbe"):
        asked = container(objects)[probe]["httpGet"]
        assert (asked["path"], asked["port"]) == ("/livez", Configuration().healthz_bind_address.port)
    first_start_s, unheard_s = (
        container(objects)[probe]["periodSeconds"] * container(objects)[probe]["failureThreshold"]
        for probe in ("startupProbe", "livenessProbe")
    )
    assert unheard_s >= HUNG_S + first_start_s, "the kubelet would end the workers of one that is started again"


@kubectl
@pytest.mark.parametrize("legacy", [False, True], ids=["base", "iptables-legacy"])
def test_it_has_few_privileges(complete: Path, legacy: bool) -> None:
    objects = built(complete if legacy else BASE)
    security = container(objects)["securityContext"]
    assert security["capabilities"]["drop"] == ["ALL"]
    # Without NET_RAW workers could not dial from clients' addresses unless they kept NET_ADMIN.
    assert set(security["capabilities"]["add"]) == {"NET_ADMIN", "NET_BIND_SERVICE", "NET_RAW"}
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert "privileged" not in security
    pod = objects["DaemonSet/kubeproxy"]["spec"]["template"]["spec"]
    shared = [volume["hostPath"] for volume in pod["volumes"] if "hostPath" in volume]
    state, lock = (
        {"path": "/run/kubeproxy", "type": "DirectoryOrCreate"},
        {"path": "/run/xtables.lock", "type": "FileOrCreate"},
    )
    assert shared == ([lock, state] if legacy else [state])


@kubectl
def test_what_needs_more_privileges_is_over_before_it_starts(complete: Path) -> None:
    objects = built(DEPLOY / "example")
    (before,) = pod(objects)["initContainers"]
    assert before["args"] == ["run", "--config=/etc/kubeproxy/config.yaml", "--init-only"]
    assert before["image"] == container(objects)["image"]
    assert "initContainers" not in pod(built(complete)), "components/unprivileged leaves it out"


@kubectl
def test_prometheus_and_grafana_find_it(complete: Path) -> None:
    objects = built(complete)
    monitor = objects["PodMonitor/kubeproxy"]["spec"]
    assert set(monitor) == {"jobLabel", "namespaceSelector", "selector", "podMetricsEndpoints"}
    labels = objects["DaemonSet/kubeproxy"]["spec"]["template"]["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    assert labels[monitor["jobLabel"]] == "kubeproxy", "the job that alerts and dashboard ask for"
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert set(endpoint) == {"path", "interval", "honorLabels", "relabelings"}
    for rule in endpoint["relabelings"]:
        assert set(rule) <= {"sourceLabels", "regex", "targetLabel", "replacement", "action"}
    assert set(objects["PrometheusRule/kubeproxy"]["spec"]) == {"groups"}
    dashboard = objects["ConfigMap/kubeproxy-dashboard"]
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(dashboard["data"]["kubeproxy.json"])["uid"] == "kubeproxy"
    assert len(dashboard["data"]["kubeproxy.json"]) < 900_000, "a ConfigMap holds no more than a MiB"


# Permissions


async def test_it_may_do_what_it_does_and_nothing_else() -> None:
    allowed = {
        f"{verb} {resource}"
        for rule in read(BASE / "cluster-role.yaml")["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    cluster = Cluster()
    async with ApiServer(cluster) as server, connected(server.url) as client:
        source = KubernetesSource(
            client=client, sink=Remembering(), node_sink=_Nodes(), node_name="node-1", pace=QUICK, random=Random(7)
        )
        recorder = EventRecorder(client=client, node_name="node-1", retry_s=(0.005, 0.01), random=Random(7))
        event: dict[str, Any] = {"kind": "Node", "namespace": "", "name": "node-1", "type": "Normal"}
        tasks = [asyncio.ensure_future(source.run()), asyncio.ensure_future(recorder.run())]
        try:
            recorder.record(**event, reason=Reason.STARTING, message="Starting kube-proxy.")
            await until(lambda: server.counts["create events"])
            recorder.record(**event, reason=Reason.STARTING, message="Starting kube-proxy.")
            await until(lambda: server.counts["patch events"] and server.counts["watch nodes"])
            await until(lambda: server.counts["watch services"] and server.counts["watch endpointslices"])
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    asked = {what for what in server.counts if not what.startswith("/")}
    assert asked == allowed


class _Nodes:
    """A `NodeSink` that does not listen."""

    def set_node(self, node: Node | None) -> None:
        pass
