"""The sandbox of processes that read data from untrusted clients, which are the workers and the rescue process.

A process opens everything that it needs before it enters the sandbox. Afterwards it can open no file, start no process
or thread, and signal no other process. Two parts of the kernel ensure that: Landlock and a seccomp filter of system
calls. Each of them suffices for files. The filter refuses more, but only exists for x86-64 and arm64. Landlock works on
every architecture, and also covers system calls that are added later.
"""

from __future__ import annotations

import contextlib
import os

from kubeproxy.runtime import landlock, seccomp


def leave_file_system() -> None:
    """Change this process's root to a directory without files, if the process has CAP_SYS_CHROOT because root has
    started it by hand.

    The rest of the sandbox cannot keep the process from connecting to Unix sockets in the file system. Root's daemons,
    such as systemd or a container runtime, obey every process of root that connects. A process in a pod, or with a user
    of its own, has no access to such sockets.
    """
    with contextlib.suppress(OSError):  # The process lacks the capability, or /proc is missing.
        os.chroot("/proc/self/fdinfo")
        os.chdir("/")


def confine(*, sockets: bool, use_landlock: bool = True) -> str | None:
    """Confine this process permanently. Return the reason why its system calls cannot be filtered, or None if they are
    filtered.

    With `sockets`, the process may still open TCP, UDP and Unix sockets, which workers need. The call requires
    no_new_privs (see `privileges.drop`), and that no other thread runs. Afterwards, imports and reads of files fail.
    Without `use_landlock`, only the filter is used, for tests.
    """
    if use_landlock:
        # Without Landlock (before Linux 5.13, or if it is disabled), the filter alone prevents opening files.
        with contextlib.suppress(OSError):
            landlock.restrict(abstract_sockets=sockets)
    return seccomp.confine(sockets=sockets)
