"""Lists the TCP connections of this network namespace by sock_diag(7)."""

from __future__ import annotations

import ipaddress
import socket
import struct
from typing import NamedTuple

from kubeproxy.model import Address
from kubeproxy.netfilter.netlink.messages import NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, dump, open_netlink

_QUESTION = struct.Struct("=BxxI48x")
"""struct inet_diag_req_v2 behind its family: protocol, no extensions, states, any socket."""
_NOT_LISTENING = 0xFFF & ~(1 << 10)
"""A bit for each state of the kernel's, without TCP_LISTEN (net/tcp_states.h)."""
_ENDS = struct.Struct("!4x2H16s16s")
"""The begin of struct inet_diag_msg: local port, peer's port; local address, peer's address."""


class Connection(NamedTuple):
    """A TCP connection as its local socket has it. Without the local address, which may differ by translation."""

    port: int
    peer: Address
    peer_port: int


def tcp_connections() -> frozenset[Connection]:
    """Return all TCP connections, also those not accepted yet, and closing ones. OSError when the kernel refuses."""
    found = set[Connection]()
    for family in (socket.AF_INET, socket.AF_INET6):
        with open_netlink(NETLINK_SOCK_DIAG) as netlink:
            question = _QUESTION.pack(socket.IPPROTO_TCP, _NOT_LISTENING)
            for answer in dump(netlink, SOCK_DIAG_BY_FAMILY, family, rest=question):
                port, peer_port, _, peer = _ENDS.unpack_from(answer)
                found.add(Connection(port, _text(peer[:4] if family == socket.AF_INET else peer), peer_port))
    return frozenset(found)


def _text(packed: bytes) -> Address:
    address = ipaddress.ip_address(packed)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return Address(str(mapped or address))
