"""Whether anybody of an earlier run still serves: its control process, or a worker that has outlived it.

Each run holds a name for as long as one of its processes lives: an abstract Unix socket, bound by the control process
and inherited by its workers. It needs no file, belongs to the network namespace as the rules do, and goes with the last
of them, however they end.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from uuid import uuid4

PREFIX: Final = "kubeproxy/run/"
NAMES: Final = Path("/proc/self/net/unix")


class InstanceMarker:
    """This run's name."""

    def __init__(self, prefix: str = PREFIX) -> None:
        self._prefix = prefix
        self.run = uuid4().hex
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.bind(f"\0{prefix}{self.run}")

    def fileno(self) -> int:
        """The descriptor that workers inherit."""
        return self._sock.fileno()

    def others(self) -> bool:
        """Whether another run lives. OSError when the kernel does not say."""
        return any(name.startswith(self._prefix) and not name.endswith(self.run) for name in names())

    def close(self) -> None:
        """This process is gone; its workers may not be."""
        self._sock.close()


def names() -> Iterator[str]:
    """The abstract Unix sockets of this network namespace. OSError when the kernel does not say."""
    for line in NAMES.read_text(encoding="ascii", errors="replace").splitlines():
        path = line.rpartition(" ")[2]
        if path.startswith("@"):
            yield path[1:]
