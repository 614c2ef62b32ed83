"""Changes elements of our table's maps and sets by netlink in less than 1 ms, without running a program.

A change is one transaction. The messages are those of nf_tables (linux/netfilter/nf_tables.h).
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from kubeproxy.netfilter.netlink.messages import (
    ATTRIBUTE_HEADER,
    NETLINK_NETFILTER,
    NLM_F_ACK,
    NLMSG_ERROR,
    encode,
    frame,
    open_netlink,
    parse,
)
from kubeproxy.netfilter.nftables.elements import Batch

SUBSYSTEM: Final = 10 << 8  # NFNL_SUBSYS_NFTABLES
NEW: Final = SUBSYSTEM | 12  # NFT_MSG_NEWSETELEM
_DELETE: Final = SUBSYSTEM | 14  # NFT_MSG_DELSETELEM
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
LIST_TABLE, LIST_SET, LIST_ELEMENTS = 1, 2, 3  # NFTA_SET_ELEM_LIST_*
LIST_ELEMENT: Final = 1  # NFTA_LIST_ELEM
NESTED: Final = 0x8000
_CREATE: Final = 0x400  # NLM_F_CREATE
INET: Final = 1  # NFPROTO_INET
TABLE_NAME: Final = b"kubeproxy\0"
_SNDBUFFORCE: Final = 32  # asm-generic/socket.h
_ROOM_BYTES: Final = 16 << 20
"""The size of the send buffer in bytes: ten times what a change of one endpoint in each of ten thousand Services takes,
at two elements of 100 bytes each. Memory is used only while a transaction is being sent."""
_ELEMENTS_BYTES: Final = 60_000
"""The largest size of the elements in one message, because the length of an attribute is a 16-bit number."""
_ANSWER_BYTES: Final = 1 << 16
_TIMEOUT_S: Final = 10.0
"""How many seconds to wait for the kernel's answer. The kernel answers while the transaction is being sent."""


class ElementSocket:
    """A netlink socket for transactions. Any thread may use it, but only one at a time."""

    def __init__(self) -> None:
        """Open the socket. Raise OSError if the kernel has no nf_tables."""
        self._socket = open_netlink(NETLINK_NETFILTER)
        self._socket.settimeout(_TIMEOUT_S)
        self._sequence = 0
        self._lock = threading.Lock()
        # In a user namespace the buffer keeps its size, which is too small for thousands of elements at once.
        with contextlib.suppress(PermissionError):
            self._socket.setsockopt(socket.SOL_SOCKET, _SNDBUFFORCE, _ROOM_BYTES)

    def transact(self, batches: Iterable[Batch]) -> None:
        """Make these changes as one transaction, in the given order. Raise OSError if the kernel refuses any of them.
        The call blocks while a transaction of another program is in progress, so call it in a thread."""
        with self._lock:
            first = self._sequence + 1
            messages = list(self._messages(batches))
            if not messages:
                return
            last = self._sequence
            begin = frame(_BATCH_BEGIN, nfgen(0, SUBSYSTEM >> 8), flags=0, sequence=first)
            end = frame(_BATCH_END, nfgen(0, SUBSYSTEM >> 8), flags=0, sequence=self._next())
            self._socket.send(b"".join((begin, *messages, end)))
            self._await_answer(first, last)

    def close(self) -> None:
        """Close the socket. If a transaction is in progress, wait for its end first."""
        with self._lock:
            self._socket.close()

    def _messages(self, batches: Iterable[Batch]) -> Iterator[bytes]:
        self._next()  # An error of the whole transaction is reported for the message that begins it.
        bodies = [(batch, part) for batch in batches for part in _parts(batch.elements)]
        for number, (batch, part) in enumerate(bodies, 1):
            kind, flags = (NEW, _CREATE) if batch.adds else (_DELETE, 0)
            name = (LIST_SET, batch.name.encode() + b"\0")
            body = encode([(LIST_TABLE, TABLE_NAME), name, (LIST_ELEMENTS | NESTED, part)])
            # Ask for an acknowledgement of the last message only. The kernel always reports refused messages, and in
            # order.
            flags |= NLM_F_ACK if number == len(bodies) else 0
            yield frame(kind, nfgen(INET) + body, flags=flags, sequence=self._next())

    def _await_answer(self, first: int, last: int) -> None:
        """Read the answers to the messages with the sequence numbers from `first` to `last`. Raise OSError for the
        first refused one."""
        while True:
            for message in parse(self._socket.recv(_ANSWER_BYTES)):
                # Answers to an earlier, refused transaction may still be in the socket.
                if message.kind == NLMSG_ERROR and message.sequence >= first:
                    if message.error:
                        raise OSError(message.error, os.strerror(message.error))
                    if message.sequence == last:
                        return

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence


def _parts(elements: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the attributes of elements in parts that fit into a message."""
    part: list[bytes] = []
    size = 0
    for element in elements:
        attribute = ATTRIBUTE_HEADER.pack(ATTRIBUTE_HEADER.size + len(element), LIST_ELEMENT | NESTED) + element
        if size + len(attribute) > _ELEMENTS_BYTES:
            yield b"".join(part)
            part, size = [], 0
        part.append(attribute)
        size += len(attribute)
    if part:
        yield b"".join(part)


def nfgen(family: int, resource: int = 0) -> bytes:
    """Return the header that follows the netlink header in nf_tables messages."""
    return struct.pack(">BBH", family, 0, resource)
