"""Detects other instances, by whether a control process or a worker of another run lives.

Each run has a name as long as one of its processes lives: an abstract Unix socket, bound by the control process and
inherited by its workers. It needs no file, belongs to the network namespace as the rules do, and ends with the last
process, however that process ends. Names of other users do not count (`kubeproxy.runtime.abstract_sockets`).

The control process signs the socket (`peer_capability.sign`). So a worker that has lost its control process can show
with it that it belongs to a run of kubeproxy. Nobody else can make such a socket, and it can be inherited or passed on,
but not copied.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

from kubeproxy.daemon.takeover import control_socket
from kubeproxy.runtime import peer_capability, privileges
from kubeproxy.runtime.abstract_sockets import listener, listening, users

PREFIX: Final = "kubeproxy/run/"
_CAPABILITIES: Final = "CapEff:"


@dataclass(frozen=True, slots=True)
class Instance:
    """A running control process of this host."""

    pid: int
    """The process id, or 0 if the process is in another PID namespace."""
    uid: int

    def __str__(self) -> str:
        return f"pid {self.pid or 'in another container'}, user {self.uid}"


def running(prefix: str = control_socket.PREFIX) -> list[Instance]:
    """Return the control processes of this host, of every user that may run one.

    Any user may bind such a name, so a name of another user counts only if its process has CAP_NET_ADMIN in this
    network namespace.
    """
    names = users(prefix)
    own = [Instance(listener(name), uid) for name, uid in names.items() if uid == os.geteuid()]
    return [*own, *of_other_users(prefix)]


def of_other_users(prefix: str = control_socket.PREFIX) -> list[Instance]:
    """Return the control processes of this host that belong to other users than this process does."""
    others = {name: uid for name, uid in users(prefix).items() if uid != os.geteuid()}
    instances = [Instance(listener(name), uid) for name, uid in others.items()]
    return [one for one in instances if one.pid and _may_administer(one.pid)]


def _may_administer(pid: int) -> bool:
    """Return whether a process has CAP_NET_ADMIN in our own user namespace. The process is in that namespace if its map
    of users equals ours."""
    process = Path("/proc") / str(pid)
    try:
        if (process / "uid_map").read_text() != Path("/proc/self/uid_map").read_text():
            return False
        lines = (process / "status").read_text().splitlines()
    except OSError:
        return False
    held = next((int(line.removeprefix(_CAPABILITIES), 16) for line in lines if line.startswith(_CAPABILITIES)), 0)
    return bool(held >> privileges.Capability.NET_ADMIN & 1)


def is_marker(descriptor: int, run: str) -> bool:
    """Return whether a received descriptor is the marker of a run, which only a process with CAP_NET_ADMIN can make.
    Close the descriptor."""
    return peer_capability.is_signed(descriptor, f"{PREFIX}{run}")


class InstanceMarker:
    """The name of this run."""

    def __init__(self, prefix: str = PREFIX) -> None:
        self._prefix = prefix
        self.run = uuid4().hex
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._name = f"{prefix}{self.run}"
        self._sock.bind(f"\0{self._name}")
        peer_capability.sign(self._sock)  # Without the capability no connection can move from its workers.
        # No process accepts at this socket. It listens because the kernel shows the user of listening sockets only.
        self._sock.listen(0)

    def fileno(self) -> int:
        """Return the descriptor that workers inherit."""
        return self._sock.fileno()

    def others(self) -> bool:
        """Return whether another run lives. Raise OSError when the kernel cannot list the names."""
        return bool(listening(self._prefix) - {self._name})

    def close(self) -> None:
        """Release the name. It lives on as long as workers have it."""
        self._sock.close()
