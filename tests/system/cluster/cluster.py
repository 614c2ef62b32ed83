"""A running cluster: what tests do with it, whichever process has made it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.support.lab import Host
from tests.system.cluster.certificates import Authority
from tests.system.cluster.layout import places
from tests.system.cluster.node import Node
from tests.system.cluster.programs import Programs

Object = dict[str, Any]
START_S: Final = 300.0
"""How long a node may take until it is ready; most of it is the import of images."""


class Cluster:
    """Its control plane and its nodes; it has no Service proxy by itself."""

    def __init__(self, directory: Path, programs: Programs, count: int, switch: Host, outside: Host) -> None:
        self.directory = directory
        self.programs = programs
        self.switch = switch
        self.outside = outside
        self.pki = Authority(directory / "pki")
        self.without_controllers = directory / "run/without.json"
        """The controllers that kube-controller-manager is started without."""
        self.nodes = [Node(place, directory) for place in places(count)]

    def kubectl(self, *arguments: str, input: str | None = None, check: bool = True, within_s: float = 300) -> str:
        """Run kubectl as administrator and return its output. AssertionError, with that output, if it fails."""
        command = [self.programs["kubectl"], "--kubeconfig", self.pki.kubeconfig("admin"), *arguments]
        stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
        process = self.switch.popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        output, _ = process.communicate(input, timeout=within_s)
        assert not check or process.returncode == 0, f"kubectl {' '.join(arguments)}: {output}"
        return str(output)

    def get(self, *arguments: str) -> Any:
        """What `kubectl get` returns, decoded."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def apply(self, *objects: Object) -> None:
        """Create or change objects."""
        self.kubectl("apply", "-f", "-", input="\n---\n".join(map(json.dumps, objects)))

    def restart_controllers(self, without: Sequence[str] = ()) -> None:
        """Restart kube-controller-manager without the named controllers."""
        self.without_controllers.write_text(json.dumps(list(without)))
        os.kill(int((self.directory / "run/kube-controller-manager.pid").read_text()), signal.SIGTERM)

    def load_image(self, archive: Path) -> None:
        """Import an archive of images into every node, where it outlives reboots."""
        for node in self.nodes:
            node.run(self.programs["ctr"], "-n", "k8s.io", "images", "import", str(archive.absolute()))

    def await_ready(self) -> None:
        """Wait until all nodes are ready."""
        self.kubectl("wait", "--for=condition=Ready", "nodes", "--all", f"--timeout={START_S:.0f}s", within_s=START_S)


def joined(directory: Path, programs: Programs) -> Cluster:
    """A cluster that another process has made in `directory`."""
    made = json.loads((directory / "cluster.json").read_text())
    switch, outside = (Host.at(f"/proc/{made['process']}/fd/{made[name]}", name) for name in ("switch", "outside"))
    return Cluster(directory, programs, made["nodes"], switch, outside)
