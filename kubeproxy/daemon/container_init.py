"""The first process of a container (PID 1). If the control process crashes, it keeps the workers alive and starts the
next control process.

When the first process of a container ends, the kernel kills all others. So if `kubeproxy run` is the first process, it
becomes this small program and runs as its child. (On a host systemd has this role.) What this program does when the
control process ends depends on how that happened:

- Exit status 0: another instance has taken over. This program waits for SIGTERM, because the kubelet would restart a
  container that ends, and that instance would take over again. It also waits for workers that still have connections
  (after a takeover by another protocol version). If the node has had no instance for `DESERTED_S`, the other instance
  has crashed and not come back. Then this program starts the control process again, which serves until the other
  instance is back.
- After SIGTERM or SIGINT: this program ends with the same exit status.
- A crash (a signal, or an exit status other than 0) while workers live, which keep serving: this program starts the
  next control process, which takes their connections over.
- A crash without workers: this program ends with the same exit status, or 128 plus the number of the signal. The
  kubelet then restarts the container, with its own backoff.

This program runs in a separate interpreter without any package, which takes 5 MiB, so it imports nothing of this
project. All its signals are blocked, and it fetches them one after the other.

It waits only for workers, which end by themselves (``orphanGrace``, ``shutdownGrace``). Other processes that have lost
their parent, such as a program that a person has left in the background, end with the container.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Sequence

STOP = frozenset({signal.SIGTERM, signal.SIGINT})
PASSED_ON = frozenset({*STOP, signal.SIGHUP, signal.SIGUSR2})
"""The signals that are passed on to the control process."""
AWAITED = frozenset({*PASSED_ON, signal.SIGCHLD})
PREVIOUS_END = "KUBEPROXY_PREVIOUS_END"
"""The environment variable that tells a control process how the previous one ended."""
DESERTED = "the instance that had taken over has ended"
"""The value of `PREVIOUS_END` for a control process that must not take over from a living instance."""
DESERTED_S, LOOK_S = 5.0, 1.0
"""For how many seconds no instance may have the node until the control process is started again, and the seconds
between two checks. An instance that crashes comes back after some seconds, if it can."""
INSTANCES = "@kubeproxy/control/"
"""How the names of control processes begin in /proc/net/unix (`takeover.control_socket`)."""
WORKERS = "kubeproxy-"
"""How the names of workers' processes begin (`dataplane.workers.main`)."""
PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0
"""The seconds before the next start. The first pause is as long as in the systemd unit, and each further one is twice
as long."""
SETTLED_S = 60.0
"""A control process that has lived for this long resets the pause to the first one."""


def become() -> None:
    """If this is the first process of a container, replace it by this program, which runs the present command line as
    its child. Otherwise return."""
    if os.getpid() == 1:
        os.execv(sys.executable, command([sys.executable, *sys.orig_argv[1:]]))


def command(words: Sequence[str]) -> list[str]:
    """Return the command line of this program for supervising a command."""
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), *words]


def supervise(words: Sequence[str]) -> int:
    """Run a command, again if it crashes while workers live, and return the final exit status."""
    signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
    ending, pause_s = "", PAUSE_S
    while True:
        began = time.monotonic()
        status, stopping = _run(words, ending)
        if status == 0:
            if _relieved(stopping=stopping):
                return 0
            ending = DESERTED
            continue
        if stopping:
            return _exit_status(status)
        if time.monotonic() - began >= SETTLED_S:
            pause_s = PAUSE_S
        if not _workers_serve(pause_s):
            return _exit_status(status)
        ending, pause_s = _ending(status), min(2 * pause_s, LONGEST_PAUSE_S)


def _run(words: Sequence[str], ending: str) -> tuple[int, bool]:
    """Run the command once, and pass signals on to it. Return its exit code as in `subprocess`, and whether a signal to
    stop was received."""
    try:
        child = os.posix_spawn(words[0], [*words], {**os.environ, PREVIOUS_END: ending}, setsigmask=())
    except OSError:  # The limit on processes or memory is reached.
        return 1, False
    stopping = False
    while True:
        number = signal.sigwaitinfo(AWAITED).si_signo
        if number in PASSED_ON:
            stopping = stopping or number in STOP
            os.kill(child, number)
        elif (status := _reap()[0].get(child)) is not None:
            return status, stopping


def _relieved(*, stopping: bool) -> bool:
    """Wait until a signal to stop has been received, and the remaining workers have ended. A second signal to stop ends
    the wait. Return False if no signal has been received, and no instance has had the node for `DESERTED_S`."""
    signals, deserted_at = int(stopping), math.inf
    while _workers_live() or not signals:
        arrived = signal.sigtimedwait(AWAITED, LOOK_S)
        signals += arrived is not None and arrived.si_signo in STOP
        if signals > 1:
            break
        if not signals:
            now = time.monotonic()
            deserted_at = math.inf if _instance_lives() else min(deserted_at, now)
            if now >= deserted_at + DESERTED_S:
                return False
    return True


def _instance_lives() -> bool:
    """Return whether a control process of this network namespace has bound its name. Return True if the kernel does not
    tell."""
    try:
        with open("/proc/net/unix", encoding="ascii", errors="replace") as names:
            return any(INSTANCES in line for line in names)
    except OSError:
        return True


def _workers_serve(within_s: float) -> bool:
    """Return whether workers still live after `within_s` seconds. Return False at once if no other process lives, or
    when a signal to stop arrives. A worker that has just begun gets its name in that time."""
    until = time.monotonic() + within_s
    while _reap()[1]:
        left_s = until - time.monotonic()
        if left_s <= 0:
            return _workers_live()
        if (arrived := signal.sigtimedwait(AWAITED, left_s)) is not None and arrived.si_signo in STOP:
            return False
    return False


def _workers_live() -> bool:
    """Reap the children that have ended, and return whether a worker lives in this container."""
    _reap()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/comm", encoding="utf-8", errors="replace") as comm:
                if comm.read().startswith(WORKERS):
                    return True
        except OSError:  # It has ended meanwhile.
            continue
    return False


def _reap() -> tuple[dict[int, int], bool]:
    """Reap the children that have ended. Return their exit codes by process id, and whether other processes live. The
    children of the first process include orphans, such as workers and programs started by an operator."""
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
