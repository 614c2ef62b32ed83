"""Datagrams by the batch: many with one system call, and next to no Python for each.

Python's `recvmsg` and `sendmsg` make objects of everything that there is to know about a datagram, and take them apart
again. Here the kernel's `recvmmsg` and `sendmmsg` fill and empty the same memory every time. A client's socket address
and the packet information (which of our addresses it spoke to) lie side by side in it: together they are the
*envelope*, plain bytes that are looked up and given back without ever being decoded.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import socket
import struct
from typing import NamedTuple, Protocol

from kubeproxy.dataplane.sockets.udp_options import IP_PKTINFO

SLOTS = 32
"""Datagrams of a batch."""
DATAGRAM_BYTES = 1 << 16
"""No datagram is longer."""

_MIDDLE = 32
"""Where in its slot of `_ENVELOPE_BYTES` an envelope's address ends and its packet information begins."""
_ENVELOPE_BYTES = 128
_HOPS_BYTES = 4
"""Of a hop limit, in a control message behind the packet information."""
_CONTROL = struct.Struct("@Nii")
"""struct cmsghdr: length, level, type."""


class _Layout(NamedTuple):
    """What an envelope looks like."""

    address_bytes: int
    """sizeof(struct sockaddr_in) or (struct sockaddr_in6)"""
    host: slice
    """Where in it the address itself is."""
    level: int
    kind: int
    information: struct.Struct
    """struct in_pktinfo (interface, local address, address in the header) or in6_pktinfo (address, interface)."""

    @property
    def information_bytes(self) -> int:
        """Of the control message that holds it."""
        return socket.CMSG_SPACE(self.information.size)


_LAYOUTS = {
    socket.AF_INET: _Layout(16, slice(4, 8), socket.IPPROTO_IP, IP_PKTINFO, struct.Struct("=I4s4s")),
    socket.AF_INET6: _Layout(28, slice(8, 24), socket.IPPROTO_IPV6, socket.IPV6_PKTINFO, struct.Struct("=16sI")),
}


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("bytes", ctypes.c_size_t))


class _Header(ctypes.Structure):
    _fields_ = (
        ("address", ctypes.c_void_p),
        ("address_bytes", ctypes.c_uint32),
        ("vectors", ctypes.c_void_p),
        ("vector_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_bytes", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


class _Message(ctypes.Structure):
    _fields_ = (("header", _Header), ("bytes", ctypes.c_uint))


_libc = ctypes.CDLL(None, use_errno=True)
_recvmmsg = _libc.recvmmsg
_recvmmsg.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p)
_sendmmsg = _libc.sendmmsg
_sendmmsg.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int)


class _Slots:
    """The memory of a batch, in which the kernel finds everything at the places it has been told once. Of the room for
    datagrams only the pages that were ever filled are there."""

    def __init__(self, family: int, *, more_control_bytes: int = 0) -> None:
        layout = _LAYOUTS[socket.AddressFamily(family)]
        control_bytes = layout.information_bytes + more_control_bytes
        self._datagrams = mmap.mmap(-1, SLOTS * DATAGRAM_BYTES)
        self._envelopes = mmap.mmap(-1, SLOTS * _ENVELOPE_BYTES)
        self._vectors = (_Vector * SLOTS)()
        self._messages = (_Message * SLOTS)()
        self._first = ctypes.addressof(self._messages)
        datagrams, envelopes = _address_of(self._datagrams), _address_of(self._envelopes)
        for slot, message in enumerate(self._messages):
            vector, middle = self._vectors[slot], envelopes + slot * _ENVELOPE_BYTES + _MIDDLE
            vector.base, vector.bytes = datagrams + slot * DATAGRAM_BYTES, DATAGRAM_BYTES
            message.header.address, message.header.address_bytes = middle - layout.address_bytes, layout.address_bytes
            message.header.vectors, message.header.vector_count = ctypes.addressof(vector), 1
            message.header.control, message.header.control_bytes = middle, control_bytes
        begin, end = _MIDDLE - layout.address_bytes, _MIDDLE + layout.information_bytes
        self._places = tuple(slice(at + begin, at + end) for at in range(0, SLOTS * _ENVELOPE_BYTES, _ENVELOPE_BYTES))
        """Of the envelopes."""


def _address_of(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


class Arrivals(_Slots):
    """Takes in datagrams of one address family. One for all sockets: what was received is copied out at once."""

    def __init__(self, family: int) -> None:
        super().__init__(family, more_control_bytes=socket.CMSG_SPACE(_HOPS_BYTES))
        # The kernel puts the hop limit behind the packet information.
        at = _MIDDLE + _LAYOUTS[socket.AddressFamily(family)].information_bytes + _CONTROL.size
        self.hops = memoryview(self._envelopes).cast("I")[at // 4 :: _ENVELOPE_BYTES // 4]
        """How many hops each datagram of the last batch had left; 0: the socket does not tell."""
        self._headers = memoryview(self._messages).cast("B")
        self._fresh = bytes(self._headers)
        self._lengths = self._headers.cast("I")[_Message.bytes.offset // 4 :: ctypes.sizeof(_Message) // 4]
        self._blank = bytes(SLOTS * _ENVELOPE_BYTES)

    def receive(self, fd: int) -> list[tuple[bytes, bytes]]:
        """Envelopes and datagrams, at most `SLOTS`; fewer when there are no more. The socket has to tell the packet
        information. OSError: an earlier datagram was refused by whom it was sent to."""
        # The kernel writes into the headers how much it has used of what they offer, and leaves what it does not use.
        self._headers[:] = self._fresh
        self._envelopes[:] = self._blank
        count = _recvmmsg(fd, self._first, SLOTS, socket.MSG_DONTWAIT, None)
        if count < 0:
            if (error := ctypes.get_errno()) == errno.EAGAIN:
                return []
            raise OSError(error, os.strerror(error))
        envelopes, datagrams, places, lengths = self._envelopes, self._datagrams, self._places, self._lengths
        return [
            (envelopes[places[slot]], datagrams[(at := slot * DATAGRAM_BYTES) : at + lengths[slot]])
            for slot in range(count)
        ]


class Sender(Protocol):
    """Whose datagrams are sent, and who hears what became of them."""

    def fileno(self) -> int:
        """The socket."""

    def sent(self, byte_count: int, dropped: int) -> None:
        """So many bytes went out, and so many datagrams did not."""


class Departures(_Slots):
    """Sends datagrams of one address family. One for all sockets: a batch is one sender's, and goes out when another
    one comes, when it is full, or when told to."""

    def __init__(self, family: int) -> None:
        super().__init__(family)
        self._rooms = tuple(
            memoryview(self._datagrams)[at : at + DATAGRAM_BYTES]
            for at in range(0, SLOTS * DATAGRAM_BYTES, DATAGRAM_BYTES)
        )
        self._lengths = memoryview(self._vectors).cast("B").cast("L")[1::2]
        self._sender: Sender | None = None
        self._count = 0

    def room(self, sender: Sender) -> memoryview:
        """For this sender's next datagram, which `add` adds to the batch."""
        if sender is not self._sender or self._count == SLOTS:
            self.flush()
            self._sender = sender
        return self._rooms[self._count]

    def add(self, length: int, envelope: bytes) -> None:
        """What was put into the room, and to whom it goes."""
        count = self._count
        self._lengths[count] = length
        self._envelopes[self._places[count]] = envelope
        self._count = count + 1

    def flush(self) -> None:
        """Send what there is. A client that is gone or a full buffer costs the datagram, as on any path."""
        sender, count = self._sender, self._count
        if sender is None or not count:
            return
        self._count = 0
        fd, at, dropped, lost_bytes = sender.fileno(), 0, 0, 0
        while at < count:
            sent = _sendmmsg(fd, self._first + at * ctypes.sizeof(_Message), count - at, socket.MSG_DONTWAIT)
            if sent > 0:
                at += sent
            else:
                lost_bytes += self._lengths[at]
                at += 1
                dropped += 1
        sender.sent(sum(self._lengths[:count]) - lost_bytes, dropped)

    def forget(self, sender: Sender) -> None:
        """Send what there is of this sender, whose socket is about to go."""
        if sender is self._sender:
            self.flush()
            self._sender = None


def host_of(envelope: bytes, family: int) -> str:
    """Whom an envelope is from, or to: the text of the address."""
    return socket.inet_ntop(family, envelope[_LAYOUTS[socket.AddressFamily(family)].host])


def reply_to(envelope: bytes, family: int) -> bytes:
    """The envelope of an answer, which leaves from the address that was asked. The interface is left to routing, which
    knows the way back."""
    layout = _LAYOUTS[socket.AddressFamily(family)]
    address, told = envelope[: layout.address_bytes], envelope[layout.address_bytes + _CONTROL.size :]
    if family == socket.AF_INET6:
        asked, _ = layout.information.unpack_from(told)
        information = layout.information.pack(asked, 0)
    else:
        _, _, asked = layout.information.unpack_from(told)
        information = layout.information.pack(0, asked, bytes(4))
    control = _CONTROL.pack(_CONTROL.size + len(information), layout.level, layout.kind) + information
    return address + control.ljust(socket.CMSG_SPACE(len(information)), b"\0")
