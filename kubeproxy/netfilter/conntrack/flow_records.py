"""Decodes translated flows as ctnetlink writes them, for counting and for the access log.

A table may have hundreds of thousands of flows, which are read again and again, and every ended flow has an event. A
kernel writes the same attributes in the same order for most of them. So only the first record of each kind is parsed
attribute by attribute. Its layout is cached, and with the layout a single call of `struct` reads all values of a
further record. Addresses and ports stay bytes until they are needed as text.
"""

from __future__ import annotations

import re
import socket
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Final, NamedTuple, Union

from kubeproxy.model import Protocol
from kubeproxy.netfilter.netlink.messages import (
    ATTRIBUTE_HEADER,
    HEADER,
    NLM_F_DUMP,
    NLMSG_DONE,
    NLMSG_ERROR,
    attributes,
    encode,
    frame,
)

NEW, GET, DELETE = 0x100, 0x101, 0x102  # NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_*
"""Kinds of messages (linux/netfilter/nfnetlink_conntrack.h). `DELETE` is also the event of a flow's end."""
NFGEN: Final = struct.Struct("=BBH")  # family, version, resource
TUPLE_ORIG, TUPLE_REPLY, STATUS, PROTOINFO, TIMEOUT = 1, 2, 3, 4, 7  # CTA_*
COUNTERS_ORIG, COUNTERS_REPLY, ID, TIMESTAMP, FILTER, STATUS_MASK = 9, 10, 12, 20, 25, 26
SEEN_REPLY, DST_NAT = 1 << 1, 1 << 5
"""IPS_SEEN_REPLY, IPS_DST_NAT (linux/netfilter/nf_conntrack_common.h)."""
NESTED = 0x8000
_PROTOINFO_TCP, _TCP_STATE = 1, 1
_BYTES, _START, _STOP = 2, 1, 2  # CTA_COUNTERS_BYTES, CTA_TIMESTAMP_*
_TUPLE_IP, _TUPLE_PROTO, _PROTO_NUM, _SRC_PORT, _DST_PORT = 1, 2, 1, 2, 3
_FILTER_REPLY, _IP_SOURCE = 2, 1 << 0  # CTA_FILTER_REPLY_FLAGS, CTA_FILTER_FLAG(CTA_IP_SRC)
_IP: Final[Mapping[int, tuple[int, int, int]]] = {socket.AF_INET: (1, 2, 4), socket.AF_INET6: (3, 4, 16)}
"""CTA_IP_*_SRC, CTA_IP_*_DST, and the length of an address in bytes, by address family."""
_FAMILY: Final = {size: family for family, (_, _, size) in _IP.items()}

PROTOCOLS: Final = {bytes([socket.IPPROTO_TCP]): Protocol.TCP, bytes([socket.IPPROTO_UDP]): Protocol.UDP}
"""The protocols by their number, as a byte. Flows of other protocols are never ours."""

LAYOUTS: Final = 64
"""The largest number of cached layouts. Records with any other layout are parsed attribute by attribute."""

_Tree = Mapping[int, Union["_Tree", tuple[str, str]]]
"""The attributes to read, by type. The value is a tree for an attribute that contains attributes, or else the name of
the value and its `struct` format."""

Route = tuple[bytes, bytes, bytes, bytes, bytes]
"""The values that decide to which Service a flow belongs, in network byte order: protocol, destination, its port,
endpoint, its port."""


class FlowRecord(NamedTuple):
    """A flow at one moment."""

    route: Route
    source: bytes
    source_port: bytes
    identity: bytes
    """The kernel's number for the flow. Two flows may have the same number, but not at the same time with the same
    source."""
    status: int
    """The status as IPS_* bits."""
    tcp_state: int | None
    """The TCP state (TCP_CONNTRACK_*). It is None if the flow is not TCP, or if the record does not have it."""
    remaining_s: int
    """The seconds until the flow expires. It is 0 if the flow has expired, or if the record does not have it."""
    bytes_in: int | None
    """The bytes of the client's packets, with IP headers, or None if they are not counted
    (net.netfilter.nf_conntrack_acct)."""
    bytes_out: int | None
    """The bytes of the endpoint's packets, counted in the same way."""
    started_ns: int | None
    """When the flow began (Unix time), or None if unknown (net.netfilter.nf_conntrack_timestamp)."""
    stopped_ns: int | None
    """When the flow expired or was deleted (Unix time), or None if unknown or if it still exists."""

    @property
    def key(self) -> bytes:
        """Return a key that no other flow has at the same time."""
        return self.identity + self.source + self.source_port


def dump_request(sequence: int) -> bytes:
    """Return the request for all flows with a translated destination, of both families.

    Kernels before 5.18 cannot filter by status. They answer with all flows, and `records` skips the others."""
    wanted = [(STATUS, struct.pack(">I", DST_NAT)), (STATUS_MASK, struct.pack(">I", DST_NAT))]
    return frame(GET, NFGEN.pack(socket.AF_UNSPEC, 0, 0) + encode(wanted), flags=NLM_F_DUMP, sequence=sequence)


def dump_all_request(sequence: int, family: int) -> bytes:
    """Return the request for all flows of a family."""
    return frame(GET, NFGEN.pack(family, 0, 0), flags=NLM_F_DUMP, sequence=sequence)


def dump_to_request(sequence: int, address: bytes) -> bytes:
    """Return the request for all flows whose replies come from an IPv4 address, translated or not.

    Kernels before 5.8 cannot filter by address. They answer with all IPv4 flows.
    """
    source, *_ = _IP[socket.AF_INET]
    answerer = encode([(_TUPLE_IP | NESTED, encode([(source, address)]))])
    wanted = [
        (TUPLE_REPLY | NESTED, answerer),
        (FILTER | NESTED, encode([(_FILTER_REPLY, struct.pack("=I", _IP_SOURCE))])),
    ]
    return frame(GET, NFGEN.pack(socket.AF_INET, 0, 0) + encode(wanted), flags=NLM_F_DUMP, sequence=sequence)


def records(
    data: bytes, kind: int, *, status: int = DST_NAT, among: re.Pattern[bytes] | None = None
) -> Iterator[FlowRecord]:
    """Yield the TCP and UDP flows in the result of one read from a socket: those in messages of this kind that have all
    of the given IPS_* bits, by default those with a translated destination. With `among`, skip messages that do not
    match this pattern (see `naming`)."""
    at, head = 0, HEADER.size + NFGEN.size
    spots = None if among is None else iter([match.start() for match in among.finditer(data)])
    spot = -1 if spots is None else next(spots, len(data))
    while at + head <= len(data):
        length, its, *_ = HEADER.unpack_from(data, at)
        if length < HEADER.size or at + length > len(data):
            return
        if (
            its == kind
            and length >= head
            and spot < at + length
            and (found := _record(data, at + head, at + length))
            and found.status & status == status
        ):
            yield found
        at += (length + 3) & ~3
        while spots is not None and spot < at:
            spot = next(spots, len(data))


def naming(addresses: Iterable[bytes]) -> re.Pattern[bytes]:
    """Return a pattern that matches every message about a flow from one of these addresses, or answered by one of
    them."""
    attributes_of = sorted(ATTRIBUTE_HEADER.pack(4 + len(it), _IP[_FAMILY[len(it)]][0]) + it for it in addresses)
    return re.compile(b"|".join(map(re.escape, attributes_of)), re.DOTALL)


def end_of_dump(data: bytes) -> int | None:
    """Return the error number (0 for success) if a dump ends in the result of this read. Return None if the dump
    continues."""
    at = 0
    while at + HEADER.size <= len(data):
        length, kind, *_ = HEADER.unpack_from(data, at)
        if length < HEADER.size:
            return None
        if kind in (NLMSG_DONE, NLMSG_ERROR):
            return -int.from_bytes(data[at + HEADER.size : at + HEADER.size + 4], sys.byteorder, signed=True)
        at += (length + 3) & ~3
    return None


def _record(data: bytes, start: int, end: int) -> FlowRecord | None:
    """Return the flow in a message, whose attributes are from `start` to `end`."""
    key = data[start - NFGEN.size], end - start
    for known in _layouts.get(key, ()):
        if (known_flow := known.read(data, start)) is not None:
            return known_flow
    body = data[start - NFGEN.size : end]
    found = walked(body)
    if found is not None and sum(map(len, _layouts.values())) < LAYOUTS:
        layout = _Layout.of(body)
        if layout is not None and layout.read(body, NFGEN.size) == found:
            _layouts[key] = (*_layouts.get(key, ()), layout)
    return found


def walked(body: bytes) -> FlowRecord | None:
    """Return the flow in a message's body by parsing each attribute. Return None if the flow is not TCP or UDP, or
    belongs to a conntrack zone."""
    if len(body) < NFGEN.size or body[0] not in _IP:
        return None
    found = inside(body[NFGEN.size :])
    original, reply = _tuple(found.get(TUPLE_ORIG, b""), body[0]), _tuple(found.get(TUPLE_REPLY, b""), body[0])
    if original is None or reply is None or len(found.get(STATUS, b"")) != 4:
        return None
    number, source, address, source_port, port = original
    _, target, _, target_port, _ = reply
    big = int.from_bytes
    state = inside(inside(found.get(PROTOINFO, b"")).get(_PROTOINFO_TCP, b"")).get(_TCP_STATE, b"")
    times = inside(found.get(TIMESTAMP, b""))
    return FlowRecord(
        (number, address, port, target, target_port),
        source,
        source_port,
        found.get(ID, b""),
        big(found[STATUS], "big"),
        state[0] if state else None,
        big(found.get(TIMEOUT, b""), "big"),
        _number(inside(found.get(COUNTERS_ORIG, b"")).get(_BYTES)),
        _number(inside(found.get(COUNTERS_REPLY, b"")).get(_BYTES)),
        _number(times.get(_START)),
        _number(times.get(_STOP)),
    )


def _number(value: bytes | None) -> int | None:
    return None if value is None else int.from_bytes(value[:8], "big")


def inside(data: bytes) -> dict[int, bytes]:
    """Return the attributes by type. The flag that marks nested attributes is removed from the type."""
    return {kind & ~NESTED: value for kind, value in attributes(data)}


def _tuple(data: bytes, family: int) -> tuple[bytes, bytes, bytes, bytes, bytes] | None:
    """Return protocol, source, destination, source port and destination port. Return None for other protocols and for
    flows in a conntrack zone."""
    found = inside(data)
    if found.keys() != {_TUPLE_IP, _TUPLE_PROTO}:
        return None
    addresses, ports = inside(found[_TUPLE_IP]), inside(found[_TUPLE_PROTO])
    src, dst, size = _IP[family]
    values = tuple(
        part.get(kind, b"")
        for part, kind in (
            (ports, _PROTO_NUM),
            (addresses, src),
            (addresses, dst),
            (ports, _SRC_PORT),
            (ports, _DST_PORT),
        )
    )
    if tuple(map(len, values)) != (1, size, size, 2, 2) or values[0] not in PROTOCOLS:
        return None
    return values  # type: ignore[return-value]  # Their lengths show that there are five.


class _Layout:
    """The layout of a record's attributes. With it, one call reads all values of any record of the same layout."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        form, fixed, expected, places, at = [">"], list[int](), list[bytes](), dict[str, int](), 0
        for part in parts:
            form.append(part.form)
            if part.fixed:
                fixed.append(at)
                expected.append(part.fixed)
            elif part.field:
                places[part.field] = at
            at += not part.form.endswith("x")
        self._struct = struct.Struct("".join(form))
        self._fixed = itemgetter(*fixed)
        self._expected = tuple(expected)
        self._values = itemgetter(*(places.get(name, -1) for name in _FIELDS))

    @classmethod
    def of(cls, body: bytes) -> _Layout | None:
        """Return the layout of a record that `walked` accepts, or None if the record's lengths are inconsistent."""
        layout = cls(_joined(_parts(body[NFGEN.size :], _TREE[body[0]])))
        return layout if layout._struct.size == len(body) - NFGEN.size else None

    def read(self, data: bytes, at: int) -> FlowRecord | None:
        """Return the flow whose attributes begin at `at`, or None if its layout differs."""
        found = self._struct.unpack_from(data, at)
        if self._fixed(found) != self._expected:
            return None
        number, address, port, target, target_port, *more = self._values((*found, None))
        source, source_port, identity, status, state, left, in_, out, started, stopped = more
        if number not in PROTOCOLS:
            return None
        return FlowRecord(
            (number, address, port, target, target_port),
            source,
            source_port,
            identity or b"",
            status,
            state,
            left or 0,
            in_,
            out,
            started,
            stopped,
        )


class _Part(NamedTuple):
    """A piece of a record: fixed bytes (attribute headers), a value, or ignored bytes."""

    form: str
    """The piece's format for `struct`."""
    fixed: bytes = b""
    field: str = ""


def _parts(data: bytes, tree: _Tree) -> Iterator[_Part]:
    """Yield the pieces of these attributes."""
    at = 0
    while at + ATTRIBUTE_HEADER.size <= len(data):
        length, kind = ATTRIBUTE_HEADER.unpack_from(data, at)
        if length < ATTRIBUTE_HEADER.size or at + length > len(data):
            return
        value_at, end = at + ATTRIBUTE_HEADER.size, at + length
        yield _Part(f"{ATTRIBUTE_HEADER.size}s", data[at:value_at])
        match tree.get(kind & ~NESTED):
            case dict() as below:
                yield from _parts(data[value_at:end], below)
            case field, form if struct.calcsize(f">{form}") == end - value_at:
                yield _Part(form, field=field)
            case _:
                yield _Part(f"{end - value_at}x")
        at += (length + 3) & ~3
        yield _Part(f"{min(at, len(data)) - end}x")


def _joined(parts: Iterable[_Part]) -> list[_Part]:
    """Return the same pieces, with adjacent fixed bytes joined."""
    found: list[_Part] = []
    for part in parts:
        if part.form == "0x":
            continue
        if part.fixed and found and found[-1].fixed:
            fixed = found.pop().fixed + part.fixed
            part = _Part(f"{len(fixed)}s", fixed)
        found.append(part)
    return found


def _tuple_tree(family: int, names: tuple[str, str, str, str, str]) -> _Tree:
    src, dst, size = _IP[family]
    number, source, destination, source_port, destination_port = names
    addresses: _Tree = {src: (source, f"{size}s"), dst: (destination, f"{size}s")}
    ports: _Tree = {_PROTO_NUM: (number, "1s"), _SRC_PORT: (source_port, "2s"), _DST_PORT: (destination_port, "2s")}
    return {_TUPLE_IP: addresses, _TUPLE_PROTO: ports}


_FIELDS: Final = (
    *("number", "address", "port", "target", "target_port", "source", "source_port", "identity"),
    *("status", "state", "left", "in", "out", "started", "stopped"),
)
_TREE: Final[dict[int, _Tree]] = {
    family: {
        TUPLE_ORIG: _tuple_tree(family, ("number", "source", "address", "source_port", "port")),
        TUPLE_REPLY: _tuple_tree(family, ("", "target", "", "target_port", "")),
        STATUS: ("status", "I"),
        PROTOINFO: {_PROTOINFO_TCP: {_TCP_STATE: ("state", "B")}},
        TIMEOUT: ("left", "I"),
        COUNTERS_ORIG: {_BYTES: ("in", "Q")},
        COUNTERS_REPLY: {_BYTES: ("out", "Q")},
        ID: ("identity", "4s"),
        TIMESTAMP: {_START: ("started", "Q"), _STOP: ("stopped", "Q")},
    }
    for family in _IP
}
_layouts: dict[tuple[int, int], tuple[_Layout, ...]] = {}
"""The layouts found so far, by family and length of the record. Kernels write only a handful of them."""
