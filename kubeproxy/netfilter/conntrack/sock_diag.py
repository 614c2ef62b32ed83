"""Lists the TCP connections of this network namespace and finds the user of a socket, through sock_diag(7)."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
from typing import NamedTuple

from kubeproxy.model import Address, Target
from kubeproxy.netfilter.netlink.messages import (
    NETLINK_SOCK_DIAG,
    NLMSG_ERROR,
    SOCK_DIAG_BY_FAMILY,
    dump,
    frame,
    open_netlink,
    parse,
)

_QUESTION = struct.Struct("=BxxI48x")
"""The fields of struct inet_diag_req_v2 after the family: protocol, no extensions, states, any socket."""
_SYN_RECEIVED, _LISTENING = 3, 10
"""TCP_SYN_RECV and TCP_LISTEN (net/tcp_states.h)."""
_ALL_STATES = 0xFFF
"""One bit for each state."""
_NOT_LISTENING = _ALL_STATES & ~(1 << _LISTENING)
_ENDS = struct.Struct("!xB2x2H16s16s")
"""The beginning of struct inet_diag_msg: state, local port, peer's port, local address, peer's address."""

_OWNER = struct.Struct("=64xII")
"""idiag_uid and idiag_inode, the last fields of the struct. A socket closed by its process has no inode, and may have
user 0."""


class Connection(NamedTuple):
    """A TCP connection as its local socket shows it. The local address is omitted, because NAT may change it."""

    port: int
    peer: Address
    peer_port: int


def tcp_connections() -> frozenset[Connection]:
    """Return all TCP connections, including those that are closing or not accepted yet. Raise OSError if the kernel
    refuses.

    Incomplete handshakes of listeners that have been closed are omitted, because their clients get a reset."""
    found, shaking, listening = set[Connection](), set[Connection](), set[int]()
    for family in (socket.AF_INET, socket.AF_INET6):
        with open_netlink(NETLINK_SOCK_DIAG) as netlink:
            question = _QUESTION.pack(socket.IPPROTO_TCP, _ALL_STATES)
            for answer in dump(netlink, SOCK_DIAG_BY_FAMILY, family, rest=question):
                state, port, peer_port, _, peer = _ENDS.unpack_from(answer)
                if state == _LISTENING:
                    listening.add(port)
                    continue
                kind = shaking if state == _SYN_RECEIVED else found
                kind.add(Connection(port, _text(peer[:4] if family == socket.AF_INET else peer), peer_port))
    return frozenset(found | {each for each in shaking if each.port in listening})


def user_of(local: Target, peer: Target) -> int | None:
    """Return the user of a TCP socket in this network namespace, found by its two ends, or None if no process has the
    socket open. Raise OSError if the kernel refuses."""
    family = socket.AF_INET6 if ":" in local.address else socket.AF_INET
    addresses = [ipaddress.ip_address(end.address).packed.ljust(16, b"\0") for end in (local, peer)]
    ends = struct.pack("!2H16s16s", local.port, peer.port, *addresses) + bytes(4) + b"\xff" * 8  # Any cookie matches.
    question = struct.pack("=BBxxI", family, socket.IPPROTO_TCP, _NOT_LISTENING) + ends
    with open_netlink(NETLINK_SOCK_DIAG) as netlink:
        netlink.send(frame(SOCK_DIAG_BY_FAMILY, question, flags=0, sequence=1))
        for message in parse(netlink.recv(1 << 13)):
            if message.kind == SOCK_DIAG_BY_FAMILY and len(message.body) >= _OWNER.size:
                user, inode = _OWNER.unpack_from(message.body)
                return int(user) if inode else None
            if message.kind == NLMSG_ERROR and message.error not in (0, errno.ENOENT):
                raise OSError(message.error, os.strerror(message.error))
    return None


def _text(packed: bytes) -> Address:
    address = ipaddress.ip_address(packed)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return Address(str(mapped or address))
