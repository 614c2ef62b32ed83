"""What it would cost a worker to keep every connection's two descriptors in a second process, which would survive it.

`python -m tests.tools.descriptor_holder` measures it: for each connection the worker sends both sockets to the holder
(SCM_RIGHTS), and tells it later to close them. Microseconds of the processor for each connection, of both processes.
"""

from __future__ import annotations

import array
import os
import resource
import socket
import statistics
from collections.abc import Callable
from typing import Final

CONNECTIONS: Final = 20_000
BATCHES: Final = (1, 16, 120)
"""Connections in a message: one is what a quiet proxy sends, 120 fill a message (SCM_MAX_FD is 253)."""
ROUNDS: Final = 5
GONE: Final = b"gone"


def hold(channel: socket.socket) -> None:
    """Keep what arrives until it is to be closed."""
    kept: list[int] = []
    while data := (received := channel.recvmsg(16, socket.CMSG_SPACE(4 * 253)))[0]:
        if data == GONE:
            for fd in kept:
                os.close(fd)
            kept.clear()
        for _, _, rights in received[1]:
            kept.extend(array.array("i", rights))


def cpu_us(act: Callable[[], None]) -> float:
    """Return the time of the processor that this process takes, in microseconds."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    act()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return 1e6 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def measure(batch: int) -> tuple[float, float]:
    """Return the cost of a connection for the worker and for the holder."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    result, write = os.pipe()
    if (holder := os.fork()) == 0:
        ours.close()
        os.write(write, str(cpu_us(lambda: hold(theirs))).encode())
        os._exit(0)
    theirs.close()
    pairs = [socket.socketpair() for _ in range(batch)]
    rights = array.array("i", [end.fileno() for pair in pairs for end in pair])

    def work() -> None:
        for _ in range(CONNECTIONS // batch):
            ours.sendmsg([b"new"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            ours.send(GONE)

    worker = cpu_us(work)
    ours.close()
    os.waitpid(holder, 0)
    return worker / CONNECTIONS, float(os.read(result, 100)) / CONNECTIONS


def main() -> None:
    """Print the medians."""
    for batch in BATCHES:
        rounds = [measure(batch) for _ in range(ROUNDS)]
        worker, holder = (statistics.median(costs) for costs in zip(*rounds, strict=True))
        print(f"{batch:4} connections in a message: worker {worker:.1f} µs, holder {holder:.1f} µs each")


if __name__ == "__main__":
    main()
