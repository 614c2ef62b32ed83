"""Takes the lock by which programs avoid concurrent changes of the legacy tables (iptables(8), ``-w``)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from kubeproxy.model.errors import KernelError

_POLL_S = 0.02


@contextlib.contextmanager
def xtables_lock(wait_s: float) -> Iterator[None]:
    """Hold the lock during the context. Wait for it up to `wait_s` seconds, blocking the thread, and then raise
    KernelError with the name of the process that holds it."""
    path = os.environ.get("XTABLES_LOCKFILE", "/run/xtables.lock")
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise KernelError(
            f"cannot open the lock of the iptables tables, {path}: {error.strerror}; "
            "it needs root, and in a container the host's /run/xtables.lock"
        ) from error
    try:
        deadline = time.monotonic() + wait_s
        while not _try_lock(fd):
            if time.monotonic() >= deadline:
                raise KernelError(
                    f"{_holder(fd)} has held {path}, the lock of the iptables tables, for {wait_s:g} s; "
                    "nothing was changed"
                )
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(fd: int) -> str:
    """Return the process that holds the lock, from /proc/locks."""
    inode = os.fstat(fd).st_ino
    with contextlib.suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines():
            # Example of a line: 1: FLOCK ADVISORY WRITE 412 00:19:1030 0 EOF
            fields = line.split()
            if fields[1] == "FLOCK" and fields[5].endswith(f":{inode}"):
                with contextlib.suppress(OSError):
                    return f"{Path(f'/proc/{fields[4]}/comm').read_text().strip()} (process {fields[4]})"
                return f"process {fields[4]}"
    return "another process"
