"""Netlink messages (netlink(7)): headers, attributes, requests and their answers."""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

NETLINK_SOCK_DIAG, NETLINK_NETFILTER = 4, 12
"""Constants of linux/netlink.h that Python's socket module does not have."""
SOCK_DIAG_BY_FAMILY = 20
"""linux/sock_diag.h"""
NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP, NLM_F_EXCL, NLM_F_CREATE = 0x1, 0x4, 0x300, 0x200, 0x400
NLM_F_DUMP_INTR = 0x10
NLMSG_ERROR, NLMSG_DONE = 2, 3
HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port of the sender
ATTRIBUTE_HEADER = struct.Struct("=HH")  # length, type
LINK = struct.Struct("=BxHiII")  # struct ifinfomsg: family, type, interface, flags, change
IFF_UP = 0x1
_ANSWER_BYTES = 1 << 16


class Message(NamedTuple):
    """A message from the kernel."""

    kind: int
    sequence: int
    body: bytes
    """The bytes after the netlink header."""
    flags: int = 0

    @property
    def error(self) -> int:
        """Return the errno in an NLMSG_ERROR or NLMSG_DONE message. 0 means success."""
        return -int.from_bytes(self.body[:4], sys.byteorder, signed=True)


def open_netlink(protocol: int = socket.NETLINK_ROUTE) -> socket.socket:
    """Return a netlink socket of this network namespace, by default for routing. Raise OSError if the kernel
    refuses."""
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)


def dump(
    netlink: socket.socket, kind: int, family: int = socket.AF_UNSPEC, *, rest: bytes = bytes(3)
) -> Iterator[bytes]:
    """Yield the payloads of the answers to a dump request. Raise OSError if the kernel refuses it. `rest` is whatever
    follows the family byte in the request."""
    netlink.send(frame(kind, bytes([family]) + rest, flags=NLM_F_DUMP, sequence=kind))
    return (message.body for message in answers(netlink, kind))


def request(netlink: socket.socket, kind: int, payload: bytes, *, flags: int = 0) -> None:
    """Send a request and wait until the kernel has carried it out. Raise OSError if the kernel refuses."""
    netlink.send(frame(kind, payload, flags=NLM_F_ACK | flags, sequence=kind))
    for _ in answers(netlink, kind):
        pass


def frame(kind: int, payload: bytes, *, flags: int, sequence: int) -> bytes:
    """Return the bytes of a request to the kernel."""
    return HEADER.pack(HEADER.size + len(payload), kind, NLM_F_REQUEST | flags, sequence, 0) + payload


class Readable(Protocol):
    """An object to read answers from: a socket, or a wrapper with a time limit."""

    def recv(self, at_most: int, /) -> bytes:
        """Return the result of one read from the kernel."""


def answers(
    netlink: Readable, sequence: int, *, at_most: int = _ANSWER_BYTES, unchanged: bool = False
) -> Iterator[Message]:
    """Yield the answers to a request, up to the one that ends them. Raise OSError if that is an error.

    Each read takes up to `at_most` bytes. With `unchanged`, raise InterruptedError at the end if the kernel says that
    the listed objects changed meanwhile, so that some may be missing.
    """
    changed = False
    while True:
        for message in parse(netlink.recv(at_most)):
            if message.sequence != sequence:
                continue
            changed = changed or bool(message.flags & NLM_F_DUMP_INTR)
            if message.kind in (NLMSG_DONE, NLMSG_ERROR):
                if message.error:
                    raise OSError(message.error, os.strerror(message.error))
                if unchanged and changed:
                    raise InterruptedError(errno.EINTR, "changed while it was listed")
                return
            yield message


def parse(data: bytes) -> Iterator[Message]:
    """Yield the messages in the result of one read."""
    at = 0
    while at + HEADER.size <= len(data):
        length, kind, flags, sequence, _ = HEADER.unpack_from(data, at)
        if length < HEADER.size:
            return
        yield Message(kind, sequence, data[at + HEADER.size : at + length], flags)
        at += _align(length)


def kind_of(data: bytes) -> int:
    """Return the kind of the first message in the result of one read."""
    kind: int = HEADER.unpack_from(data)[1]
    return kind


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the type and value of each attribute in a sequence of attributes."""
    at = 0
    while at + ATTRIBUTE_HEADER.size <= len(data):
        length, kind = ATTRIBUTE_HEADER.unpack_from(data, at)
        if length < ATTRIBUTE_HEADER.size:
            return
        yield kind, data[at + ATTRIBUTE_HEADER.size : at + length]
        at += _align(length)


def encode(values: Iterable[tuple[int, bytes]]) -> bytes:
    """Return attributes as bytes, the inverse of `attributes`."""
    parts = [ATTRIBUTE_HEADER.pack(ATTRIBUTE_HEADER.size + len(value), kind) + value for kind, value in values]
    return b"".join(part.ljust(_align(len(part)), b"\0") for part in parts)


def _align(length: int) -> int:
    return (length + 3) & ~3
