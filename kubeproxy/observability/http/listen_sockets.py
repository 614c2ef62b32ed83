"""Opens the listening sockets of an HTTP server: several sockets at one address and port, each with an accept queue.

A flood fills an accept queue faster than a busy process empties it, and the kernel drops the packets of all other
clients. A client's kernel repeats the SYN only after a second, when a kubelet has already given up. So clients of this
host have a queue of their own, and clients of other hosts are spread over several queues by address, so that a flood
from one address fills only one of them. A classic BPF program chooses the queue (SO_ATTACH_REUSEPORT_CBPF). If the
program cannot be attached, the kernel chooses the queue, which is no worse than one queue.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Final

from kubeproxy.runtime.classic_bpf import (
    ADD,
    AND,
    JEQ,
    JEQ_X,
    LD_ABS,
    LD_ABS_BYTE,
    NETWORK_HEADER,
    RET,
    RET_A,
    RSH,
    SO_ATTACH_REUSEPORT_CBPF,
    TAX,
    TXA,
    Step,
    assemble,
    attach,
)

OTHERS: Final = 4
"""The number of queues for clients of other hosts; it must be a power of two."""
BACKLOG: Final = 1024
"""How many connections may wait in each queue."""

_LOCAL: Final = (RET, 0, 0, 0)


def program() -> tuple[Step, ...]:
    """Return the BPF program that computes the index of the queue.

    The index is 0 for clients of this host: their address is a loopback address or equals the destination address. For
    other clients it is 1 to `OTHERS`, by the last byte of the IPv4 address or of the IPv6 network (/64).
    """
    ipv4: list[Step] = [
        (LD_ABS, 0, 0, NETWORK_HEADER + 12),
        (TAX, 0, 0, 0),
        (LD_ABS, 0, 0, NETWORK_HEADER + 16),
        (JEQ_X, 0, 1, 0),
        _LOCAL,
        (TXA, 0, 0, 0),
        (RSH, 0, 0, 24),
        (JEQ, 0, 1, 127),
        _LOCAL,
        *_spread(NETWORK_HEADER + 15),
    ]
    ipv6: list[Step] = []
    other = _spread(NETWORK_HEADER + 15)  # The last word is 8 bytes into the source address, which begins at 8.
    for word in range(4):
        left = 4 * (3 - word) + 1  # The number of steps left in this comparison, with its return.
        ipv6 += [
            (LD_ABS, 0, 0, NETWORK_HEADER + 8 + 4 * word),
            (TAX, 0, 0, 0),
            (LD_ABS, 0, 0, NETWORK_HEADER + 24 + 4 * word),
            (JEQ_X, 0, left, 0),
        ]
    return ((LD_ABS_BYTE, 0, 0, NETWORK_HEADER), (RSH, 0, 0, 4), (JEQ, len(ipv4), 0, 6), *ipv4, *ipv6, _LOCAL, *other)


def _spread(byte: int) -> tuple[Step, ...]:
    return ((LD_ABS_BYTE, 0, 0, byte), (AND, 0, 0, OTHERS - 1), (ADD, 0, 0, 1), (RET_A, 0, 0, 0))


def open_queues(host: str, port: int, *, dualstack: bool, alone: bool = False) -> list[socket.socket]:
    """Open the listening sockets and return them, the one for clients of this host first. Raise OSError if the address
    is not free.

    If `alone` is true, open one socket for all clients, which saves descriptors if there are many servers. The first
    socket is bound without SO_REUSEPORT, so that the bind fails if another process listens on the port, even with
    SO_REUSEPORT.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    queues: list[socket.socket] = []
    try:
        for number in range(1 if alone else 1 + OTHERS):
            queue = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            queues.append(queue)
            queue.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                queue.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not dualstack)
            if number:
                queue.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                port = queues[0].getsockname()[1]
            queue.bind((host, port))
            if not alone:
                queue.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            queue.listen(BACKLOG)
        if not alone:
            with suppress(OSError):
                attach(queues[0], SO_ATTACH_REUSEPORT_CBPF, assemble(program()))
    except BaseException:
        for queue in queues:
            queue.close()
        raise
    return queues
