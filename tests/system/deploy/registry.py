"""Whether the package index can be reached: tests that install something are skipped without it."""

from __future__ import annotations

import socket
from functools import cache


@cache
def index_answers() -> bool:
    """Whether a connection to the index of Python packages is possible."""
    try:
        socket.create_connection(("pypi.org", 443), timeout=5).close()
    except OSError:
        return False
    return True
