"""The sandbox of a process that reads what strangers send: workers, and the rescue process.

Such a process has opened everything that it needs before. From then on it opens no file, starts no process and no
thread, and signals nobody. Two parts of the kernel ensure that, either of which is enough for files: Landlock, and a
filter of system calls. The filter refuses more, and exists for x86-64 and arm64. Landlock works on every architecture,
and also covers system calls that do not exist yet.
"""

from __future__ import annotations

import contextlib
import os

from kubeproxy.runtime import landlock, seccomp


def leave_file_system() -> None:
    """Make a directory without files the root of this process, if it has CAP_SYS_CHROOT because root has started it by
    hand.

    The rest of the sandbox cannot tell where a Unix socket leads, and root's daemons (systemd, a container runtime)
    obey any process of root that connects. In a pod, and as a user of its own, a process finds no such sockets.
    """
    with contextlib.suppress(OSError):  # The process lacks the capability, or there is no /proc.
        os.chroot("/proc/self/fdinfo")
        os.chdir("/")


def confine(*, sockets: bool, use_landlock: bool = True) -> str | None:
    """Confine this process for good. Return the reason why its system calls are not filtered, or None if they are.

    With `sockets` it may still open those that a worker needs: TCP, UDP, and Unix sockets to its next owner. This
    requires no_new_privs (`privileges.drop`), and that no other thread runs. Imports and reads of files fail
    afterwards. Without `use_landlock` only the filter is used, so that it can be tested.
    """
    if use_landlock:
        # Without Landlock (before Linux 5.13, or if it is not enabled) the filter alone keeps files closed.
        with contextlib.suppress(OSError):
            landlock.restrict(abstract_sockets=sockets)
    return seccomp.confine(sockets=sockets)
