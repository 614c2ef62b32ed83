"""The Helm chart: what it renders is what kustomize makes of deploy/base and its components."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.generators import chart_schema
from kubeproxy.config.load import load
from kubeproxy.model.drain_report import REPORT_NAMESPACE
from kubeproxy.model.version import __version__
from tests.system.deploy.manifests import COMPONENTS, DEPLOY, MONITORING, read
from tests.system.deploy.schema import faults
from tests.system.deploy.test_kustomize import MODELS, built, container

CHART = DEPLOY / "chart"
ADDRESS = {"host": "192.0.2.1", "port": 6443}
VALUES: dict[str, Any] = {"image": {"repository": "registry.example.com/kubeproxy"}, "apiServer": ADDRESS}
RUNBOOKS = "https://git.example.com/kubeproxy/blob/main"
POLICIES = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
LABELS = {
    *("app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/version"),
    *("app.kubernetes.io/managed-by", "helm.sh/chart"),
}
"""The labels that Helm's conventions add."""
ANNOTATIONS = {"checksum/config", "helm.sh/resource-policy"}

pytestmark = [
    pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not here (make test fetches it)"),
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not here (make test fetches it)"),
]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Helm's own directories, and files of the test."""
    return tmp_path


def helm(home: Path, *args: str | Path) -> subprocess.CompletedProcess[str]:
    """Run Helm with directories of its own; its status is not checked."""
    own = {name: str(home / name) for name in ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")}
    command = ["helm", *map(str, args)]
    return subprocess.run(command, env={**os.environ, **own}, capture_output=True, text=True, check=False, timeout=60)


def render(
    home: Path, values: Mapping[str, Any], *args: str, release: str = "kubeproxy", chart: Path = CHART
) -> subprocess.CompletedProcess[str]:
    """``helm template`` with these values."""
    file = home / "values.yaml"
    file.write_text(json.dumps(values))
    return helm(home, "template", release, chart, "--namespace=kube-system", "--values", file, *args)


def objects(home: Path, release: str = "kubeproxy", **values: Any) -> dict[str, Any]:
    """The rendered objects, by kind and name. `values` replace those of `VALUES`."""
    done = render(home, VALUES | values, release=release)
    assert done.returncode == 0, done.stderr
    found = [it for it in yaml.safe_load_all(done.stdout) if it]
    for item in found:
        if item["kind"] in MODELS:
            assert list(faults(item, MODELS[item["kind"]])) == [], item["metadata"]["name"]
    return {f"{item['kind']}/{item['metadata']['name']}": item for item in found}


def kustomized(home: Path, *components: Path) -> dict[str, Any]:
    """The base with the API server's address, an image and further components."""
    overlay = home / "overlay"
    overlay.mkdir()
    api_server = read(COMPONENTS / "api-server/daemon-set.yaml")
    for variable in api_server["spec"]["template"]["spec"]["containers"][0]["env"]:
        variable["value"] = {"KUBERNETES_SERVICE_HOST": ADDRESS["host"]}.get(variable["name"], str(ADDRESS["port"]))
    (overlay / "address.yaml").write_text(json.dumps(api_server))
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(DEPLOY / "base", overlay)],
        "components": [os.path.relpath(component, overlay) for component in components],
        "patches": [{"path": "address.yaml"}],
        "images": [{"name": "kubeproxy", "newName": VALUES["image"]["repository"], "newTag": __version__}],
    }
    (overlay / "kustomization.yaml").write_text(json.dumps(kustomization))
    return built(overlay)


def comparable(found: Mapping[str, Any]) -> dict[str, Any]:
    """Objects without what the two tools name differently: conventional labels, and how a new configuration is seen."""

    def plain(value: Any) -> Any:
        match value:
            case {"config.yaml": text}:
                return yaml.safe_load(text)
            case {"kubeproxy.json": text}:
                return json.loads(text)
            case dict():
                left = {key: plain(it) for key, it in value.items() if key not in LABELS | ANNOTATIONS}
                return {key: it for key, it in left.items() if it != {} or key not in ("labels", "annotations")}
            case [{"name": str()}, *_]:  # kustomize puts what a patch adds first
                return sorted(map(plain, value), key=lambda it: str(it["name"]))
            case list():
                return [plain(it) for it in value]
            case str():
                return re.sub(r"^kubeproxy-[a-z0-9]{10}$", "kubeproxy", value)
        return value

    return {re.sub(r"-[a-z0-9]{10}$", "", name): plain(item) for name, item in found.items()}


def test_a_manifest_of_the_chart_stands_once() -> None:
    """The chart has links to what kustomize applies. A program that edits files may leave copies in their place."""
    copies = [path.name for path in (CHART / "files").iterdir() if not path.is_symlink()]
    assert copies == []


def test_it_has_no_faults(home: Path) -> None:
    file = home / "values.yaml"
    file.write_text(json.dumps(VALUES))
    done = helm(home, "lint", "--strict", CHART, "--values", file)
    assert done.returncode == 0, done.stdout + done.stderr
    chart = read(CHART / "Chart.yaml")
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


@pytest.mark.parametrize(
    ("values", "components"),
    [
        ({}, ()),
        ({"legacyTables": True}, (COMPONENTS / "iptables-legacy",)),
        ({"drainReports": True}, (COMPONENTS / "drain-reports",)),
        (
            {"drainReports": True, "readiness": {"enabled": True}},
            (COMPONENTS / "drain-reports", COMPONENTS / "readiness"),
        ),
        ({"sizeConntrack": False}, (COMPONENTS / "unprivileged",)),
        ({"monitoring": {"enabled": True}}, (MONITORING,)),
    ],
    ids=["base", "iptables-legacy", "drain-reports", "readiness", "unprivileged", "monitoring"],
)
def test_it_renders_what_kustomize_makes(home: Path, values: dict[str, Any], components: tuple[Path, ...]) -> None:
    assert comparable(objects(home, **values)) == comparable(kustomized(home, *components))


def test_every_value_has_an_effect(home: Path) -> None:
    """A value that no template reads would be a promise without effect."""
    given: dict[str, Any] = {"monitoring": {"enabled": True}, "drainReports": True}
    before = objects(home, **given)
    changes: dict[str, Any] = {
        "image": {**VALUES["image"], "digest": "sha256:" + "a" * 64},
        "imagePullSecrets": [{"name": "registry"}],
        "apiServer": {"host": "192.0.2.2", "port": 443},
        "config": {"clusterCIDR": "10.1.0.0/16"},
        "extraArgs": ["--v=2"],
        "legacyTables": True,
        "drainReports": False,
        "sizeConntrack": False,
        "resources": {"requests": {"memory": "1Gi"}},
        "nodeSelector": {"pool": "a"},
        "affinity": {"nodeAffinity": {}},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "priorityClassName": "high",
        "updateStrategy": {"type": "OnDelete"},
        "terminationGracePeriodSeconds": 99,
        "controllers": {"enabled": True, "replicas": 2, "extraArgs": [], "resources": {}},
        "readiness": {"enabled": True, "replicas": 2, "extraArgs": [], "resources": {}},
        "podAnnotations": {"a": "b"},
        "podLabels": {"a": "b"},
        "extraEnv": [{"name": "A", "value": "b"}],
        "extraVolumes": [{"name": "a", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "tmp", "mountPath": "/a"}],
        "serviceAccount": {"name": "other", "annotations": {"a": "b"}},
        "monitoring": {
            "enabled": True,
            "labels": {"release": "p"},
            "runbooks": RUNBOOKS,
            "dashboardLabels": {"a": "b"},
        },
    }
    assert changes.keys() == read(CHART / "values.yaml").keys()
    assert changes.keys() == json.loads((CHART / "values.schema.json").read_text())["properties"].keys() - {"global"}
    for name, value in changes.items():
        assert objects(home, **{**given, name: value}) != before, name


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"apiServer": ADDRESS}, "image.repository: required"),
        ({"image": VALUES["image"]}, "apiServer.host: required"),
        (VALUES | {"replicas": 2}, "additional properties 'replicas' not allowed"),
        (VALUES | {"apiServer": {"host": "https://192.0.2.1"}}, "apiServer/host"),
        (VALUES | {"image": {**VALUES["image"], "digest": "abc"}}, "image/digest"),
        (VALUES | {"extraArgs": ["run"]}, "extraArgs/0"),
        (VALUES | {"readiness": {"enabled": True}}, "readiness.enabled: needs drainReports"),
        (VALUES | {"config": {"kubeproxy": {"dataPth": "kernel"}}}, "additional properties 'dataPth' not allowed"),
        (VALUES | {"config": {"kubeproxy": {"dataPath": "fast"}}}, "config/kubeproxy/dataPath"),
        (VALUES | {"config": {"oomScoreAdj": 1001}}, "config/oomScoreAdj"),
        (VALUES | {"config": {"iptables": {"masqueradeAll": "yes"}}}, "config/iptables/masqueradeAll"),
    ],
    ids=["image", "address", "unknown", "url", "digest", "argument", "readiness", "field", "choice", "number", "type"],
)
def test_values_that_cannot_work_are_refused(home: Path, values: dict[str, Any], said: str) -> None:
    done = render(home, values)
    assert done.returncode != 0
    assert said in done.stderr


def test_the_controllers_are_those_that_kustomize_makes(home: Path) -> None:
    rendered = {name: it for name, it in objects(home, controllers={"enabled": True}).items() if "controllers" in name}
    expected = built(DEPLOY / "controllers")
    (container,) = expected["Deployment/kubeproxy-controllers"]["spec"]["template"]["spec"]["containers"]
    container["image"] = f"{VALUES['image']['repository']}:{__version__}"
    assert comparable(rendered) == comparable(expected)
    flag = "--require-exclusive"
    more = objects(home, controllers={"enabled": True, "extraArgs": [flag]})["Deployment/kubeproxy-controllers"]
    assert more["spec"]["template"]["spec"]["containers"][0]["args"][-1] == flag


def test_the_schema_knows_the_fields_of_the_configuration() -> None:
    text = (CHART / "values.schema.json").read_text()
    assert text == chart_schema.written(text), "run: make docs"


def test_the_pods_read_the_configuration_as_it_was_given(home: Path) -> None:
    config = {
        "healthzBindAddress": "[::]:11256",
        "conntrack": {"min": 2_000_000},
        "kubeproxy": {"kubernetes": "always", "shutdownGrace": "60s"},
    }
    found = objects(home, config=config)
    file = home / "config.yaml"
    file.write_text(found["ConfigMap/kubeproxy"]["data"]["config.yaml"])
    loaded = load({"config": [str(file)]})
    assert loaded.warnings == ()
    assert loaded.configuration.conntrack.min == 2_000_000
    assert loaded.configuration.kubeproxy.shutdown_grace.seconds == 60
    assert loaded.configuration.metrics_bind_address.port == 10249, "fields that are not given are those of the base"
    for probe in ("startupProbe", "livenessProbe"):
        assert container(found)[probe]["httpGet"]["port"] == 11256


def test_a_changed_configuration_is_rolled_out(home: Path) -> None:
    def checksum(**values: Any) -> str:
        template = objects(home, **values)["DaemonSet/kubeproxy"]["spec"]["template"]
        return str(template["metadata"]["annotations"]["checksum/config"])

    assert checksum() == checksum()
    assert checksum() != checksum(config={"clusterCIDR": "10.1.0.0/16"})


def test_a_second_release_shares_nothing_with_the_first(home: Path) -> None:
    first, second = objects(home), objects(home, release="canary")
    assert "DaemonSet/canary-kubeproxy" in second
    assert first.keys().isdisjoint(second)
    selector = second["DaemonSet/canary-kubeproxy"]["spec"]["selector"]["matchLabels"]
    labels = first["DaemonSet/kubeproxy"]["spec"]["template"]["metadata"]["labels"]
    assert not selector.items() <= labels.items()
    assert labels["k8s-app"] == selector["k8s-app"] == "kubeproxy", "the job of both, for Prometheus"


def test_the_namespace_of_reports_stays_because_another_release_may_use_it(home: Path) -> None:
    first, second = objects(home, drainReports=True), objects(home, release="canary", drainReports=True)
    assert first.keys() & second.keys() == {f"Namespace/{REPORT_NAMESPACE}"}
    assert first[f"Namespace/{REPORT_NAMESPACE}"]["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    policy, binding = (second[f"{kind}/canary-kubeproxy-drain-reports"] for kind in POLICIES)
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]


@pytest.mark.parametrize(("version", "made"), [("v1.29.9", 0), ("v1.30.0", 2), ("v1.36.1-eks-1", 2)])
def test_the_admission_policy_is_for_servers_that_know_it(home: Path, version: str, made: int) -> None:
    done = render(home, VALUES | {"drainReports": True}, f"--kube-version={version}")
    assert sum(item["kind"] in POLICIES for item in yaml.safe_load_all(done.stdout) if item) == made


def test_runbooks_have_the_address_that_was_given(home: Path) -> None:
    found = objects(home, monitoring={"enabled": True, "runbooks": f"{RUNBOOKS}/", "labels": {"release": "prom"}})
    rule = found["PrometheusRule/kubeproxy"]
    assert rule["metadata"]["labels"]["release"] == "prom"
    links = [it["annotations"]["runbook_url"] for group in rule["spec"]["groups"] for it in group["rules"]]
    assert links
    assert all(link.startswith(f"{RUNBOOKS}/docs/operations.md#") for link in links)


def test_the_archive_holds_files_and_no_links(home: Path) -> None:
    """The chart's links lead to files beside it, which an archive must have in itself."""
    done = helm(home, "package", CHART, "--destination", home)
    assert done.returncode == 0, done.stderr
    (archive,) = home.glob("*.tgz")
    with tarfile.open(archive) as tar:
        assert all(member.isfile() for member in tar.getmembers())
    rendered = render(home, VALUES | {"monitoring": {"enabled": True}}, chart=archive)
    assert rendered.returncode == 0, rendered.stderr
    assert rendered.stdout == render(home, VALUES | {"monitoring": {"enabled": True}}).stdout
