"""Receives and sends datagrams in batches, with one system call each (`recvmmsg`, `sendmmsg`).

Python's `recvmsg` and `sendmsg` create objects for all parts of a datagram. Here the kernel uses the same memory every
time. In that memory, a client's socket address is followed by the packet information (the local address of the
datagram). Together they are called the *peer*: plain bytes that serve as a key, and as the address of an answer,
without being decoded.
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
"""The number of datagrams in a batch."""
DATAGRAM_BYTES = 1 << 16
"""The size of the longest datagram."""

_MIDDLE = 32
"""Where a peer's address ends and its packet information begins, within its slot of `_PEER_BYTES`."""
_PEER_BYTES = 128
_HOPS_BYTES = 4
"""The size of the hop limit in its control message, which follows the packet information."""
_CONTROL = struct.Struct("@Nii")
"""The fields of struct cmsghdr: length, level, type."""


class _Layout(NamedTuple):
    """The layout of a peer."""

    address_bytes: int
    """The size of struct sockaddr_in or sockaddr_in6."""
    host: slice
    """The position of the IP address in that structure."""
    level: int
    kind: int
    information: struct.Struct
    """The format of struct in_pktinfo (interface, local address, header address) or in6_pktinfo (address,
    interface)."""

    @property
    def information_bytes(self) -> int:
        """Return the size of the control message with the packet information."""
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
    """The memory of a batch, with headers that point into it, created once. Of the space for datagrams, only pages that
    were ever used take memory."""

    def __init__(self, family: int, *, more_control_bytes: int = 0) -> None:
        layout = _LAYOUTS[socket.AddressFamily(family)]
        control_bytes = layout.information_bytes + more_control_bytes
        self._datagrams = mmap.mmap(-1, SLOTS * DATAGRAM_BYTES)
        self._peers = mmap.mmap(-1, SLOTS * _PEER_BYTES)
        self._vectors = (_Vector * SLOTS)()
        self._messages = (_Message * SLOTS)()
        self._first = ctypes.addressof(self._messages)
        datagrams, peers = _address_of(self._datagrams), _address_of(self._peers)
        for slot, message in enumerate(self._messages):
            vector, middle = self._vectors[slot], peers + slot * _PEER_BYTES + _MIDDLE
            vector.base, vector.bytes = datagrams + slot * DATAGRAM_BYTES, DATAGRAM_BYTES
            message.header.address, message.header.address_bytes = middle - layout.address_bytes, layout.address_bytes
            message.header.vectors, message.header.vector_count = ctypes.addressof(vector), 1
            message.header.control, message.header.control_bytes = middle, control_bytes
        begin, end = _MIDDLE - layout.address_bytes, _MIDDLE + layout.information_bytes
        self._places = tuple(slice(at + begin, at + end) for at in range(0, SLOTS * _PEER_BYTES, _PEER_BYTES))
        """The position of the peer in each slot."""


def _address_of(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


class Arrivals(_Slots):
    """Receives datagrams of one address family, for all sockets. Each batch is copied at once."""

    def __init__(self, family: int) -> None:
        super().__init__(family, more_control_bytes=socket.CMSG_SPACE(_HOPS_BYTES))
        # The kernel writes the hop limit after the packet information.
        at = _MIDDLE + _LAYOUTS[socket.AddressFamily(family)].information_bytes + _CONTROL.size
        self.hops = memoryview(self._peers).cast("I")[at // 4 :: _PEER_BYTES // 4]
        """The hop limit left in each datagram of the last batch, or 0 if unknown."""
        self._headers = memoryview(self._messages).cast("B")
        self._fresh = bytes(self._headers)
        self._lengths = self._headers.cast("I")[_Message.bytes.offset // 4 :: ctypes.sizeof(_Message) // 4]
        self._blank = bytes(SLOTS * _PEER_BYTES)

    def receive(self, fd: int) -> list[tuple[bytes, bytes]]:
        """Return at most `SLOTS` pairs of peer and datagram. If there are fewer, no more are waiting. The socket needs
        IP_PKTINFO or IPV6_RECVPKTINFO. Raise OSError for an ICMP error about an earlier datagram."""
        # The kernel overwrites lengths in the headers, and does not clear unused fields, so restore both.
        self._headers[:] = self._fresh
        self._peers[:] = self._blank
        count = _recvmmsg(fd, self._first, SLOTS, socket.MSG_DONTWAIT, None)
        if count < 0:
            if (error := ctypes.get_errno()) == errno.EAGAIN:
                return []
            raise OSError(error, os.strerror(error))
        peers, datagrams, places, lengths = self._peers, self._datagrams, self._places, self._lengths
        return [
            (peers[places[slot]], datagrams[(at := slot * DATAGRAM_BYTES) : at + lengths[slot]])
            for slot in range(count)
        ]


class Sender(Protocol):
    """A socket that sends datagrams and counts them: a listener, whose module imports this one."""

    def fileno(self) -> int:
        """Return the socket's descriptor."""

    def sent(self, byte_count: int, dropped: int) -> None:
        """Count the bytes sent and the datagrams dropped."""


class Departures(_Slots):
    """Sends datagrams of one address family, for all sockets. A batch belongs to one sender. It is sent by `flush`,
    when it is full, or when another sender needs the memory."""

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
        """Return the memory for the sender's next datagram. Then call `add`."""
        if sender is not self._sender or self._count == SLOTS:
            self.flush()
            self._sender = sender
        return self._rooms[self._count]

    def add(self, length: int, peer: bytes) -> None:
        """Add the datagram that was written to `room`, with its length, for a peer."""
        count = self._count
        self._lengths[count] = length
        self._peers[self._places[count]] = peer
        self._count = count + 1

    def flush(self) -> None:
        """Send the batch. Datagrams that the kernel refuses are dropped and counted."""
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
        """Send the batch if it belongs to this sender, whose socket is about to be closed."""
        if sender is self._sender:
            self.flush()
            self._sender = None


def host_of(peer: bytes, family: int) -> str:
    """Return the IP address in a peer as text."""
    return socket.inet_ntop(family, peer[_LAYOUTS[socket.AddressFamily(family)].host])


def port_of(peer: bytes) -> int:
    """Return the port in a peer."""
    return int.from_bytes(peer[2:4], "big")


def is_peer(peer: bytes, family: int) -> bool:
    """Return whether bytes from another process have the length of a peer."""
    layout = _LAYOUTS[socket.AddressFamily(family)]
    return len(peer) == layout.address_bytes + layout.information_bytes


def reply_to(peer: bytes, family: int) -> bytes:
    """Return the peer for an answer, which is sent from the local address that the client used. The kernel chooses the
    interface by its routes."""
    layout = _LAYOUTS[socket.AddressFamily(family)]
    address, received = peer[: layout.address_bytes], peer[layout.address_bytes + _CONTROL.size :]
    if family == socket.AF_INET6:
        local, _ = layout.information.unpack_from(received)
        information = layout.information.pack(local, 0)
    else:
        _, _, local = layout.information.unpack_from(received)
        information = layout.information.pack(0, local, bytes(4))
    control = _CONTROL.pack(_CONTROL.size + len(information), layout.level, layout.kind) + information
    return address + control.ljust(socket.CMSG_SPACE(len(information)), b"\0")
