"""docs/migration.md on a cluster, step by step against a real API server: which node has which proxy.

The real DaemonSet controller makes the pods. There are no kubelets: one test runs what a pod's objects say. Skipped
unless KUBERNETES_BINARIES names a directory with the programs (docs/reliability.md).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubeproxy.model.drain_report import REPORT_NAMESPACE
from tests.support.lab import Host
from tests.system.deploy.manifests import DEPLOY
from tests.system.deploy.schema import faults
from tests.system.e2e.control_plane import ADDRESS, BINARIES, RealCluster, binaries
from tests.system.e2e.stage import Object, until

pytestmark = [
    pytest.mark.netns,
    pytest.mark.long,
    pytest.mark.timeout(240),
    pytest.mark.skipif(binaries() is None, reason=f"{BINARIES} is not set: no real API server to start"),
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not here (make test fetches it)"),
]

MIGRATION = DEPLOY / "migration"
NODES = ("n1", "n2", "n3")
NAMESPACE = "kube-system"
KUBE_PROXY: Object = {
    "apiVersion": "apps/v1",
    "kind": "DaemonSet",
    "metadata": {"name": "kube-proxy", "namespace": NAMESPACE, "labels": {"k8s-app": "kube-proxy"}},
    "spec": {
        "selector": {"matchLabels": {"k8s-app": "kube-proxy"}},
        "updateStrategy": {"type": "RollingUpdate"},
        "template": {
            "metadata": {"labels": {"k8s-app": "kube-proxy"}},
            "spec": {
                "hostNetwork": True,
                "nodeSelector": {"kubernetes.io/os": "linux"},
                "tolerations": [{"operator": "Exists"}],
                "containers": [
                    {
                        "name": "kube-proxy",
                        "image": "registry.k8s.io/kube-proxy:v1.20.2",
                        "command": ["/usr/local/bin/kube-proxy", "--config=/var/lib/kube-proxy/config.conf"],
                    }
                ],
            },
        },
    },
}
"""kubeadm's, as far as the choice of nodes goes."""


class Client:
    """kubectl on the host of the control plane, as cluster administrator."""

    def __init__(self, cluster: RealCluster, directory: Path) -> None:
        self.cluster = cluster
        self.directory = directory
        """The state of the cluster, its certificates among it."""
        self._kubeconfig = directory / "admin.conf"

    def run(self, *args: str | Path, text: str | None = None) -> str:
        """The output of a command that must succeed; `text` is its input."""
        command = ["kubectl", f"--kubeconfig={self._kubeconfig}", *map(str, args)]
        done = self.cluster.host.run(command, input=text, check=False)
        assert done.returncode == 0, f"{args}: {done.stdout}{done.stderr}"
        return str(done.stdout)

    def get(self, path: str) -> Any:
        """An object or a collection of the API server."""
        return self.cluster.ask("GET", path)

    def proxies(self) -> dict[str, set[str]]:
        """The names of the DaemonSets with a pod for each node."""
        found: dict[str, set[str]] = {node: set() for node in NODES}
        for pod in self.cluster.ask("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]:
            if "deletionTimestamp" in pod["metadata"]:
                continue
            terms = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            for term in terms["nodeSelectorTerms"]:
                for field in term.get("matchFields", []):
                    found[field["values"][0]].add(pod["metadata"]["labels"]["k8s-app"])
        return found

    def await_proxies(self, **wanted: str) -> None:
        """Wait until each node has the pods of exactly these; an empty text is none."""
        expected = {node: {name} - {""} for node, name in wanted.items()}
        until(lambda: self.proxies() == expected, f"the nodes have {expected}", within_s=60)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A control plane with three nodes and kubeadm's kube-proxy."""
    directory = tmp_path_factory.mktemp("cluster")
    programs = binaries()
    assert programs is not None
    with Host("control-plane") as host:
        host.run(["ip", "link", "set", "lo", "up"])
        host.run(["ip", "address", "add", f"{ADDRESS[0]}/32", "dev", "lo"])
        with RealCluster(host, directory, programs, "--allow-privileged=true") as cluster:
            for name in NODES:
                labels = {"kubernetes.io/os": "linux", "kubernetes.io/hostname": name}
                cluster.put({"kind": "Node", "metadata": {"name": name, "labels": labels}})
            cluster.put({"kind": "ServiceAccount", "metadata": {"name": "default", "namespace": NAMESPACE}})
            yield Client(cluster, directory)


@pytest.fixture
def overlay(tmp_path: Path) -> Path:
    """The copy of the example that docs/install.md asks for, edited as its comments say."""
    deploy = tmp_path / "deploy"
    shutil.copytree(DEPLOY, deploy)
    mine = deploy / "mine"
    (deploy / "example").rename(mine)
    address = mine / "api-server.yaml"
    address.write_text(address.read_text().replace("control-plane.example.com", ADDRESS[0]))
    return mine


def choose(overlay: Path, *components: str) -> None:
    """Name these components in the overlay, and no others."""
    path = overlay / "kustomization.yaml"
    kustomization = yaml.safe_load(path.read_text())
    kustomization["components"] = [f"../components/{name}" for name in components]
    path.write_text(json.dumps(kustomization))


def test_the_pods_of_the_migration_are_understood(client: Client) -> None:
    for name in ("kube-proxy-cleanup", "kubeproxy-cleanup"):
        text = (MIGRATION / f"{name}.yaml").read_text().replace("NODE", "n1").replace("IMAGE", "registry/image:1")
        assert list(faults(yaml.safe_load(text), "V1Pod")) == []
        client.run("apply", "--dry-run=server", "-f", "-", text=text)


def test_an_old_server_needs_the_component_for_it(client: Client, overlay: Path) -> None:
    with pytest.raises(AssertionError, match='unknown field "maxSurge"'):
        client.run("apply", "--dry-run=server", "-k", overlay)
    choose(overlay, "before-1.22")
    client.run("apply", "--dry-run=server", "-k", overlay)


@pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not here (make test fetches it)")
def test_the_server_takes_what_the_chart_makes(client: Client, tmp_path: Path) -> None:
    """Rendered and applied, because Helm itself refuses servers before 1.22."""
    values = {
        "image": {"repository": "registry.example.com/kubeproxy"},
        "apiServer": {"host": ADDRESS[0]},
        "updateStrategy": {"rollingUpdate": {"maxSurge": None, "maxUnavailable": 1}},
        "drainReports": True,
        "legacyTables": True,
    }
    file = tmp_path / "values.yaml"
    file.write_text(json.dumps(values))
    own = {name: str(tmp_path / name) for name in ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")}
    command = ["helm", "template", "kubeproxy", str(DEPLOY / "chart"), f"--namespace={NAMESPACE}", f"--values={file}"]
    command.append("--kube-version=v1.22.0")  # without the admission policy
    client.run("create", "namespace", REPORT_NAMESPACE)  # in a dry run the chart's own is not there for what is in it
    rendered = subprocess.run(command, env=os.environ | own, capture_output=True, text=True, check=True, timeout=60)
    applied = client.run("apply", "--dry-run=server", "-f", "-", text=rendered.stdout)
    assert "daemonset.apps/kubeproxy created (server dry run)" in applied


def test_from_one_node_to_all_and_back(client: Client, overlay: Path) -> None:
    client.run("apply", "-f", "-", text=json.dumps(KUBE_PROXY))
    client.await_proxies(n1="kube-proxy", n2="kube-proxy", n3="kube-proxy")

    # One node: kube-proxy leaves it before kubeproxy comes.
    client.run("label", "node", "n1", "service-proxy=kubeproxy")
    beside = MIGRATION / "kube-proxy-beside.yaml"
    client.run("-n", NAMESPACE, "patch", "daemonset", "kube-proxy", "--patch-file", beside)
    client.await_proxies(n1="", n2="kube-proxy", n3="kube-proxy")
    choose(overlay, "canary", "before-1.22")
    client.run("apply", "-k", overlay)
    client.await_proxies(n1="kubeproxy", n2="kube-proxy", n3="kube-proxy")
    assert "kubeproxy" in client.run("-n", NAMESPACE, "get", "daemonset", "kubeproxy", "-o", "name")

    # Another one, and back from it: the label decides.
    client.run("label", "node", "n2", "service-proxy=kubeproxy")
    client.await_proxies(n1="kubeproxy", n2="kubeproxy", n3="kube-proxy")
    client.run("label", "node", "n2", "service-proxy-")
    client.await_proxies(n1="kubeproxy", n2="kube-proxy", n3="kube-proxy")

    # All nodes: kube-proxy off, then kubeproxy without the component.
    off = MIGRATION / "kube-proxy-off.yaml"
    client.run("-n", NAMESPACE, "patch", "daemonset", "kube-proxy", "--patch-file", off)
    client.await_proxies(n1="kubeproxy", n2="", n3="")
    choose(overlay, "before-1.22")
    client.run("apply", "-k", overlay)
    client.await_proxies(n1="kubeproxy", n2="kubeproxy", n3="kubeproxy")

    # The way back.
    client.run("delete", "-k", overlay)
    client.await_proxies(n1="", n2="", n3="")
    back = json.dumps({"spec": {"template": {"spec": {"nodeSelector": {"service-proxy": None}, "affinity": None}}}})
    client.run("-n", NAMESPACE, "patch", "daemonset", "kube-proxy", "-p", back)
    client.await_proxies(n1="kube-proxy", n2="kube-proxy", n3="kube-proxy")


POD = """
mount -t tmpfs tmpfs /run
mkdir -p /run/secrets/kubernetes.io
ln -s "$1" /run/secrets/kubernetes.io/serviceaccount
shift
exec "$@"
"""
"""Gives a container's process its ServiceAccount, as the kubelet does, in a mount namespace of its own."""


def test_a_pod_serves_with_nothing_but_what_its_objects_say(client: Client, overlay: Path, tmp_path: Path) -> None:
    """Its command, environment, ConfigMap, and ServiceAccount with the rights that are bound to it."""
    choose(overlay, "before-1.22")
    client.run("apply", "-k", overlay)
    apps = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/kubeproxy"
    pod = client.get(apps)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (config,) = (volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume)
    (tmp_path / "config.yaml").write_text(
        client.get(f"/api/v1/namespaces/{NAMESPACE}/configmaps/{config}")["data"]["config.yaml"]
    )
    account = tmp_path / "account"
    account.mkdir()
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{pod['serviceAccountName']}/token"
    token = client.cluster.ask("POST", path, {"spec": {"expirationSeconds": 3600}})
    (account / "token").write_text(token["status"]["token"])
    (account / "namespace").write_text(NAMESPACE)
    shutil.copy(client.directory / "ca.crt", account)
    environment = {it["name"]: it.get("value", "n1") for it in container["env"]}
    arguments = [
        argument.replace("/etc/kubeproxy", str(tmp_path)).replace("$(NODE_NAME)", environment["NODE_NAME"])
        for argument in container["args"]
    ]
    program = str(Path(sys.executable).with_name("kubeproxy"))
    host = client.cluster.host
    host.ip(
        "link add out type veth peer name far", "address add 10.9.0.1/24 dev out", "link set out up", "link set far up"
    )
    host.ip("route add default via 10.9.0.2")
    log = tmp_path / "log"
    with log.open("w") as output:
        process = host.popen(
            [
                "unshare",
                "--mount",
                "--propagation=private",
                "bash",
                "-c",
                POD,
                "pod",
                str(account),
                program,
                *arguments,
            ],
            env={**os.environ, **environment},
            stdout=output,
            stderr=output,
        )
    try:
        ask = ["curl", "--silent", "--insecure", "--max-time", "5", "https://10.96.0.1/readyz"]
        until(lambda: host.run(ask, check=False).stdout == "ok", "the Service kubernetes is served", within_s=60)
        ready = host.run([program, "healthcheck"], check=False)
        assert ready.returncode == 0, ready.stdout
        events = client.get("/api/v1/namespaces/default/events")["items"]
        assert [event for event in events if event["reason"] == "Starting"], "it may write Events"
    except AssertionError:
        print(log.read_text())
        raise
    finally:
        process.terminate()
        process.wait(60)
        client.run("delete", "-k", overlay)
    assert "orbidden" not in log.read_text()
    assert " error " not in log.read_text()


def test_kubeadm_may_apply_its_kube_proxy_again(client: Client) -> None:
    """`kubeadm upgrade` writes kube-proxy's DaemonSet anew: what the patch added is in no last-applied state of it, and
    an update by the whole object removes it."""
    off = MIGRATION / "kube-proxy-off.yaml"
    client.run("apply", "-f", "-", text=json.dumps(KUBE_PROXY))
    client.run("-n", NAMESPACE, "patch", "daemonset", "kube-proxy", "--patch-file", off)
    client.await_proxies(n1="", n2="", n3="")
    client.run("replace", "-f", "-", text=json.dumps(KUBE_PROXY))
    client.await_proxies(n1="kube-proxy", n2="kube-proxy", n3="kube-proxy")
