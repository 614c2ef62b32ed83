"""The programs of a cluster: Kubernetes' from KUBERNETES_BINARIES, the container runtime from the system."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from tests.system.e2e.control_plane import BINARIES, binaries

KUBERNETES: Final = (
    *("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet"),
    *("kube-proxy", "e2e.test", "ginkgo"),
)
"""Looked up in the directory first, then in PATH."""
SYSTEM: Final = (
    *("containerd", "ctr", "runc", "conntrack", "nft", "iptables", "mount", "nsenter", "openssl", "setpriv", "unshare"),
)
PLUGINS: Final = ("bridge", "host-local", "loopback", "portmap")
PLUGIN_DIRECTORIES: Final = (Path("/opt/cni/bin"), Path("/usr/lib/cni"))
CONTROLLERS: Final = ("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd")
"""Every node has a group of its own in each of these hierarchies."""
CGROUPS: Final = Path("/sys/fs/cgroup")


class Programs:
    """The programs, found in `directory` or on this system."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._path = os.pathsep.join([str(directory), os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])

    def __getitem__(self, name: str) -> str:
        found = self.find(name)
        assert found is not None, f"{name} is not in {self.directory} and not in PATH"
        return found

    def find(self, name: str) -> str | None:
        """The path of a program, or None."""
        return shutil.which(name, path=self._path)

    @property
    def plugins(self) -> Path | None:
        """The directory of the CNI plugins, or None."""
        for directory in PLUGIN_DIRECTORIES:
            if all((directory / name).exists() for name in PLUGINS):
                return directory
        return None

    @property
    def images(self) -> tuple[Path, ...]:
        """The archives that every node imports: the nodes reach no registry."""
        return tuple(sorted((self.directory / "images").glob("*.tar")))


def missing(directory: Path | None, cgroups: Path = CGROUPS) -> str | None:
    """Return why no cluster can be made of the programs in `directory`, or None if one can."""
    if directory is None:
        return f"{BINARIES} is not set: no Kubernetes to start (docs/conformance.md)"
    programs = Programs(directory)
    if lacking := [name for name in KUBERNETES if programs.find(name) is None]:
        return f"{BINARIES}={directory} lacks {', '.join(lacking)} (docs/conformance.md)"
    if lacking := [name for name in SYSTEM if programs.find(name) is None]:
        return f"this system lacks {', '.join(lacking)} (docs/conformance.md)"
    if programs.plugins is None:
        return f"no CNI plugins ({', '.join(PLUGINS)}) in {' or '.join(map(str, PLUGIN_DIRECTORIES))}"
    if not programs.images:
        return f"no archives of images in {directory}/images (docs/conformance.md)"
    if lacking := [name for name in CONTROLLERS if not (cgroups / name).is_dir()]:
        return f"no cgroup v1 hierarchy of {', '.join(lacking)} at {cgroups}: nodes get groups of their own there"
    return None


def why_not() -> str | None:
    """Return why this machine cannot make a cluster, or None if it can."""
    return missing(binaries())


def found() -> Programs:
    """The programs that KUBERNETES_BINARIES names; `why_not` has said that they are here."""
    directory = binaries()
    assert directory is not None
    return Programs(directory.absolute())
