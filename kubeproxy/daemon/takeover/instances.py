"""Detects other instances: whether a control process or a worker of another run lives.

Each run has a name for as long as one of its processes lives: an abstract Unix socket, bound by the control process and
inherited by its workers. It needs no file, belongs to the network namespace as the rules do, and ends with the last
process, however that ends. Names of other users do not count (`kubeproxy.runtime.abstract_sockets`).
"""

from __future__ import annotations

import socket
from typing import Final
from uuid import uuid4

from kubeproxy.runtime.abstract_sockets import listening

PREFIX: Final = "kubeproxy/run/"


class InstanceMarker:
    """The name of this run."""

    def __init__(self, prefix: str = PREFIX) -> None:
        self._prefix = prefix
        self.run = uuid4().hex
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.bind(f"\0{prefix}{self.run}")
        self._sock.listen(0)  # no process accepts: the kernel shows the user of listening sockets only

    def fileno(self) -> int:
        """The descriptor that workers inherit."""
        return self._sock.fileno()

    def others(self) -> bool:
        """Whether another run lives. OSError when the kernel cannot list the names."""
        return bool(listening(self._prefix) - {f"{self._prefix}{self.run}"})

    def close(self) -> None:
        """Release the name; it lives on while workers do."""
        self._sock.close()
