"""Re-exec: the control process replaces its program by the one on disk, with the same process id and command line.

The workers keep serving as orphans, and retire when the new program's rules are in force. Before that, a separate
process loads the new code and checks the configuration with it. If the check fails, nothing changes. When an instance
of another protocol version waits for the node, the control process also leaves its workers as orphans, but ends, and
that instance takes the place of the new program.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

import structlog

log = structlog.get_logger(__name__)

CHECK_S = 30.0
"""How long each check of the new program may take."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)
"""The signals that this process handles. Their default action would end the new program before it handles them."""


def command() -> list[str]:
    """Return the command line of this process."""
    return [sys.executable, *sys.orig_argv[1:]]


def obstacle(*, holds_connections: bool, settled: bool) -> str | None:
    """Return why this process cannot re-exec now, or None if it can.

    `holds_connections` says that it serves clients itself, without workers. `settled` says that the rules redirect only
    to it.
    """
    if holds_connections:
        return "without workers every connection would be lost; restart it, or start a new instance"
    return None if settled else "a takeover is under way"


async def why_not(words: Sequence[str]) -> str | None:
    """Return why the program on disk does not start with this command line, or None if it does."""
    imports = "import kubeproxy.daemon.control_process"
    for check in ((*words, "--write-config-to=/dev/null"), (words[0], "-c", imports)):
        if (complaint := await _complaint(check)) is not None:
            return complaint
    return None


async def _complaint(words: Sequence[str]) -> str | None:
    try:
        check = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        return f"cannot execute {words[0]}: {error.strerror or error}"
    try:
        async with asyncio.timeout(CHECK_S):
            _, output = await check.communicate()
    except TimeoutError:
        check.kill()
        await check.wait()
        return f"the new code did not answer within {CHECK_S:g} s"
    if check.returncode == 0:
        return None
    return output.decode(errors="replace").strip() or f"the new code ended with status {check.returncode}"


def renew(words: Sequence[str]) -> NoReturn:
    """Execute the program on disk. Signals stay pending until the new program handles them."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    logging.shutdown()  # Flush the log before the program is replaced.
    os.execv(words[0], list(words))


def leave() -> NoReturn:
    """End this process, and leave the workers alive."""
    log.info("kubeproxy has stopped, its workers keep serving")
    logging.shutdown()  # Flush the log before the process ends.
    os._exit(0)


def listen_again() -> None:
    """Unblock the signals that have been pending since the re-exec."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
