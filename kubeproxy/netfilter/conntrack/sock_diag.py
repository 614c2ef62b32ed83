"""The TCP connections that processes of this network namespace have, by sock_diag(7)."""

from __future__ import annotations

import ipaddress
import socket
import struct
from typing import NamedTuple

from kubeproxy.model import Address
from kubeproxy.netfilter.netlink import messages

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY = 4, 20
"""linux/netlink.h, linux/sock_diag.h; Python has no names for them."""
_QUESTION = struct.Struct("=BxxI48x")
"""struct inet_diag_req_v2 behind its family: protocol, no extensions, states, any socket."""
_NOT_LISTENING = 0xFFF & ~(1 << 10)
"""A bit for each state of the kernel's, without TCP_LISTEN (net/tcp_states.h)."""
_ENDS = struct.Struct("!4x2H16s16s")
"""The begin of struct inet_diag_msg: own port, the peer's; own address, the peer's."""


class Connection(NamedTuple):
    """As seen from here. Its own address is left out: who was translated knows another."""

    port: int
    peer: Address
    peer_port: int


def tcp_connections() -> frozenset[Connection]:
    """All of them, those included that are not accepted yet, or linger. OSError when the kernel does not tell."""
    kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
    found = set[Connection]()
    for family in (socket.AF_INET, socket.AF_INET6):
        with socket.socket(socket.AF_NETLINK, kind, _NETLINK_SOCK_DIAG) as netlink:
            question = _QUESTION.pack(socket.IPPROTO_TCP, _NOT_LISTENING)
            for answer in messages.dump(netlink, _SOCK_DIAG_BY_FAMILY, family, rest=question):
                port, peer_port, _, peer = _ENDS.unpack_from(answer)
                found.add(Connection(port, _text(peer[:4] if family == socket.AF_INET else peer), peer_port))
    return frozenset(found)


def _text(packed: bytes) -> Address:
    address = ipaddress.ip_address(packed)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return Address(str(mapped or address))
