"""Decodes translated flows as ctnetlink writes them, for counting and for the access log.

A table may have hundreds of thousands of flows, each is read again and again, and at every end there is an event. A
kernel writes the same attributes in the same order for most of them. So the first record of each kind is walked
attribute by attribute, and its layout is kept. With the layout one call of `struct` reads all values of another record.
Addresses and ports stay bytes until a text is needed.
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
"""Kinds of messages (linux/netfilter/nfnetlink_conntrack.h); `DELETE` is the event of a flow's end, too."""
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
"""CTA_IP_*_SRC, CTA_IP_*_DST, and the bytes of an address."""
_FAMILY: Final = {size: family for family, (_, _, size) in _IP.items()}

PROTOCOLS: Final = {bytes([socket.IPPROTO_TCP]): Protocol.TCP, bytes([socket.IPPROTO_UDP]): Protocol.UDP}
"""The protocols by the byte in a record. Flows of any other protocol are never ours."""

LAYOUTS: Final = 64
"""The largest number of layouts that are kept. A record with any further layout is walked."""

_Tree = Mapping[int, Union["_Tree", tuple[str, str]]]
"""The attributes to be read, by type: a tree for an attribute that holds others, or else the name of the value and its
format."""

Route = tuple[bytes, bytes, bytes, bytes, bytes]
"""The values that decide to which Service a flow belongs, as bytes of the network: protocol, destination and its port,
the endpoint that the flow was translated to and its port."""


class FlowRecord(NamedTuple):
    """A flow at one moment."""

    route: Route
    source: bytes
    source_port: bytes
    identity: bytes
    """The kernel's number for the flow. Two flows may have the same number, but not from the same source at the same
    time."""
    status: int
    """The IPS_* bits."""
    tcp_state: int | None
    """The state (TCP_CONNTRACK_*), or None if the flow is not TCP or the kernel does not tell."""
    remaining_s: int
    """The seconds until the kernel forgets the flow. It is 0 if the flow has expired or the kernel does not tell."""
    bytes_in: int | None
    """The bytes of the client's packets with IP headers, or None if they are not counted
    (net.netfilter.nf_conntrack_acct)."""
    bytes_out: int | None
    """The bytes of the endpoint's packets, counted in the same way."""
    started_ns: int | None
    """The Unix time at which the flow began, or None if it is not known (net.netfilter.nf_conntrack_timestamp)."""
    stopped_ns: int | None
    """The Unix time at which the flow expired or was deleted, or None if it is not known or the flow still lives."""

    @property
    def key(self) -> bytes:
        """Return what distinguishes this flow from all other flows that exist at the same time."""
        return self.identity + self.source + self.source_port


def dump_request(sequence: int) -> bytes:
    """Return the request for all flows with a translated destination, of both families.

    Kernels before 5.18 do not filter by status. They answer with all flows, and `records` leaves the others out."""
    wanted = [(STATUS, struct.pack(">I", DST_NAT)), (STATUS_MASK, struct.pack(">I", DST_NAT))]
    return frame(GET, NFGEN.pack(socket.AF_UNSPEC, 0, 0) + encode(wanted), flags=NLM_F_DUMP, sequence=sequence)


def dump_all_request(sequence: int, family: int) -> bytes:
    """Return the request for all flows of a family."""
    return frame(GET, NFGEN.pack(family, 0, 0), flags=NLM_F_DUMP, sequence=sequence)


def dump_to_request(sequence: int, address: bytes) -> bytes:
    """Return the request for all flows that an IPv4 address answers, translated or not.

    Kernels before 5.8 do not filter by address. They answer with all IPv4 flows.
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
    """Yield the TCP and UDP flows in one read from a socket. Yield only flows in messages of this kind that have all of
    these IPS_* bits, by default those with a translated destination. With `among`, skip messages in which that is not
    found (see `naming`)."""
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
    """Return a pattern that is found in every message about a flow that comes from one of these addresses or is
    answered by one."""
    attributes_of = sorted(ATTRIBUTE_HEADER.pack(4 + len(it), _IP[_FAMILY[len(it)]][0]) + it for it in addresses)
    return re.compile(b"|".join(map(re.escape, attributes_of)), re.DOTALL)


def end_of_dump(data: bytes) -> int | None:
    """Return the error number with which a dump ends in this read from a socket (0 without an error), or None if the
    dump goes on."""
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
    """Return the flow of the message with its attributes from `start` to `end`."""
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
    """Return the flow in a message's body, whatever attributes it has. Return None if it is not TCP or UDP, or belongs
    to a conntrack zone."""
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
    """Return the attributes by type, without the flag that marks attributes with others inside."""
    return {kind & ~NESTED: value for kind, value in attributes(data)}


def _tuple(data: bytes, family: int) -> tuple[bytes, bytes, bytes, bytes, bytes] | None:
    """Return protocol, source, destination, source port and destination port. Return None for another protocol, or for
    a flow of a conntrack zone."""
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
    return values  # type: ignore[return-value]  # five, as their lengths show


class _Layout:
    """The layout of the attributes of a record. With it one call reads all values of a record that has the same
    layout."""

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
        """Return the layout of a record that `walked` accepts, or None if its lengths contradict each other."""
        layout = cls(_joined(_parts(body[NFGEN.size :], _TREE[body[0]])))
        return layout if layout._struct.size == len(body) - NFGEN.size else None

    def read(self, data: bytes, at: int) -> FlowRecord | None:
        """Return the flow whose attributes begin at `at`, or None if it has another layout."""
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
    """A piece of a record: fixed bytes (headers of attributes), a value, or bytes that are ignored."""

    form: str
    """The format in the notation of `struct`."""
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
    """Return the same pieces with neighbouring fixed bytes joined into one."""
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
"""The layouts met so far, by family and length of the record. Kernels write a handful of them."""
