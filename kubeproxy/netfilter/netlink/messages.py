"""Questions and orders to the kernel's routing by rtnetlink(7): the messages, without what they say."""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterable, Iterator

_NLM_F_REQUEST, _NLM_F_ACK, _NLM_F_DUMP = 0x1, 0x4, 0x300
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_MESSAGE = struct.Struct("=IHHII")  # length, type, flags, sequence, sender
_ATTRIBUTE = struct.Struct("=HH")  # length, type


def open_netlink() -> socket.socket:
    """A socket to the routing of this network namespace. OSError."""
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)


def dump(
    netlink: socket.socket, kind: int, family: int = socket.AF_UNSPEC, *, rest: bytes = bytes(3)
) -> Iterator[bytes]:
    """The payloads that answer a dump request (`rest`: what comes behind its family); OSError when the kernel refuses
    it."""
    header = bytes([family]) + rest
    netlink.send(_MESSAGE.pack(_MESSAGE.size + len(header), kind, _NLM_F_REQUEST | _NLM_F_DUMP, kind, 0) + header)
    while True:
        for answer, payload in _messages(netlink.recv(1 << 16), kind):
            if answer == _NLMSG_DONE:
                return
            if answer == _NLMSG_ERROR:
                raise _error(payload)
            yield payload


def order(netlink: socket.socket, kind: int, payload: bytes, *, flags: int = 0) -> None:
    """Have the kernel make or remove something; OSError when it does not."""
    netlink.send(
        _MESSAGE.pack(_MESSAGE.size + len(payload), kind, _NLM_F_REQUEST | _NLM_F_ACK | flags, kind, 0) + payload
    )
    while True:
        for answer, said in _messages(netlink.recv(1 << 16), kind):
            if answer == _NLMSG_ERROR:
                if int.from_bytes(said[:4], sys.byteorder):
                    raise _error(said)
                return


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The attributes that follow a payload's header: type and value."""
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size:
            return
        yield kind, data[at + _ATTRIBUTE.size : at + length]
        at += _align(length)


def encode(values: Iterable[tuple[int, bytes]]) -> bytes:
    """The inverse of `attributes`."""
    parts = [_ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value for kind, value in values]
    return b"".join(part.ljust(_align(len(part)), b"\0") for part in parts)


def notifications(data: bytes) -> Iterator[tuple[int, bytes]]:
    """What the kernel says unasked: types and payloads."""
    return ((kind, payload) for kind, _, payload in _all(data))


def _messages(data: bytes, sequence: int) -> Iterator[tuple[int, bytes]]:
    return ((kind, payload) for kind, its_sequence, payload in _all(data) if its_sequence == sequence)


def _all(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    at = 0
    while at + _MESSAGE.size <= len(data):
        length, kind, _, sequence, _ = _MESSAGE.unpack_from(data, at)
        if length < _MESSAGE.size:
            return
        yield kind, sequence, data[at + _MESSAGE.size : at + length]
        at += _align(length)


def _error(payload: bytes) -> OSError:
    number = -int.from_bytes(payload[:4], sys.byteorder, signed=True)
    return OSError(number, os.strerror(number))


def _align(length: int) -> int:
    return (length + 3) & ~3
