"""Messages of ctnetlink about translated flows, as the kernel writes them."""

from __future__ import annotations

import socket
import struct
import sys

from kubeproxy.netfilter.conntrack.flow_records import DELETE, DST_NAT, NEW, NFGEN, SEEN_REPLY
from kubeproxy.netfilter.netlink.messages import encode, frame

STATUS = SEEN_REPLY | DST_NAT


def attribute(kind: int, value: bytes) -> bytes:
    """One attribute."""
    return encode([(kind, value)])


def nest(kind: int, *inside: bytes) -> bytes:
    """One attribute that has others inside."""
    return encode([(kind | 0x8000, b"".join(inside))])


def one_way(kind: int, source: tuple[str, int], destination: tuple[str, int], protocol: int, *more: bytes) -> bytes:
    """One tuple of a flow."""
    six = ":" in source[0]
    family = socket.AF_INET6 if six else socket.AF_INET
    src, dst = (3, 4) if six else (1, 2)
    addresses = [
        attribute(src, socket.inet_pton(family, source[0])),
        attribute(dst, socket.inet_pton(family, destination[0])),
    ]
    ports = [attribute(2, struct.pack("!H", source[1])), attribute(3, struct.pack("!H", destination[1]))]
    return nest(kind, nest(1, *addresses), nest(2, attribute(1, bytes([protocol])), *ports), *more)


def flow(
    source: tuple[str, int] = ("10.2.0.2", 50000),
    destination: tuple[str, int] = ("10.96.0.10", 80),
    target: tuple[str, int] = ("10.3.0.2", 8080),
    *,
    protocol: int = socket.IPPROTO_TCP,
    state: int | None = 3,
    status: int = STATUS,
    number: int = 7,
    counts: tuple[int, int] | None = (1000, 2000),
    left: int | None = 86400,
    times: tuple[int, ...] = (),
    end: bool = False,
    more: bytes = b"",
) -> bytes:
    """The message about a flow; `times`: start, and stop at its `end`."""
    parts = [
        one_way(1, source, destination, protocol),
        one_way(2, target, source, protocol),
        attribute(3, struct.pack("!I", status)),
        more,
        attribute(12, struct.pack("!I", number)),
    ]
    if left is not None:
        parts.append(attribute(7, struct.pack("!I", left)))
    if state is not None:
        scales = b"" if end else attribute(2, b"\n") + attribute(3, b"\n") + attribute(4, b"##") + attribute(5, b"##")
        parts.append(nest(4, nest(1, attribute(1, bytes([state])), scales)))
    for kind, count in zip((9, 10), counts or (), strict=False):
        parts.append(nest(kind, attribute(1, struct.pack("!Q", 5)), attribute(2, struct.pack("!Q", count))))
    if times:
        parts.append(nest(20, *(attribute(at, struct.pack("!Q", when)) for at, when in enumerate(times, 1))))
    family = socket.AF_INET6 if ":" in source[0] else socket.AF_INET
    return frame(DELETE if end else NEW, NFGEN.pack(family, 0, 0) + b"".join(parts), flags=2, sequence=1)


def done(error: int = 0) -> bytes:
    """The end of a dump."""
    return frame(3, (-error).to_bytes(4, sys.byteorder, signed=True), flags=2, sequence=1)
