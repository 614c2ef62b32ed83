"""Detects whether a control process or a worker of another run lives.

Each run has a marker: an abstract Unix socket that the control process binds and its workers inherit. Its name exists
as long as one of these processes lives. The name needs no file, and belongs to the network namespace, as the rules do.
Names of other users are ignored (`kubeproxy.runtime.abstract_sockets`).

The control process signs the socket (`peer_capability.sign`). So an orphaned worker can show the socket to prove that
it belongs to a run of kubeproxy. Nobody else can make such a socket; it can only be inherited or passed on.
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
    """A running control process on this host."""

    pid: int
    """The process id, or 0 if the process is in another PID namespace."""
    uid: int

    def __str__(self) -> str:
        return f"pid {self.pid or 'in another container'}, user {self.uid}"


def running(prefix: str = control_socket.PREFIX) -> list[Instance]:
    """Return the control processes on this host, of all users.

    Any user may bind such a name. So a name of another user counts only if its process has CAP_NET_ADMIN in this
    network namespace.
    """
    names = users(prefix)
    own = [Instance(listener(name), uid) for name, uid in names.items() if uid == os.geteuid()]
    return [*own, *of_other_users(prefix)]


def of_other_users(prefix: str = control_socket.PREFIX) -> list[Instance]:
    """Return the control processes on this host that another user runs."""
    others = {name: uid for name, uid in users(prefix).items() if uid != os.geteuid()}
    instances = [Instance(listener(name), uid) for name, uid in others.items()]
    return [one for one in instances if one.pid and _may_administer(one.pid)]


def _may_administer(pid: int) -> bool:
    """Return whether a process has CAP_NET_ADMIN in our own user namespace. If its map of users equals ours, the
    process is in the same user namespace."""
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
    """Return whether a received descriptor is the marker of a run, which only a process with CAP_NET_ADMIN can have
    made. The descriptor is closed."""
    return peer_capability.is_signed(descriptor, f"{PREFIX}{run}")


class InstanceMarker:
    """The marker of this run (see the module)."""

    def __init__(self, prefix: str = PREFIX) -> None:
        self._prefix = prefix
        self.run = uuid4().hex
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._name = f"{prefix}{self.run}"
        self._sock.bind(f"\0{self._name}")
        # Without the capability this fails, and connections of the workers cannot move.
        peer_capability.sign(self._sock)
        # Nothing is accepted on this socket. It listens only because the kernel shows the user of listening sockets,
        # but not of others.
        self._sock.listen(0)

    def fileno(self) -> int:
        """Return the descriptor that workers inherit."""
        return self._sock.fileno()

    def others(self) -> bool:
        """Return whether another run lives. Raise OSError if the kernel cannot list the names."""
        return bool(listening(self._prefix) - {self._name})

    def close(self) -> None:
        """Close the socket. Its name exists as long as workers hold the socket."""
        self._sock.close()
