"""Lists the abstract Unix sockets of this process's user that listen in this network namespace.

Abstract names have no permissions, so any process may bind a free name. Therefore sockets of other users are ignored.
The kernel reports the user of each socket by sock_diag with UDIAG_SHOW_UID (Linux 5.3). A user without a mapping in
this user namespace is reported as the overflow user, and so counts as another user.

If the kernel lacks unix_diag, names are read from /proc/net/unix, and the user from SO_PEERCRED of a connection. A
socket with a full queue accepts no connection. It then counts as this user's, because overlooking another proxy would
be worse than waiting for it.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterator, Mapping
from typing import Final

NAMES: Final = "/proc/self/net/unix"
_LISTENS: Final = 0x10000
"""__SO_ACCEPTCON, in the flags of /proc/net/unix."""

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY = 4, 20
"""From linux/netlink.h and linux/sock_diag.h. Python has no names for these."""
_MESSAGE = struct.Struct("=IHHII")
"""struct nlmsghdr: length, type, flags, sequence, sender."""
_REQUEST_DUMP, _NLMSG_ERROR, _NLMSG_DONE = 0x301, 2, 3
_QUESTION = struct.Struct("=BBHIIIII")
"""struct unix_diag_req: family, protocol, padding, states, inode, what to show, cookie."""
_ANSWER_BYTES = 16
"""struct unix_diag_msg."""
_ATTRIBUTE = struct.Struct("=HH")
_TCP_LISTEN = 10
_SHOW_NAME, _SHOW_UID = 0x1, 0x40
_NAME, _UID = 0, 7
"""linux/unix_diag.h."""

_CREDENTIALS = struct.Struct("3i")
"""struct ucred: process, user, group."""


def listening(prefix: str) -> frozenset[str]:
    """Return the names of this user's listening sockets that begin with `prefix`, without the leading NUL. Raise
    OSError if the kernel cannot list names."""
    ours = os.geteuid()
    try:
        names = [name for name, uid in _by_sock_diag() if uid == ours and name.startswith(prefix)]
    except OSError:
        names = [name for name in _by_proc() if name.startswith(prefix) and _may_be_ours(name)]
    return frozenset(names)


def users(prefix: str) -> Mapping[str, int]:
    """Return the UIDs of all users' listening sockets whose names begin with `prefix`, by name. The result is empty if
    the kernel does not report users."""
    try:
        return {name: uid for name, uid in _by_sock_diag() if name.startswith(prefix)}
    except OSError:
        return {}


def listener(name: str) -> int:
    """Return the PID of the process that listens at a name, or 0 if it does not accept a connection or is in another
    PID namespace."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as sock:
        try:
            sock.connect(f"\0{name}")
            return pid_of(sock)
        except OSError:
            return 0


def uid_of(sock: socket.socket) -> int:
    """Return the UID of the process at the other end of a Unix socket, at the time when it connected or began to
    listen."""
    return _credentials(sock)[1]


def pid_of(sock: socket.socket) -> int:
    """Return the PID of the process at the other end of a Unix socket, or 0 if it is in another PID namespace."""
    return _credentials(sock)[0]


def _credentials(sock: socket.socket) -> tuple[int, int, int]:
    pid, uid, gid = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid, gid


def _by_sock_diag() -> Iterator[tuple[str, int]]:
    """Yield the name and the UID of each listening socket. Raise OSError if the kernel does not report users."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as netlink:
        question = _QUESTION.pack(socket.AF_UNIX, 0, 0, 1 << _TCP_LISTEN, 0, _SHOW_NAME | _SHOW_UID, 0, 0)
        netlink.send(_MESSAGE.pack(_MESSAGE.size + len(question), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0) + question)
        while True:
            data = netlink.recv(1 << 16)
            at = 0
            while at + _MESSAGE.size <= len(data):
                length, kind, *_ = _MESSAGE.unpack_from(data, at)
                if kind == _NLMSG_DONE:
                    return
                if kind == _NLMSG_ERROR or length < _MESSAGE.size:
                    number = -int.from_bytes(data[at + _MESSAGE.size :][:4], sys.byteorder, signed=True)
                    raise OSError(number, os.strerror(number))
                found = dict(_attributes(data[at + _MESSAGE.size + _ANSWER_BYTES : at + length]))
                if found.get(_NAME, b"x").startswith(b"\0"):
                    if _UID not in found:
                        raise OSError(None, "the kernel does not report the users of sockets")
                    name = found[_NAME][1:].decode(errors="replace")
                    yield name, int.from_bytes(found[_UID], sys.byteorder)
                at += length + 3 & ~3


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size:
            return
        yield kind, data[at + _ATTRIBUTE.size : at + length]
        at += length + 3 & ~3


def _by_proc() -> Iterator[str]:
    with open(NAMES, encoding="ascii", errors="replace") as listing:  # Workers do not import pathlib.
        lines = listing.read().splitlines()[1:]
    for line in lines:
        fields = line.split(maxsplit=7)
        if len(fields) == 8 and fields[7].startswith("@") and int(fields[3], 16) & _LISTENS:
            yield fields[7][1:]


def _may_be_ours(name: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as sock:
        try:
            sock.connect(f"\0{name}")
        except BlockingIOError:
            return True
        except OSError:
            return False
        return uid_of(sock) == os.geteuid()
