"""`kubeproxy controller-manager` in the place of kube-controller-manager's controllers of workloads."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.system.cluster.cluster import Cluster
from tests.system.cluster.control_plane import WORKLOADS
from tests.system.cluster.node import ROOT

RIGHTS: Final = ("service-account", "cluster-role", "cluster-role-binding", "role", "role-binding")
"""The files of deploy/controllers that give them."""


@contextlib.contextmanager
def ours(cluster: Cluster) -> Iterator[None]:
    """Run it on the control plane's host, with the rights of `deploy/controllers` and no others."""
    cluster.restart_controllers(without=WORKLOADS)
    try:
        for name in RIGHTS:
            cluster.kubectl("-n", "kube-system", "apply", "-f", str(ROOT / f"deploy/controllers/{name}.yaml"))
        token = cluster.kubectl("-n", "kube-system", "create", "token", "kubeproxy-controllers", "--duration=12h")
        config = cluster.pki.token_kubeconfig("controllers", token.strip())
        program = str(Path(sys.executable).with_name("kubeproxy"))
        command = [program, "controller-manager", "--kubeconfig", config]
        with (cluster.directory / "controllers.log").open("ab") as log:
            process = cluster.switch.popen(command, stdout=log, stderr=log, cwd=ROOT)
        try:
            yield
        finally:
            process.terminate()
            process.wait(60)
    finally:
        cluster.restart_controllers()
