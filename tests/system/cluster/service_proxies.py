"""The Service proxies of the cluster: the project's DaemonSet, installed as its documents say, and kube-proxy."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from tests.support.lab import Host
from tests.system.cluster.cluster import Cluster
from tests.system.cluster.images import REPOSITORY
from tests.system.cluster.layout import API_PORT, PODS, SWITCH
from tests.system.cluster.node import ROOT

NAMESPACE: Final = "kube-system"
ROLLOUT_S: Final = 180


class Ours:
    """The DaemonSet of this project on a cluster whose nodes have its images."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def install_overlay(self, version: str, config: Mapping[str, Any]) -> None:
        """Install by a copy of `deploy/example`, edited as its comments say. `config` is added to `kubeproxy:`."""
        deploy = self.cluster.directory / "deploy"
        shutil.rmtree(deploy, ignore_errors=True)
        shutil.copytree(ROOT / "deploy", deploy)
        overlay = deploy / "example"
        edit(overlay / "api-server.yaml", {"control-plane.example.com": SWITCH, '"6443"': f'"{API_PORT}"'})
        edit(overlay / "kustomization.yaml", {"newTag: 0.1.0": f"newTag: {version}"})
        file = overlay / "config.yaml"
        file.write_text(json.dumps(merged(yaml.safe_load(file.read_text()), {"kubeproxy": config})))
        self.cluster.kubectl("apply", "-k", str(overlay))
        self.await_rollout()

    def install_chart(self, version: str, config: Mapping[str, Any]) -> None:
        """Install what `helm template` renders of the chart."""
        values = {
            "image": {"repository": REPOSITORY, "tag": version},
            "apiServer": {"host": SWITCH, "port": API_PORT},
            "config": {"kubeproxy": dict(config)},
        }
        file = self.cluster.directory / "values.yaml"
        file.write_text(json.dumps(values))
        home = {name: str(self.cluster.directory / name) for name in ("HELM_CACHE_HOME", "HELM_CONFIG_HOME")}
        path = os.pathsep.join([str(ROOT / ".venv/programs"), os.environ.get("PATH", "")])
        command = [
            "helm",
            "template",
            "kubeproxy",
            str(ROOT / "deploy/chart"),
            f"--namespace={NAMESPACE}",
            f"--values={file}",
        ]
        environment = {**os.environ, **home, "PATH": path}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        self.cluster.kubectl("apply", f"--namespace={NAMESPACE}", "-f", "-", input=done.stdout)
        self.await_rollout()

    def set_image(self, version: str) -> None:
        """Change the image of the DaemonSet, which rolls it out."""
        self._kubectl("set", "image", "ds/kubeproxy", f"kubeproxy={REPOSITORY}:{version}")

    def await_rollout(self) -> None:
        """Wait until every node has a ready pod of the newest template, and no other."""
        self._kubectl("rollout", "status", "ds/kubeproxy", f"--timeout={ROLLOUT_S}s")

    def pod_on(self, node: str) -> str:
        """The name of the running pod on a node."""
        selector = ("-l", "k8s-app=kubeproxy", f"--field-selector=spec.nodeName={node},status.phase=Running")
        items = self.cluster.get("-n", NAMESPACE, "pods", *selector)["items"]
        living = [it["metadata"]["name"] for it in items if "deletionTimestamp" not in it["metadata"]]
        assert living, f"no pod of ours on {node}"
        return str(living[0])

    def log_on(self, node: str) -> str:
        """The log of the running pod on a node."""
        return self._kubectl("logs", self.pod_on(node))

    def uninstall(self) -> None:
        """Remove the objects, and the rules that the nodes keep, as docs/install.md says."""
        for kind in ("ds", "cm", "sa"):
            self._kubectl("delete", kind, "-l", "app.kubernetes.io/name=kubeproxy", "--wait")
        self.cluster.kubectl(
            "delete", "clusterrole,clusterrolebinding", "-l", "app.kubernetes.io/name=kubeproxy", "--wait"
        )
        self._kubectl("wait", "--for=delete", "pod", "-l", "k8s-app=kubeproxy", "--timeout=90s")
        for node in self.cluster.nodes:
            node.run("nft", "delete", "table", "inet", "kubeproxy", check=False)

    def _kubectl(self, *arguments: str) -> str:
        return self.cluster.kubectl("-n", NAMESPACE, *arguments)


@contextlib.contextmanager
def kube_proxy(cluster: Cluster) -> Iterator[None]:
    """Run kube-proxy in its nftables mode on every node, as a process in the node's namespaces."""
    program = cluster.programs["kube-proxy"]
    with contextlib.ExitStack() as stack:
        for node in cluster.nodes:
            arguments = (
                "--proxy-mode=nftables",
                f"--cluster-cidr={PODS}",
                f"--hostname-override={node.name}",
                f"--kubeconfig={cluster.pki.kubeconfig('kube-proxy')}",
                "--conntrack-max-per-core=0",  # the machine's limit is no node's own
                "--v=2",
            )
            host = stack.enter_context(Host.at(f"/proc/{node.pid}/ns/net", node.name))
            stack.callback(node.run, program, "--cleanup", check=False)
            with (cluster.directory / f"kube-proxy-{node.name}.log").open("ab") as log:
                host.popen(node.enter(program, *arguments), stdout=log, stderr=log)
        yield


def edit(file: Path, replacements: Mapping[str, str]) -> None:
    """Replace texts in a file. AssertionError if one of them is not there."""
    text = file.read_text()
    for old, new in replacements.items():
        assert old in text, f"{file} has no {old!r} to edit"
        text = text.replace(old, new)
    file.write_text(text)


def merged(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the fields of `more`, on every level."""
    found = dict(base)
    for key, value in more.items():
        below = found.get(key)
        found[key] = merged(below, value) if isinstance(below, dict) and isinstance(value, Mapping) else value
    return found
