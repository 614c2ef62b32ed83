"""This process's standing with the kernel: how many descriptors it may have, who goes first when memory runs out, whose
children it looks after."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import shutil
import subprocess
from pathlib import Path
from typing import Final

import structlog

log = structlog.get_logger(__name__)

CONTAINER_INIT: Final = 1
"""The number of a container's first process."""
MODULES: Final = ("ip_tables", "ip6_tables")
"""Those of the legacy tables. What belongs to a single table or match the kernel loads by itself."""
MODULES_S: Final = 5.0
REAP_LOOK_S: Final = 5.0
"""How often we look for children that nobody waits for."""


def raise_descriptor_limit() -> int:
    """As many descriptors as the hard limit allows; the limit now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def forbid_core_dumps() -> None:
    """No memory image of this process, or of those that it starts, when it crashes: it holds tokens and client keys.

    The limit is 1 byte and not 0. Either is too little for a file; but a handler behind a pipe (core_pattern "|...")
    is started in spite of 0, and only 1 keeps it from that (fs/coredump.c). A limit of 0 that is there stays.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    limit = 1 if hard == resource.RLIM_INFINITY else min(1, hard)
    resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))


def set_oom_score_adj(adjustment: int) -> None:
    """Our place in the kernel's choice when memory runs out. As with kube-proxy, a refusal (lowering it takes
    CAP_SYS_RESOURCE) is told and nothing more."""
    try:
        Path("/proc/self/oom_score_adj").write_text(str(adjustment), encoding="ascii")
    except OSError as error:
        log.info(
            "cannot set oomScoreAdj; goes on without",
            wanted=adjustment,
            reason=error.strerror,
            remedy="CAP_SYS_RESOURCE, systemd's OOMScoreAdjust=, or --oom-score-adj=0",
        )


def load_modules() -> None:
    """Have the legacy tables' kernel modules loaded, where they are not and this process may. Adapters say what is
    missing afterwards."""
    program = shutil.which("modprobe")
    if program is not None and not all(Path(f"/proc/net/{name}_names").exists() for name in MODULES):
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run([program, "-q", "-a", *MODULES], timeout=MODULES_S, check=False, capture_output=True)


async def reap_strangers(*, look_s: float = REAP_LOOK_S) -> None:
    """For a container's first process, whose children all become that have lost their parent, say those of an `exec`
    into it: end them for good, or they would count against its limit on processes. Until cancelled.

    Our own are waited for by those who have started them, within less than one look."""
    us = os.getpid()
    before: set[int] = set()
    while True:
        dead = {child for child in _children(us) if _is_zombie(child)}
        for stranger in dead & before:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(stranger, os.WNOHANG)  # noqa: ASYNC222 - does not wait
        before = dead
        await asyncio.sleep(look_s)


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_bytes().split()]
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN, or no /proc
        return []


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z"
    except OSError:
        return False


def settle_memory() -> None:
    """What is there now stays: spare the collector from going through it again.

    The byte path leaves no cycles behind, so the collector need hardly ever look at everything; but let it come often
    for what is new. That costs no more in sum, and while ten thousand Services come, no pause is longer than a
    millisecond; at the 50,000 objects that were waited for before, it was eight."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(1_000, 4, 10_000)
