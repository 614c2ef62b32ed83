"""A node: containerd and kubelet in network, mount, PID, UTS and cgroup namespaces of their own."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from tests.support.lab import Host
from tests.system.cluster import node_files
from tests.system.cluster.certificates import Authority
from tests.system.cluster.layout import DNS_SERVICE, Place
from tests.system.cluster.node_init import Init
from tests.system.cluster.programs import CGROUPS, CONTROLLERS, Programs
from tests.system.e2e.stage import until

ROOT: Final = Path(__file__).parents[3]
CPU_SHARES: Final = 16384
"""A node's weight in the scheduler: that of sixteen processes of usual niceness. By default all processes of a node
together have that of one, so kubelets and pods starve beside a machine's other work."""


class Node:
    """A running node, by the process id of the first process in its namespaces."""

    def __init__(self, place: Place, directory: Path) -> None:
        self.place = place
        self.name = place.name
        self.directory = directory / place.name
        self.pid_file = directory / "run" / f"{place.name}.pid"

    @property
    def pid(self) -> int:
        """The process id of its init, seen from this machine. AssertionError if the node is off."""
        assert self.pid_file.exists(), f"{self.name} is off"
        parent = int(self.pid_file.read_text())
        children = _children(parent)
        assert children, f"{self.name} is starting"
        return children[0]

    def enter(self, *command: str) -> list[str]:
        """A command line that runs a command on the node, as one of its processes."""
        return _joining(_groups(self), "nsenter", "-t", str(self.pid), "-n", "-m", "-p", "-u", "-C", "--", *command)

    def run(self, *command: str, check: bool = True) -> str:
        """Run a command on the node and return its output."""
        done = subprocess.run(self.enter(*command), capture_output=True, text=True, timeout=300, check=False)
        assert not check or done.returncode == 0, f"{self.name}: {' '.join(command)}: {done.stderr or done.stdout}"
        return done.stdout

    def power_cycle(self) -> float:
        """End everything on the node at once, as a lost power supply does, and wait until it is on again. Return when
        its last process had ended, by the monotonic clock."""
        before = self.pid
        os.kill(before, signal.SIGKILL)
        # The first process of a namespace ends when all others have.
        until(lambda: not Path(f"/proc/{before}").exists(), f"the end of {self.name}", within_s=60)
        ended = time.monotonic()
        until(lambda: self._is_another(before), f"{self.name} is on again", within_s=60)
        return ended

    def _is_another(self, before: int) -> bool:
        try:
            return self.pid != before
        except (AssertionError, OSError, ValueError):
            return False

    def pod_network(self, uid: str) -> str:
        """The path of the network namespace of a pod of this node, by the pod's UID."""
        found = until(lambda: _process_of_pod(uid), f"a process of pod {uid}", within_s=30)
        return f"/proc/{found}/ns/net"


def boot(node: Node, host: Host, programs: Programs, pki: Authority, pause: str) -> subprocess.Popen[Any]:
    """Start a node on a host without network state. The process that is returned ends with the node."""
    remove_groups(node)
    groups = _groups(node)
    for group in groups:
        _make_group(group)
    init = _init(node, programs, pki, pause)
    node.directory.mkdir(parents=True, exist_ok=True)
    file = node.directory / "init.json"
    file.write_text(json.dumps(asdict(init)))
    namespaces = ["unshare", "--mount", "--uts", "--pid", "--cgroup", "--fork", "--kill-child"]
    command = _joining(groups, *namespaces, sys.executable, "-m", "tests.system.cluster.node_init", str(file))
    with (node.directory / "init.log").open("ab") as log:
        return host.popen(command, stdout=log, stderr=log, cwd=ROOT)


def remove_groups(node: Node) -> None:
    """Remove the cgroups of a node that is off, once its last process has ended."""
    until(lambda: all(_remove_group(group) for group in _groups(node)), f"the end of the cgroups of {node.name}")


def _init(node: Node, programs: Programs, pki: Authority, pause: str) -> Init:
    place, kept = node.place, node.directory
    plugins = programs.plugins
    assert plugins is not None
    return Init(
        hostname=place.name,
        binds={
            "/var/lib/kubelet": str(kept / "kubelet"),
            "/var/lib/containerd": str(kept / "containerd"),
            "/var/lib/cni": str(kept / "cni"),
            "/var/log": str(kept / "log"),
            "/etc/cni/net.d": str(kept / "cni.conf"),
        },
        files={
            "/etc/cni/net.d/10-pods.conflist": node_files.cni(place),
            "/run/containerd.toml": node_files.containerd(pause, plugins),
            "/run/kubelet.json": node_files.kubelet(place, pki),
            node_files.RESOLVER: f"nameserver {DNS_SERVICE}\n",
        },
        images=[str(archive) for archive in programs.images],
        containerd=[programs["containerd"], "--config=/run/containerd.toml"],
        ctr=[programs["ctr"]],
        kubelet=[
            programs["kubelet"],
            "--config=/run/kubelet.json",
            f"--kubeconfig={pki.kubeconfig(place.name)}",
            f"--hostname-override={place.name}",
            f"--node-ip={place.address}",
            f"--node-labels=topology.kubernetes.io/zone={place.zone}",
            "--v=2",
        ],
        environment={"PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"},
    )


def _groups(node: Node) -> list[Path]:
    # By the directory of the cluster: another one may run on this machine.
    return [CGROUPS / name / "-".join(("kubeproxy", *node.directory.parts[1:])) for name in CONTROLLERS]


def _joining(groups: Sequence[Path], *command: str) -> list[str]:
    """A command line that runs a command in these cgroups. (nsenter joins the cgroup namespace alone.)"""
    join = f'for group in {shlex.join(map(str, groups))}; do echo $$ >"$group/cgroup.procs"; done; exec "$@"'
    return ["sh", "-c", join, "sh", *command]


def _make_group(group: Path) -> None:
    group.mkdir()
    if group.parent.name == "cpu":
        (group / "cpu.shares").write_text(str(CPU_SHARES))
    if group.parent.name == "cpuset":  # a new group has no processor and no memory
        for name in ("cpuset.cpus", "cpuset.mems"):
            (group / name).write_text((group.parent / name).read_text())


def _remove_group(group: Path) -> bool:
    """Return whether the group is gone; a group with a process in it stays."""
    for directory, _, _ in os.walk(group, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(directory)
    return not group.exists()


def _children(pid: int) -> Sequence[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _process_of_pod(uid: str) -> int | None:
    """A process with the pod's UID in the path of its cgroup."""
    for file in Path("/proc").glob("[0-9]*/cgroup"):
        with contextlib.suppress(OSError):  # the process has ended meanwhile
            if f"pod{uid}" in file.read_text():
                return int(file.parent.name)
    return None
