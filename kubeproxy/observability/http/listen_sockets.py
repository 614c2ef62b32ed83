"""The listening sockets of an HTTP server: one address and port, several accept queues.

A flood fills an accept queue faster than a busy process empties it, and the kernel drops the packets of all other
clients. A client tries again only after a second, when a kubelet has given up. So clients of this host have their own
queue, and clients of other hosts are spread over several by address: a flood from one address fills one of them. A
classic BPF program chooses the queue (SO_ATTACH_REUSEPORT_CBPF); without it the kernel chooses, and the queues are no
worse than one.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from contextlib import suppress
from typing import Final

OTHERS: Final = 4
"""Queues for clients of other hosts; a power of two."""
BACKLOG: Final = 1024
"""Connections that wait in each queue."""

SO_ATTACH_REUSEPORT_CBPF: Final = 51
"""From asm-generic/socket.h; Python has no constant for it."""
_HEADER: Final = 0x1_0000_0000 - 0x100000
"""SKF_NET_OFF (-0x100000): offsets from the start of the IP header."""
_WORD, _BYTE, _TAX, _TXA = 0x20, 0x30, 0x07, 0x87
_SHIFT, _AND, _ADD, _IF, _IF_X, _RETURN, _RETURN_A = 0x74, 0x54, 0x04, 0x15, 0x1D, 0x06, 0x16
"""linux/bpf_common.h: load word and byte, to and from the index register, operations with a constant, jumps if equal to
a constant and to the index register, returns."""
_LOCAL: Final = (_RETURN, 0, 0, 0)

Step = tuple[int, int, int, int]
"""Code, steps to skip if true and if false, constant."""


def program() -> tuple[Step, ...]:
    """Return the BPF program that returns the number of the queue.

    0 for clients of this host, with a loopback address or one equal to the destination; 1 to `OTHERS` for
    others, by the last byte of the IPv4 address or of the IPv6 network (/64).
    """
    ipv4: list[Step] = [
        (_WORD, 0, 0, _HEADER + 12),
        (_TAX, 0, 0, 0),
        (_WORD, 0, 0, _HEADER + 16),
        (_IF_X, 0, 1, 0),
        _LOCAL,
        (_TXA, 0, 0, 0),
        (_SHIFT, 0, 0, 24),
        (_IF, 0, 1, 127),
        _LOCAL,
        *_spread(_HEADER + 15),
    ]
    ipv6: list[Step] = []
    other = _spread(_HEADER + 15)  # 8 bytes into the source address, which begins at 8
    for word in range(4):
        left = 4 * (3 - word) + 1  # remaining steps of the comparison, and its return
        ipv6 += [
            (_WORD, 0, 0, _HEADER + 8 + 4 * word),
            (_TAX, 0, 0, 0),
            (_WORD, 0, 0, _HEADER + 24 + 4 * word),
            (_IF_X, 0, left, 0),
        ]
    return ((_BYTE, 0, 0, _HEADER), (_SHIFT, 0, 0, 4), (_IF, len(ipv4), 0, 6), *ipv4, *ipv6, _LOCAL, *other)


def _spread(byte: int) -> tuple[Step, ...]:
    return ((_BYTE, 0, 0, byte), (_AND, 0, 0, OTHERS - 1), (_ADD, 0, 0, 1), (_RETURN_A, 0, 0, 0))


def open_queues(host: str, port: int, *, dualstack: bool, alone: bool = False) -> list[socket.socket]:
    """Open the listening sockets, the one for this host first. Raise OSError if the address is not free.

    `alone`: one socket for all clients, which saves descriptors where there are many servers. The first socket is bound
    without SO_REUSEPORT, so that the bind fails if another process listens on the port, even one that shares it.
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
                _attach(queues[0], program())
    except BaseException:
        for queue in queues:
            queue.close()
        raise
    return queues


def _attach(queue: socket.socket, steps: tuple[Step, ...]) -> None:
    text = b"".join(struct.pack("=HBBI", *step) for step in steps)
    buffer = ctypes.create_string_buffer(text, len(text))
    queue.setsockopt(
        socket.SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, struct.pack("@HP", len(steps), ctypes.addressof(buffer))
    )
