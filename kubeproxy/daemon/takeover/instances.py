"""Whether any process of an earlier run still serves: its control process, or a worker that has outlived it.

Each run holds a name for as long as one of its processes lives: an abstract Unix socket, bound by the control process
and inherited by its workers. It needs no file, belongs to the network namespace as the rules do, and goes with the last
of them, however they end. Names of other users do not count (`kubeproxy.runtime.unix_names`).
"""

from __future__ import annotations

import socket
from typing import Final
from uuid import uuid4

from kubeproxy.runtime.unix_names import listening

PREFIX: Final = "kubeproxy/run/"


class InstanceMarker:
    """This run's name."""

    def __init__(self, prefix: str = PREFIX) -> None:
        self._prefix = prefix
        self.run = uuid4().hex
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.bind(f"\0{prefix}{self.run}")
        self._sock.listen(0)  # nobody is answered: only listening sockets tell whose they are

    def fileno(self) -> int:
        """The descriptor that workers inherit."""
        return self._sock.fileno()

    def others(self) -> bool:
        """Whether another run lives. OSError when the kernel does not say."""
        return bool(listening(self._prefix) - {f"{self._prefix}{self.run}"})

    def close(self) -> None:
        """This process is gone; its workers may not be."""
        self._sock.close()
