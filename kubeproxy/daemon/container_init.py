"""The first process of a container: it keeps the workers of a control process that has crashed, and starts the next.

When the first process of a container ends, the kernel kills all others. So `kubeproxy run`, as such a first process,
becomes this small program and runs as its child. On a host systemd does the same. This program decides nothing. What it
does when the control process ends depends on how that ended:

- With exit status 0, another instance has taken over. This program waits for SIGTERM, because the kubelet would start a
  container that has ended again, and that would take over in its turn. It also waits for workers that still have
  connections (after a takeover by another protocol version).
- After SIGTERM or SIGINT, and with another exit status, this program ends with that exit status.
- Otherwise, if other processes of the container live, they are workers, and keep serving. This program starts the next
  control process, which relieves them.
- Otherwise there is nothing to keep. This program ends with the same exit status, or 128 + the number of the signal,
  and the kubelet starts the container again, with its own back-off.

It runs in an interpreter of its own without any package, which takes 5 MiB, so it imports nothing of this project. All
its signals are blocked; it takes one after the other.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence

STOP = frozenset({signal.SIGTERM, signal.SIGINT})
PASSED_ON = frozenset({*STOP, signal.SIGHUP, signal.SIGUSR2})
"""The signals that the control process handles."""
AWAITED = frozenset({*PASSED_ON, signal.SIGCHLD})
PREVIOUS_END = "KUBEPROXY_PREVIOUS_END"
"""The environment variable that tells a control process how the previous one has ended."""
PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0
"""The pause before the next start. The first one is as long as that of systemd's unit, and each further one is
longer."""
SETTLED_S = 60.0
"""After a control process has lived for this long, the pauses begin again with the first one."""


def become() -> None:
    """If this is the first process of a container, become this program and run the present command line as its child.
    Otherwise return."""
    if os.getpid() == 1:
        os.execv(sys.executable, command([sys.executable, *sys.orig_argv[1:]]))


def command(words: Sequence[str]) -> list[str]:
    """Return the command line by which this program supervises a command."""
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), *words]


def supervise(words: Sequence[str]) -> int:
    """Run a command until it has ended for good, and return the exit status."""
    signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
    ending, pause_s = "", PAUSE_S
    while True:
        began = time.monotonic()
        status, stopping = _run(words, ending)
        if status == 0:
            return _await_relief(stopping=stopping)
        if stopping:
            return _exit_status(status)
        if time.monotonic() - began >= SETTLED_S:
            pause_s = PAUSE_S
        if not _others_live(pause_s):
            return _exit_status(status)
        ending, pause_s = _ending(status), min(2 * pause_s, LONGEST_PAUSE_S)


def _run(words: Sequence[str], ending: str) -> tuple[int, bool]:
    """Run the command once, and pass signals on to it. Return how it has ended, as `subprocess` reports that, and
    whether this program was told to stop."""
    try:
        child = os.posix_spawn(words[0], [*words], {**os.environ, PREVIOUS_END: ending}, setsigmask=())
    except OSError:  # The kernel has no process or memory left.
        return 1, False
    stopping = False
    while True:
        number = signal.sigwaitinfo(AWAITED).si_signo
        if number in PASSED_ON:
            stopping = stopping or number in STOP
            os.kill(child, number)
        elif (status := _reap()[0].get(child)) is not None:
            return status, stopping


def _await_relief(*, stopping: bool) -> int:
    """Wait for a signal to stop, if there was none, and until the workers that serve on have ended or another signal to
    stop arrives. Return the exit status."""
    signals = int(stopping)
    while _reap()[1] or not signals:
        signals += signal.sigwaitinfo(AWAITED).si_signo in STOP
        if signals > 1:
            break
    return 0


def _others_live(within_s: float) -> bool:
    """Return whether other processes still live after `within_s`. Return False at once if none does, or on a signal to
    stop."""
    until = time.monotonic() + within_s
    while _reap()[1]:
        left_s = until - time.monotonic()
        if left_s <= 0:
            return True
        if (arrived := signal.sigtimedwait(AWAITED, left_s)) is not None and arrived.si_signo in STOP:
            return False
    return False


def _reap() -> tuple[dict[int, int], bool]:
    """Reap the children that have ended. Return their exit codes by process number, and whether other processes live.
    The first process also gets children that have lost their parent, such as workers and programs that a person has
    started."""
    ended: dict[int, int] = {}
    while True:
        try:
            child, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended, False
        if child == 0:
            return ended, True
        ended[child] = os.waitstatus_to_exitcode(status)


def _exit_status(status: int) -> int:
    return status if status >= 0 else 128 - status


def _ending(status: int) -> str:
    return f"exit status {status}" if status >= 0 else f"signal {-status}"


if __name__ == "__main__":
    sys.exit(supervise(sys.argv[1:]))
