"""Sets limits of this process: descriptors, core dumps, the OOM score, orphaned children, memory, and a hanging
loop."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import os
import resource
import shutil
import subprocess
from pathlib import Path
from typing import Final

import structlog

from kubeproxy.config.schema import Configuration
from kubeproxy.runtime import privileges

log = structlog.get_logger(__name__)

MODULES: Final = ("ip_tables", "ip6_tables")
"""The kernel modules of the legacy tables. The kernel loads the modules of single tables and matches by itself."""
MODULES_S: Final = 5.0
REAP_LOOK_S: Final = 5.0
"""How often to reap children that belong to no part of this process."""
HUNG_S: Final = 20.0
"""In a container, a control process that has been hanging for this long ends itself. This is early enough for another
start before the liveness probe fails, which would also end the workers."""


def raise_descriptor_limit() -> int:
    """Raise the limit on descriptors to the hard limit, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def forbid_core_dumps() -> None:
    """Forbid core dumps of this process and its children, because they would contain tokens and client keys.

    The limit is 1 byte, not 0. Both are too small for a file. But if core_pattern names a program ("|..."), the kernel
    starts it under a limit of 0, and not under a limit of 1 (fs/coredump.c). A hard limit that is already 0 stays.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    limit = 1 if hard == resource.RLIM_INFINITY else min(1, hard)
    resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))


def set_oom_score_adj(adjustment: int) -> None:
    """Set the score by which the kernel chooses a process to kill when memory runs out.

    Lowering it needs CAP_SYS_RESOURCE. As with kube-proxy, a refusal is only logged.
    """
    try:
        Path("/proc/self/oom_score_adj").write_text(str(adjustment), encoding="ascii")
    except OSError as error:
        # If the machine forbids this, nothing needs to be done at each start, so it is logged only at level debug.
        log.debug(
            "cannot set oomScoreAdj",
            wanted=adjustment,
            reason=error.strerror,
            remedy="CAP_SYS_RESOURCE, systemd's OOMScoreAdjust=, or --oom-score-adj=0",
        )


def load_modules() -> None:
    """Load the kernel modules of the legacy tables if they are missing. If that fails, the adapters report what is
    missing."""
    program = shutil.which("modprobe")
    if program is not None and not all(Path(f"/proc/net/{name}_names").exists() for name in MODULES):
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run([program, "-q", "-a", *MODULES], timeout=MODULES_S, check=False, capture_output=True)


async def reap_adopted(*, look_s: float = REAP_LOOK_S) -> None:
    """Reap zombies for which no part of this process waits, until cancelled.

    After a re-exec, the previous program's workers and rescue process are children of this process. As zombies they
    would count against the limit on processes. The parts of this process reap their own children sooner, within one
    interval.
    """
    us = os.getpid()
    before: set[int] = set()
    while True:
        dead = {child for child in _children(us) if _is_zombie(child)}
        for child in dead & before:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, os.WNOHANG)  # noqa: ASYNC222 - does not wait
        before = dead
        await asyncio.sleep(look_s)


async def end_if_hung(*, hung_s: float = HUNG_S) -> None:
    """End this process if its event loop hangs for `hung_s` seconds, after writing a traceback to stderr. This runs
    until cancelled.

    In a container this takes the place of systemd's watchdog.
    """
    try:
        while True:
            faulthandler.dump_traceback_later(hung_s, exit=True)
            await asyncio.sleep(hung_s / 4)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_bytes().split()]
    except OSError:  # The kernel lacks CONFIG_PROC_CHILDREN, or there is no /proc.
        return []


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z"
    except OSError:
        return False


def settle_memory() -> None:
    """Exempt the objects of the start from garbage collection, and collect new ones often.

    The data plane creates no reference cycles, so a full collection is hardly ever needed. Frequent collections of new
    objects cost no more in total, and keep each pause below a millisecond while ten thousand Services arrive. (With a
    threshold of 50,000 objects a pause took eight milliseconds.)
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(1_000, 4, 10_000)


def restrict_process(configuration: Configuration) -> None:
    """Set limits and drop capabilities. This comes before the first thread starts, and before anything is read from the
    network."""
    forbid_core_dumps()
    raise_descriptor_limit()
    set_oom_score_adj(configuration.oom_score_adj)
    order = configuration.netfilter_order
    if order and (order[0] == "iptables" or ("iptables" in order and shutil.which("nft") is None)):
        load_modules()  # This runs programs that need the capabilities dropped below.
    try:
        privileges.restrict()
    except OSError as error:
        log.warning("cannot drop capabilities", reason=error.strerror)
