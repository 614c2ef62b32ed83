"""Makes requests to ctnetlink and parses the flows in its answers (linux/netfilter/nfnetlink_conntrack.h).

A dump has thousands of flows, few of which are ever deleted. So a flow is parsed by a single regular expression over
the bytes that the kernel writes for its protocol. That takes half as long as decoding a whole `FlowRecord`, of which
only six values would be used. Only the record of a flow to delete is decoded attribute by attribute.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache

from kubeproxy.model import Address, Family, Protocol, family_of
from kubeproxy.netfilter.conntrack.flow_records import (
    DELETE,
    DST_NAT,
    GET,
    ID,
    NESTED,
    NEW,
    NFGEN,
    PROTOINFO,
    SEEN_REPLY,
    STATUS,
    STATUS_MASK,
    TUPLE_ORIG,
    TUPLE_REPLY,
    inside,
)
from kubeproxy.netfilter.conntrack.stale_flows import TrackedFlow
from kubeproxy.netfilter.netlink.messages import (
    ATTRIBUTE_HEADER,
    NLM_F_ACK,
    NLM_F_DUMP,
    Message,
    encode,
    frame,
)

_FILTER = 25  # CTA_FILTER
_PROTOINFO_TCP, _PROTOINFO_TCP_STATE = 1, 1
_SYN_SENT, _ESTABLISHED, _CLOSE = 1, 3, 8
"""TCP_CONNTRACK_* (linux/netfilter/nf_conntrack_tcp.h): the state before the server's answer, the first state after the
handshake, and the last state, after which the flow may be reused."""
_TUPLE_IP, _TUPLE_PROTO = 1, 2
_PROTO_NUM, _PROTO_SRC_PORT, _PROTO_DST_PORT = 1, 2, 3
_FILTER_ORIG_FLAGS, _FILTER_REPLY_FLAGS = 1, 2
_BY_IP_SRC, _BY_IP_DST, _BY_PROTO_NUM, _BY_PROTO_SRC_PORT, _BY_PROTO_DST_PORT = (1 << bit for bit in (0, 1, 3, 4, 5))
"""The parts of a tuple that a filter can compare."""

_NUMBERS = {Protocol.TCP: socket.IPPROTO_TCP, Protocol.UDP: socket.IPPROTO_UDP}
_INET = {Family.IPV4: socket.AF_INET, Family.IPV6: socket.AF_INET6}
_IP_SRC_DST = {Family.IPV4: (1, 2, 4), Family.IPV6: (3, 4, 16)}
"""CTA_IP_*_SRC, CTA_IP_*_DST, and the length of an address in bytes."""


def dump_request(
    family: Family,
    sequence: int,
    protocol: Protocol = Protocol.UDP,
    *,
    unanswered: bool = False,
    translated: bool = False,
    target: Address | None = None,
) -> bytes:
    """Return the request for the flows of a family and protocol: all, or those that are not answered, have a translated
    destination, or are translated to an IPv4 address. Kernels before 5.8 do not filter by protocol and address, and
    kernels before 5.18 do not filter by status, so they answer with other flows, too."""
    flows = _nest(TUPLE_ORIG, _nest(_TUPLE_PROTO, _attribute(_PROTO_NUM, bytes([_NUMBERS[protocol]]))))
    filters = [(_FILTER_ORIG_FLAGS, _BY_PROTO_NUM)]
    if target is not None:
        source, *_ = _IP_SRC_DST[family]
        packed = ipaddress.ip_address(target).packed
        flows += _nest(TUPLE_REPLY, _nest(_TUPLE_IP, _attribute(source, packed)))
        filters.append((_FILTER_REPLY_FLAGS, _BY_IP_SRC))
    by = _nest(_FILTER, b"".join(_attribute(kind, struct.pack("=I", bits)) for kind, bits in filters))
    bits, mask = DST_NAT * translated, DST_NAT * translated | SEEN_REPLY * unanswered
    by_status = [(STATUS, bits), (STATUS_MASK, mask)] if mask else []
    status = b"".join(_attribute(kind, struct.pack(">I", bits)) for kind, bits in by_status)
    return _request(GET, NLM_F_DUMP, family, sequence, flows + by + status)


def delete_request(flow: TrackedFlow, sequence: int) -> bytes:
    """Return the request to delete this flow, but no newer flow of the same client and destination.

    A client may reuse its port between the reading of a flow and its deletion. Then the flow's original tuple would
    name a new flow that was never examined. The flow's identity does not prevent this: the kernel computes it from the
    flow's memory address and its destination, and a flow that replaces a closed one mostly has both in common with it
    (net/netfilter/nf_conntrack_core.c, nf_ct_get_id). So the request names the flow by the tuple of its replies. A new
    flow, translated by the present rules, has a different reply tuple.

    A flow outside the default conntrack zone is not found, because the owner of a zone (a virtual switch) translates
    its flows itself.
    """
    found = inside(flow.record)
    family = Family.IPV6 if ":" in flow.address else Family.IPV4
    replies = _nest(TUPLE_REPLY, found[TUPLE_REPLY])
    identity = _attribute(ID, found[ID]) if ID in found else b""
    return _request(DELETE, NLM_F_ACK, family, sequence, replies + identity)


def delete_unanswered_requests(
    flows: Sequence[TrackedFlow], protocol: Protocol, sequences: Iterator[int]
) -> list[bytes]:
    """Return the requests to delete those of these flows that are still unanswered. All flows have the same target and
    family.

    For each request the kernel walks through all flows, and checks each flow when it deletes it. Kernels that cannot
    filter deletions read the filter as the tuple of a single flow, find it incomplete, and answer EINVAL.

    An IPv4 filter names destination and target, and matches all flows between them. Linux 6.18 compares IPv6 addresses
    in filters with inverted logic, so an IPv6 filter names only the three ports of one client's flow. This may also
    delete another unanswered flow with the same ports, whose client retransmits its SYN after a second.
    """
    filters = {
        (flow.address if family_of(flow.address) is Family.IPV4 else flow.source_port, flow.port): flow
        for flow in flows
    }
    return [_delete_unanswered(flow, protocol, next(sequences)) for flow in filters.values()]


def _delete_unanswered(flow: TrackedFlow, protocol: Protocol, sequence: int) -> bytes:
    family = family_of(flow.address)
    source, destination, _ = _IP_SRC_DST[family]
    number = _attribute(_PROTO_NUM, bytes([_NUMBERS[protocol]]))

    def side(kind: int, ip: int, address: Address, *ports: tuple[int, int]) -> bytes:
        packed = _nest(_TUPLE_IP, _attribute(ip, ipaddress.ip_address(address).packed))
        numbers = b"".join(_attribute(which, struct.pack("!H", port)) for which, port in ports)
        return _nest(kind, packed + _nest(_TUPLE_PROTO, number + numbers))

    ports = ((_PROTO_SRC_PORT, flow.source_port), (_PROTO_DST_PORT, flow.port))
    original, reply = _BY_PROTO_NUM | _BY_PROTO_DST_PORT, _BY_PROTO_NUM | _BY_PROTO_SRC_PORT
    if family is Family.IPV4:
        original, reply = original | _BY_IP_DST, reply | _BY_IP_SRC
    else:
        original |= _BY_PROTO_SRC_PORT
    flags = ((_FILTER_ORIG_FLAGS, original), (_FILTER_REPLY_FLAGS, reply))
    status = ((STATUS, DST_NAT), (STATUS_MASK, DST_NAT | SEEN_REPLY))
    return _request(
        DELETE,
        NLM_F_ACK,
        family,
        sequence,
        side(TUPLE_ORIG, destination, flow.address, *ports)
        + side(TUPLE_REPLY, source, flow.target, (_PROTO_SRC_PORT, flow.target_port))
        + _nest(_FILTER, b"".join(_attribute(kind, struct.pack("=I", bits)) for kind, bits in flags))
        + b"".join(_attribute(kind, struct.pack(">I", bits)) for kind, bits in status),
    )


def parse_flow(message: Message, protocol: Protocol = Protocol.UDP) -> TrackedFlow | None:
    """Return the flow in an answer to `dump_request`, or None if the flow has another protocol or belongs to a
    conntrack zone."""
    if message.kind != NEW:
        return None
    record = message.body[NFGEN.size :]
    match = _SHAPES[protocol, Family.IPV4].match(record) or _SHAPES[protocol, Family.IPV6].match(record)
    if match is None:
        return None
    source, address, source_port, port, target, target_port = match.groups()
    number = int.from_bytes
    return TrackedFlow(
        _text(source),
        number(source_port, "big"),
        _text(address),
        number(port, "big"),
        _text(target),
        number(target_port, "big"),
        record,
    )


def has_begun(flow: TrackedFlow) -> bool:
    """Return whether the handshake of a TCP flow is complete."""
    return _ESTABLISHED <= _tcp_state(flow) <= _CLOSE


def is_unanswered(flow: TrackedFlow) -> bool:
    """Return whether a TCP flow has a SYN from its client but no answer."""
    return _tcp_state(flow) == _SYN_SENT


def _tcp_state(flow: TrackedFlow) -> int:
    protocol_info = inside(flow.record).get(PROTOINFO, b"")
    state = inside(inside(protocol_info).get(_PROTOINFO_TCP, b"")).get(_PROTOINFO_TCP_STATE, b"")
    return int.from_bytes(state, sys.byteorder)


def peer(flow: TrackedFlow) -> tuple[Address, int]:
    """Return the destination of the flow's replies: the client's address and port, or those to which the client was
    translated (SNAT)."""
    reply = inside(inside(flow.record)[TUPLE_REPLY])
    _, destination, _ = _IP_SRC_DST[family_of(flow.address)]
    address = inside(reply[_TUPLE_IP])[destination]
    return _text(address), int.from_bytes(inside(reply[_TUPLE_PROTO])[_PROTO_DST_PORT], "big")


@lru_cache(maxsize=8192)
def _text(packed: bytes) -> Address:
    return Address(str(ipaddress.ip_address(packed)))


def _request(kind: int, flags: int, family: Family, sequence: int, attributes: bytes) -> bytes:
    return frame(kind, NFGEN.pack(_INET[family], 0, 0) + attributes, flags=flags, sequence=sequence)


def _attribute(kind: int, value: bytes) -> bytes:
    return encode([(kind, value)])


def _nest(kind: int, value: bytes) -> bytes:
    return encode([(kind | NESTED, value)])


def _shape(protocol: Protocol, family: Family) -> re.Pattern[bytes]:
    """Return a pattern that matches a record beginning with the two tuples of such a flow.

    Its groups are the source, the destination, their ports, and the source of the replies with its port.
    """
    src, dst, size = _IP_SRC_DST[family]
    ip_length = 2 * (ATTRIBUTE_HEADER.size + size)
    proto_length = 3 * (ATTRIBUTE_HEADER.size + 4)

    def head(kind: int, length: int) -> bytes:
        return re.escape(ATTRIBUTE_HEADER.pack(ATTRIBUTE_HEADER.size + length, kind))

    def one(kind: int, groups: tuple[bytes, bytes, bytes, bytes]) -> bytes:
        source, destination, source_port, destination_port = groups
        return b"".join(
            [
                head(kind | NESTED, 2 * ATTRIBUTE_HEADER.size + ip_length + proto_length),
                head(_TUPLE_IP | NESTED, ip_length),
                head(src, size) + source,
                head(dst, size) + destination,
                head(_TUPLE_PROTO | NESTED, proto_length),
                head(_PROTO_NUM, 1) + re.escape(bytes([_NUMBERS[protocol]])) + b"...",
                head(_PROTO_SRC_PORT, 2) + source_port + b"..",
                head(_PROTO_DST_PORT, 2) + destination_port + b"..",
            ]
        )

    address, port = b".{%d}" % size, b".."
    original = one(TUPLE_ORIG, (b"(%b)" % address, b"(%b)" % address, b"(%b)" % port, b"(%b)" % port))
    reply = one(TUPLE_REPLY, (b"(%b)" % address, address, b"(%b)" % port, port))
    return re.compile(original + reply, re.DOTALL)


_SHAPES = {(protocol, family): _shape(protocol, family) for protocol in _NUMBERS for family in Family}
