"""Messages of the kernel's packet log (linux/netfilter/nfnetlink_log.h). Pure.

One read from the socket has what the kernel has collected: copies, and at most one report, the last in it, because a
report is sent at once. Copies are many and are read only when one is needed, so this tells them apart and counts them
without reading them.
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
"""Of a netlink message."""
_REPORTED: Final = REPORT_PREFIX.encode() + b"\0"
GROUPS: Final = range(27_504, 27_520)
"""Of the packet log. A process takes the first that is free: two instances may run, at a takeover."""
FLUSH_S: Final = 0.05
"""The longest time that the kernel collects packets; it counts in hundredths of a second."""
BUFFER_BYTES: Final = 65_000
"""Of one message: room for as many SYNs as the rules let the kernel collect. With its own data the kernel needs less
than 64 KiB for it, the next size of its allocator."""
READ_BYTES: Final = 128 << 10
"""More than the kernel ever puts into one message: a packet that is longer than its buffer gets a buffer of its own."""


class Logged(NamedTuple):
    """A packet of the log."""

    reported: bool
    """Whether a rule has reported it as a failure; otherwise it is a copy."""
    packet: bytes
    """From its IP header on, as far as the rule copies it."""


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
    """Return whether one read from the socket may have a report. It has none when this says no.

    A client can write the same bytes into its packet; then `packets` has no report."""
    return _REPORTED in data


def packets(data: bytes) -> Iterator[Logged]:
    """Yield the packets of one read from the socket."""
    for message in parse(data):
        if message.kind != _PACKET:
            continue
        reported = False
        # The kernel writes the packet last, behind what it knows of it.
        for kind, value in attributes(message.body[_NFGEN_BYTES:]):
            if kind == _PAYLOAD:
                yield Logged(reported, value)
                break
            reported = reported or (kind == _PREFIX and value == _REPORTED)


def copies(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The packets of one read from the socket that are not reported, each after the number of the interface by which it
    came; 0: it is this host's own. As `packets`, for many."""
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
