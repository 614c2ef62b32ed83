"""Messages of NFLOG (linux/netfilter/nfnetlink_log.h).

One read from the socket returns what the kernel has collected: copies, and at most one report, which is the last
message because a report is sent at once. There are many copies, and few are ever needed. So this module tells copies
from reports, and counts them, without parsing each.
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
"""The NFLOG groups to choose from. A process takes the first free one, because two instances may run during a
takeover."""
FLUSH_S: Final = 0.05
"""The longest time for which the kernel collects packets. It counts in hundredths of a second."""
BUFFER_BYTES: Final = 65_000
"""The size of one message in bytes: room for as many SYNs as the rules let the kernel collect. Together with the
kernel's own header, it stays below 64 KiB, the next size of the kernel's allocator."""
READ_BYTES: Final = 128 << 10
"""The size of a read, larger than any message of the kernel. A packet that is longer than the kernel's buffer gets a
buffer of its own."""


class Logged(NamedTuple):
    """A packet from NFLOG."""

    reported: bool
    """Whether the packet is a report of a failure. Otherwise it is a copy of a SYN."""
    packet: bytes
    """The packet from its IP header on, as far as the rule copied it."""


def bind_request(group: int, *, packet_bytes: int, threshold: int, sequence: int) -> bytes:
    """Return the request to receive a group's packets. The kernel answers EPERM if another socket has the group."""
    values = [
        (_CFG_CMD, bytes([_BIND])),
        (_CFG_MODE, struct.pack(">IBx", packet_bytes, _COPY_PACKET)),
        (_CFG_BUFFER, struct.pack(">I", BUFFER_BYTES)),
        (_CFG_TIMEOUT, struct.pack(">I", round(FLUSH_S * 100))),
        # A rule can only lower this threshold.
        (_CFG_THRESHOLD, struct.pack(">I", threshold)),
    ]
    return frame(_CONFIG, struct.pack(">BBH", 0, 0, group) + encode(values), flags=NLM_F_ACK, sequence=sequence)


def count(data: bytes) -> int:
    """Return how many packets the result of one read contains."""
    found, at, end, unpack = 0, 0, len(data) - _HEADER_BYTES, _LENGTH_AND_KIND.unpack_from
    while at <= end:
        length, kind = unpack(data, at)
        if length < _HEADER_BYTES:
            break
        found += kind == _PACKET
        at += (length + 3) & ~3
    return found


def may_report(data: bytes) -> bool:
    """Return whether the result of one read may contain a report. False is certain.

    True may be wrong, because a client can write the same bytes into its packet. Then `packets` yields no report.
    """
    return _REPORTED in data


def packets(data: bytes) -> Iterator[Logged]:
    """Yield the packets in the result of one read."""
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
    """Yield the copies in the result of one read, each after the number of the interface on which it arrived (0 for
    this host's own packets). With many copies this is faster than `packets`."""
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
