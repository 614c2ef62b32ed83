"""Messages of the packet log, as the kernel writes them."""

from __future__ import annotations

import struct

from kubeproxy.netfilter.netlink.messages import NLMSG_DONE, encode, frame
from kubeproxy.netfilter.nftables.rescue import REPORT_PREFIX

_PACKET = 4 << 8
_HEADER = struct.pack("=BBH", 2, 0, 1)
LINK = 7
_KNOWN = (
    (1, b"\x08\0\1\0"),
    (4, struct.pack(">I", LINK)),
    (15, b"\0\1"),
    (17, b"\0\x0e"),
    (16, bytes(14)),
    (3, bytes(16)),
)
"""What precedes a packet: its protocol and hook, the interface, the link layer's header, the time."""


def message(packet: bytes, *, prefix: str | None = None, own: bool = False) -> bytes:
    """One packet, of a client elsewhere or of this host; with the text of the rule that has logged it."""
    text = [(10, prefix.encode() + b"\0")] if prefix is not None else []
    known = [*_KNOWN[2:]] if own else [*_KNOWN[1:]]
    framed = frame(_PACKET, _HEADER + encode([_KNOWN[0], *text, *known, (9, packet)]), flags=0, sequence=0)
    return framed.ljust((len(framed) + 3) & ~3, b"\0")


def report(packet: bytes) -> bytes:
    """A packet that a rule reports as a failure."""
    return message(packet, prefix=REPORT_PREFIX)


def read(*messages: bytes) -> bytes:
    """One read from the socket: several messages end with another one."""
    end = frame(NLMSG_DONE, bytes(4), flags=0, sequence=0) if len(messages) > 1 else b""
    return b"".join(messages) + end
