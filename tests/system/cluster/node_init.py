"""The first process of a node: it mounts, then starts containerd and kubelet, and starts them again when they end.

`python -m tests.system.cluster.node_init FILE`, where the file has an `Init` as JSON.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.system.cluster.programs import CGROUPS, CONTROLLERS

TUNABLES: Final = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}
"""Sysctls that a kubelet sets for the whole machine, unless it finds them so. A node finds files with these values."""
PAUSE_S: Final = 1.0
"""Between the end of a program and its next start."""


@dataclass(frozen=True, slots=True)
class Init:
    """What a node mounts, writes and starts."""

    hostname: str
    binds: Mapping[str, str]
    """Directories of the node and where their contents are kept, which outlives a reboot."""
    files: Mapping[str, str]
    images: Sequence[str]
    """Archives to import."""
    containerd: Sequence[str]
    ctr: Sequence[str]
    kubelet: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


def main(file: str) -> None:
    """Become the node."""
    init = Init(**json.loads(Path(file).read_text()))
    os.environ.update(init.environment)
    socket.sethostname(init.hostname)
    _mount(init.binds)
    for path, text in init.files.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)
    running = {_start(init.containerd): init.containerd}
    while subprocess.run([*init.ctr, "version"], capture_output=True, check=False).returncode:
        time.sleep(0.2)
    for image in init.images:
        _run(*init.ctr, "-n", "k8s.io", "images", "import", image)
    running[_start(init.kubelet)] = init.kubelet
    # Shims of containers are children of this process, too, once their starter has ended.
    while True:
        ended, _ = os.waitpid(-1, 0)
        if (command := running.pop(ended, None)) is not None:
            time.sleep(PAUSE_S)
            running[_start(command)] = command


def _mount(binds: Mapping[str, str]) -> None:
    """Give the node file systems of its own. The kubelet wants mounts to be shared with containers."""
    _run("mount", "--make-rprivate", "/")
    _run("mount", "--make-rshared", "/")
    _run("mount", "-t", "proc", "proc", "/proc")
    subprocess.run(["umount", "-l", "/sys"], check=False, capture_output=True)
    _run("mount", "-t", "sysfs", "sysfs", "/sys")
    _run("mount", "-t", "tmpfs", "tmpfs", str(CGROUPS))
    for name in CONTROLLERS:
        options = "none,name=systemd" if name == "systemd" else name
        (CGROUPS / name).mkdir()
        _run("mount", "-t", "cgroup", "-o", options, "cgroup", str(CGROUPS / name))
    for directory in ("/run", "/dev/shm"):
        _run("mount", "-t", "tmpfs", "tmpfs", directory)
    for name, value in TUNABLES.items():
        file = Path("/run") / f"tunable-{name.replace('/', '-')}"
        file.write_text(f"{value}\n")
        _run("mount", "--bind", str(file), f"/proc/sys/{name}")
    for target, source in binds.items():
        for directory in (source, target):
            Path(directory).mkdir(parents=True, exist_ok=True)
        _run("mount", "--bind", source, target)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}: {done.stderr or done.stdout}")


def _start(command: Sequence[str]) -> int:
    """Start a program and return its process id. Its output is appended to a log that outlives the node."""
    with open(f"/var/log/{Path(command[0]).name}.log", "ab") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log).pid


if __name__ == "__main__":
    main(sys.argv[1])
