"""Messages of NFLOG (linux/netfilter/nfnetlink_log.h).

One read from the socket returns what the kernel has collected: copies, and at most one report, which is the last
message because a report is sent at once. There are many copies, and each is read only when it is needed. So this module
distinguishes and counts them without reading them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from kubeproxy.netfilter.netlink.messages import ATTRIBUTE_HEADER, NLM_F_ACK, attributes, encode, frame, parse
from kubeproxy.netfilter.nftables.rescue import REPORT_PREFIX

_PACKET: Final = 4 << 8  # NFNL_SUBSYS_ULOG << 8 | NFULNL_MSG_PACKET
_CONFIG: Final = _PACKET | 1
_CFG_CMD, _CFG_MODE, _CFG_BUFFER, _CFG_TIMEOUT, _CFG_THRESHOLD = 1, 2, 3, 4, 5  # NFULA_CFG_*
_BIND, _COPY_PACKET = 1, 2
_CAME_BY, _PAYLOAD, _PREFIX = 4, 9, 10  # NFULA_IFINDEX_INDEV, NFULA_*
_NFGEN_BYTES: Final = 4
_LENGTH_AND_KIND: Final = struct.Struct("=IH")
_HEADER_BYTES: Final = 16
"""The size of a netlink header."""
_REPORTED: Final = REPORT_PREFIX.encode() + b"\0"
GROUPS: Final = range(27_504, 27_520)
"""The NFLOG groups. A process takes the first that is free, because two instances may run during a takeover."""
FLUSH_S: Final = 0.05
"""The longest time for which the kernel collects packets. It counts in hundredths of a second."""
BUFFER_BYTES: Final = 65_000
"""The size of one message in bytes: room for as many SYNs as the rules let the kernel collect. With its own data the
kernel needs less than 64 KiB, the next size of its allocator."""
READ_BYTES: Final = 128 << 10
"""More bytes than the kernel ever puts into one message. A packet that is longer than its buffer gets a buffer of its
own."""


class Logged(NamedTuple):
    """A packet from NFLOG."""

    reported: bool
    """Whether a rule has reported the packet as a failure. Otherwise it is a copy."""
    packet: bytes
    """The packet from its IP header on, as far as the rule copies it."""


def bind_request(group: int, *, packet_bytes: int, threshold: int, sequence: int) -> bytes:
    """Return the request for a group's packets. The kernel answers EPERM when another socket has the group."""
    values = [
        (_CFG_CMD, bytes([_BIND])),
        (_CFG_MODE, struct.pack(">IBx", packet_bytes, _COPY_PACKET)),
        (_CFG_BUFFER, struct.pack(">I", BUFFER_BYTES)),
        (_CFG_TIMEOUT, struct.pack(">I", round(FLUSH_S * 100))),
        # A rule can only lower it.
        (_CFG_THRESHOLD, struct.pack(">I", threshold)),
    ]
    return frame(_CONFIG, struct.pack(">BBH", 0, 0, group) + encode(values), flags=NLM_F_ACK, sequence=sequence)


def count(data: bytes) -> int:
    """Return how many packets one read from the socket has."""
    found, at, end, unpack = 0, 0, len(data) - _HEADER_BYTES, _LENGTH_AND_KIND.unpack_from
    while at <= end:
        length, kind = unpack(data, at)
        if length < _HEADER_BYTES:
            break
        found += kind == _PACKET
        at += (length + 3) & ~3
    return found


def may_report(data: bytes) -> bool:
    """Return whether one read from the socket may contain a report. A False is certain.

    A client can write the same bytes into its packet. Then the answer is True, and `packets` has no report.
    """
    return _REPORTED in data


def packets(data: bytes) -> Iterator[Logged]:
    """Yield the packets of one read from the socket."""
    for message in parse(data):
        if message.kind != _PACKET:
            continue
        reported = False
        # The kernel writes the packet last, after the attributes that describe it.
        for kind, value in attributes(message.body[_NFGEN_BYTES:]):
            if kind == _PAYLOAD:
                yield Logged(reported, value)
                break
            reported = reported or (kind == _PREFIX and value == _REPORTED)


def copies(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Return the packets of one read from the socket that are not reported, each after the number of the interface by
    which it came. 0 means that it is this host's own. This is faster than `packets` if there are many."""
    at, end = 0, len(data) - _HEADER_BYTES
    unpack, attribute = _LENGTH_AND_KIND.unpack_from, ATTRIBUTE_HEADER.unpack_from
    while at <= end:
        length, kind = unpack(data, at)
        if length < _HEADER_BYTES:
            return
        inside, until = at + _HEADER_BYTES + _NFGEN_BYTES, min(at + length, len(data))
        at += (length + 3) & ~3
        if kind != _PACKET:
            continue
        link = 0
        while inside + ATTRIBUTE_HEADER.size <= until:
            size, name = attribute(data, inside)
            value_at, value_end = inside + ATTRIBUTE_HEADER.size, min(inside + size, until)
            if size < ATTRIBUTE_HEADER.size or (name == _PREFIX and data[value_at:value_end] == _REPORTED):
                break
            if name == _PAYLOAD:
                yield link, data[value_at:value_end]
                break
            if name == _CAME_BY:
                link = int.from_bytes(data[value_at:value_end], "big")
            inside += (size + 3) & ~3
