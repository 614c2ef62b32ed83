"""`kubeproxy controller-manager`, in the place of kube-controller-manager's controllers of workloads or beside them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from tests.system.cluster.cluster import Cluster
from tests.system.cluster.control_plane import WORKLOADS
from tests.system.cluster.node import ROOT

RIGHTS: Final = ("service-account", "cluster-role", "cluster-role-binding", "role", "role-binding")
"""The files of a directory in deploy/ that give them."""
REPORTS: Final = ("namespace", "reader-role")
"""The files of the component drain-reports that the controller of readiness gates needs. The proxies of these tests are
administrators."""


@contextlib.contextmanager
def ours(cluster: Cluster) -> Iterator[None]:
    """Run the controllers of workloads, with the rights of `deploy/controllers` and no others."""
    cluster.restart_controllers(without=WORKLOADS)
    try:
        _grant(cluster, "deploy/controllers", RIGHTS, "-n", "kube-system")
        with _running(cluster, "kubeproxy-controllers"):
            yield
    finally:
        cluster.restart_controllers()


@contextlib.contextmanager
def readiness(cluster: Cluster) -> Iterator[None]:
    """Run the controller of readiness gates, with the rights of its component and no others."""
    _grant(cluster, "deploy/components/drain-reports", REPORTS)
    _grant(cluster, "deploy/components/readiness", (*RIGHTS, "reports-role-binding"))
    with _running(cluster, "kubeproxy-readiness", "--controllers=readiness", "--port=0"):
        yield


def _grant(cluster: Cluster, directory: str, files: Iterable[str], *where: str) -> None:
    for name in files:
        cluster.kubectl(*where, "apply", "-f", str(ROOT / directory / f"{name}.yaml"))


@contextlib.contextmanager
def _running(cluster: Cluster, account: str, *flags: str) -> Iterator[None]:
    """Run the program on the control plane's host, by a ServiceAccount of kube-system."""
    token = cluster.kubectl("-n", "kube-system", "create", "token", account, "--duration=12h")
    program = str(Path(sys.executable).with_name("kubeproxy"))
    config = cluster.pki.token_kubeconfig(account, token.strip())
    command = [program, "controller-manager", "--kubeconfig", config, *flags]
    with (cluster.directory / f"{account}.log").open("ab") as log:
        process = cluster.switch.popen(command, stdout=log, stderr=log, cwd=ROOT)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)
