"""New code under the same process number: the process executes itself anew, as it was started.

Its workers go on meanwhile, as they do when it dies, and are relieved when the new image's rules are in force. Nothing
is begun before the code on disk has been loaded once, has read the configuration and found no fault in it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

CHECK_S = 30.0
"""How long the new code may take for each of these."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)
"""What we listen to. By default each of them would end a process that has not come to listen yet."""


def command() -> list[str]:
    """How this process was started."""
    return [sys.executable, *sys.orig_argv[1:]]


def obstacle(*, workers: bool, settled: bool) -> str | None:
    """What about this process stands against it; None: nothing. `settled`: the rules lead to it, and to nobody else.
    Pure."""
    if not workers:
        return "without workers every connection would be lost; restart it, or start a successor"
    return None if settled else "it is just taking over, or making way"


async def why_not(words: Sequence[str]) -> str | None:
    """What the code on disk has against starting so; None: nothing."""
    for check in ((*words, "--write-config-to=/dev/null"), (words[0], "-c", "import kubeproxy.daemon.lifecycle")):
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
            _, said = await check.communicate()
    except TimeoutError:
        check.kill()
        await check.wait()
        return f"the new code did not answer within {CHECK_S:g} s"
    if check.returncode == 0:
        return None
    return said.decode(errors="replace").strip() or f"the new code ended with status {check.returncode}"


def renew(words: Sequence[str]) -> NoReturn:
    """Become the code on disk. What a signal asks for meanwhile waits until somebody listens."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    logging.shutdown()  # what was logged but not read yet
    os.execv(words[0], list(words))


def listen_again() -> None:
    """Somebody listens: what was asked for meanwhile is heard now."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
