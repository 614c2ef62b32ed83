"""Encodes rules of the legacy tables as the kernel's own bytes (``struct ipt_entry``, ``struct ip6t_entry``).

python-iptables can also build rules, but takes 0.7 ms for each, and reads rules through the process's standard output.
The layout is kernel ABI (linux/netfilter/x_tables.h, netfilter_ipv4/ip_tables.h, netfilter_ipv6/ip6_tables.h, and the
headers named below). Here, building a rule takes microseconds, and rules read from the kernel are compared as bytes.
"""

from __future__ import annotations

import socket
import struct
import sys
from functools import lru_cache

from kubeproxy.model import Address, Family, Protocol

Entry = bytes
"""A rule in canonical form: counters and fields used by the kernel are zero, names are padded with zeros, and standard
targets are given by name."""

_PROTOCOL_NUMBER = {Protocol.TCP: socket.IPPROTO_TCP, Protocol.UDP: socket.IPPROTO_UDP}

# ipt_entry: source, destination, their masks; the incoming interface and its mask, each followed by that of the
# outgoing one; protocol, flags; nfcache, target_offset, next_offset, comefrom; counters.
_ENTRY4 = struct.Struct("=4s4s4s4s16s16x16s16xHBx I HH I 16x")
# ip6t_entry: the same with longer addresses, a type of service and padding.
_ENTRY6 = struct.Struct("=16s16s16s16s16s16x16s16xHxBx3x I HH I 4x 16x")
_HEADER = struct.Struct("=H29sB")  # xt_entry_match, xt_entry_target: size, name, revision
_NOTES = {Family.IPV4: (84, 96, 112), Family.IPV6: (136, 148, 168)}
"""The offsets of nfcache, of comefrom and the counters, and of the end of the entry."""

NEW, INVALID, UNTRACKED, DNAT = 1 << 3, 1 << 0, 1 << 8, 1 << 7
"""Connection states of a packet (linux/netfilter/xt_conntrack.h)."""


def _element(name: str, data: bytes, revision: int = 0) -> bytes:
    size = _HEADER.size + -(-len(data) // 8) * 8  # XT_ALIGN
    return (_HEADER.pack(size, name.encode(), revision) + data).ljust(size, b"\0")


def match_port(protocol: Protocol, port: int) -> bytes:
    """Return ``-m tcp --dport`` (xt_tcpudp.h)."""
    ports = struct.pack("=HHHH", 0, 0xFFFF, port, port)
    return _element(protocol.lower(), ports + bytes(4 if protocol is Protocol.TCP else 2))


def match_state(states: int, *, invert: bool = False) -> bytes:
    """Return ``-m conntrack --ctstate`` (xt_conntrack.h, xt_conntrack_mtinfo3)."""
    return _element("conntrack", struct.pack("=146xHHH12x", 1, int(invert), states), revision=3)


def match_comment(text: str) -> bytes:
    """Return ``-m comment --comment`` (xt_comment.h)."""
    return _element("comment", text.encode().ljust(256, b"\0"))


def match_transparent(*, wildcard: bool = False) -> bytes:
    """Return ``-m socket --transparent`` (xt_socket.h, xt_socket_mtinfo3).

    It matches packets for a socket of this host that has IP_TRANSPARENT. With `wildcard` (the option ``--nowildcard``
    of iptables) this includes sockets that listen on every address.
    """
    return _element("socket", b"\x03" if wildcard else b"\x01", revision=3)


def match_elsewhere() -> bytes:
    """Return ``-m addrtype ! --dst-type LOCAL`` (xt_addrtype.h, xt_addrtype_info_v1), for packets that are not
    addressed to this host."""
    local, invert_destination = 1 << 2, 1 << 1
    return _element("addrtype", struct.pack("=HHI", 0, local, invert_destination), revision=1)


def match_until(time: int) -> bytes:
    """Return ``-m time --datestop`` (xt_time.h, xt_time_info), which matches until `time`, in Unix seconds."""
    last_second, every_monthday, every_weekday = 24 * 60 * 60 - 1, 0xFFFFFFFE, 0xFE
    return _element("time", struct.pack("=IIIIIBB", 0, time, 0, last_second, every_monthday, every_weekday, 0))


def match_unmarked(bit: int) -> bytes:
    """Return ``-m mark ! --mark`` (xt_mark.h, xt_mark_mtinfo1), which matches packets whose mark does not have this
    bit."""
    return _element("mark", struct.pack("=IIB3x", bit, bit, 1), revision=1)


def jump(chain: str) -> bytes:
    """Return ``-j`` to a chain of the same table, ``DROP`` or ``RETURN``."""
    return _element(chain, bytes(4))


def redirect(family: Family, port: int) -> bytes:
    """Return ``-j REDIRECT --to-ports`` (nf_nat.h: nf_nat_ipv4_multi_range_compat, or nf_nat_range for IPv6)."""
    big = port.to_bytes(2, "big") * 2
    if family is Family.IPV4:
        return _element("REDIRECT", struct.pack("=II8x4s", 1, _PORT_GIVEN, big))
    return _element("REDIRECT", struct.pack("=I32x4s", _PORT_GIVEN, big))


def dnat(to: Address, port: int) -> bytes:
    """Return ``-j DNAT --to-destination`` (nf_nat.h: nf_nat_range2, for both families)."""
    packed = socket.inet_pton(socket.AF_INET6 if ":" in to else socket.AF_INET, to)
    big = port.to_bytes(2, "big") * 2
    return _element("DNAT", struct.pack("=I16s16s4s4x", _ADDRESS_GIVEN | _PORT_GIVEN, packed, packed, big), revision=2)


def mark(bit: int) -> bytes:
    """Return ``-j MARK --or-mark``, which iptables shows as ``--set-xmark`` (xt_mark.h, xt_mark_tginfo2)."""
    return _element("MARK", struct.pack("=II", bit, bit), revision=2)


def reject(family: Family) -> bytes:
    """Return ``-j REJECT`` with port unreachable (ipt_REJECT.h, ip6t_REJECT.h).

    A TCP reset would not work for a client behind a bridge port: the kernel sends the reset past NAT, with the address
    of the redirect as its source. And this target works only in table filter, after NAT.
    """
    return _element("REJECT", struct.pack("=I", 3 if family is Family.IPV4 else 4))


_ADDRESS_GIVEN, _PORT_GIVEN = 1, 2


@lru_cache(maxsize=1 << 15)
def rule(
    family: Family,
    target: bytes,
    *matches: bytes,
    protocol: Protocol | None = None,
    destination: Address | None = None,
    source: str | None = None,
    interface: str = "",
) -> Entry:
    """Return a rule with these matches and this target.

    `source` is an address or a CIDR, and `interface` is the interface on which packets arrive.
    """
    # The terminating zero is part of the match, so that longer names do not match.
    name = interface.encode() + b"\0" if interface else b""
    source_address, source_mask = _packed(family, source)
    address, mask = _packed(family, destination)
    # In IPv6 a flag says that the rule names a protocol (IP6T_F_PROTO). IPv4 needs no flag.
    flags = int(protocol is not None and family is Family.IPV6)
    layout = _ENTRY4 if family is Family.IPV4 else _ENTRY6
    target_offset = layout.size + sum(map(len, matches))
    head = layout.pack(
        source_address,
        address,
        source_mask,
        mask,
        name,
        b"\xff" * len(name),
        _PROTOCOL_NUMBER[protocol] if protocol else 0,
        flags,
        0,
        target_offset,
        target_offset + len(target),
        0,
    )
    return b"".join((head, *matches, target))


def _packed(family: Family, cidr: str | None) -> tuple[bytes, bytes]:
    size = 4 if family is Family.IPV4 else 16
    if cidr is None:
        return bytes(size), bytes(size)
    address, _, length = cidr.partition("/")
    bits = int(length) if length else 8 * size
    mask = ((1 << bits) - 1) << (8 * size - bits)
    return socket.inet_pton(socket.AF_INET if size == 4 else socket.AF_INET6, address), mask.to_bytes(size, "big")


def target_of(family: Family, entry: Entry) -> str:
    """Return the name of the entry's target."""
    name: bytes = _HEADER.unpack_from(entry, _target_offset(family, entry))[1]
    return name.partition(b"\0")[0].decode()


def with_target(family: Family, entry: Entry, target: bytes) -> Entry:
    """Return a copy of the entry with another target and without its match of a source."""
    at = _target_offset(family, entry)
    size = 4 if family is Family.IPV4 else 16
    notes = _NOTES[family][0]
    made = bytearray(entry[:at] + target)
    made[0:size] = made[2 * size : 3 * size] = bytes(size)
    made[notes + 6 : notes + 8] = len(made).to_bytes(2, sys.byteorder)
    return bytes(made)


def _target_offset(family: Family, entry: Entry) -> int:
    notes = _NOTES[family][0]
    return int.from_bytes(entry[notes + 4 : notes + 6], sys.byteorder)


def size_of(family: Family, head: bytes) -> int:
    """Return the length of a complete entry, given at least its first `head_size` bytes."""
    return int.from_bytes(head[_NOTES[family][0] + 6 : _NOTES[family][0] + 8], sys.byteorder)


def head_size(family: Family) -> int:
    """Return the length of an entry's fixed part, without matches and target."""
    return _NOTES[family][2]


def canonical(family: Family, raw: bytes, target: str) -> Entry:
    """Return an entry from the kernel in canonical form.

    For an entry with a standard target, `target` is the name of the chain or verdict.
    """
    notes, counters, end = _NOTES[family]
    entry = bytearray(raw)
    entry[notes : notes + 4] = bytes(4)
    entry[counters - 4 : end] = bytes(end - counters + 4)
    target_offset = _target_offset(family, raw)
    at = end
    while at + _HEADER.size <= len(entry):
        size, name, revision = _HEADER.unpack_from(entry, at)
        if at == target_offset and not name.partition(b"\0")[0]:
            return bytes(entry[:at]) + jump(target)
        # The kernel leaves arbitrary bytes after the end of a name.
        _HEADER.pack_into(entry, at, size, name.partition(b"\0")[0], revision)
        if size < _HEADER.size:
            break
        at += size
    return bytes(entry)
