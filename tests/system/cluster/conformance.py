"""Kubernetes' own e2e tests, run against the cluster."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import Final

from tests.system.cluster import table
from tests.system.cluster.cluster import Cluster
from tests.system.cluster.layout import SERVER
from tests.system.cluster.table import Outcome

TIMEOUT_S: Final = 3 * 3600


@dataclass(frozen=True, slots=True)
class Suite:
    """A choice of tests, by regular expressions of their names."""

    focus: str
    skip: str
    processes: int = 4


_NOT_HERE: Final = r"\[Feature:|\[Disruptive\]|\[Serial\]"
SERVICES: Final = Suite(
    r"\[sig-network\] (Services|Networking|EndpointSlice|EndpointSliceMirroring|HostPort|Conntrack|KubeProxy|Proxy|"
    r"Traffic Distribution|Topology Hints|Service endpoints latency|Endpoints|Connectivity|NoSNAT)",
    # No load balancer of a cloud, no second family, no SCTP, no internet, and a DNS server that is not the one tested.
    rf"{_NOT_HERE}|LoadBalancers|DNS|IPv6|SCTP|Internet",
)
WORKLOADS: Final = Suite(r"\[sig-apps\] (Deployment|ReplicaSet|ReplicationController)", _NOT_HERE)
BY_DESIGN: Final = "Services should preserve source pod IP for traffic thru service cluster IP [LinuxOnly]"
"""A userspace proxy dials the endpoint itself, so it cannot keep the address (README)."""


def run(cluster: Cluster, label: str, suite: Suite) -> dict[str, Outcome]:
    """Run tests and return their outcomes; log and report stay in the directory `e2e/LABEL` of the cluster."""
    directory = cluster.directory / "e2e" / label
    directory.mkdir(parents=True, exist_ok=True)
    report = directory / "report.json"
    report.unlink(missing_ok=True)
    command = [
        cluster.programs["ginkgo"],
        f"--procs={suite.processes}",
        "--no-color",
        "-v",
        f"--focus={suite.focus}",
        f"--skip={suite.skip}",
        f"--timeout={TIMEOUT_S}s",
        f"--output-dir={directory}",
        "--json-report=report.json",
        cluster.programs["e2e.test"],
        "--",
        "--provider=skeleton",
        f"--kubeconfig={cluster.pki.kubeconfig('admin')}",
        f"--host={SERVER}",
        "--node-os-distro=debian",
        "--allowed-not-ready-nodes=0",
        f"--num-nodes={len(cluster.nodes)}",
        f"--report-dir={directory}",
    ]
    with (directory / "log.txt").open("wb") as log:
        process = cluster.switch.popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=directory)
        process.wait(TIMEOUT_S)
    assert report.exists(), f"the runner made no report: {directory}/log.txt"
    return table.read(report)
