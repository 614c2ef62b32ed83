"""Parses packets from NFLOG, and makes the packets that are sent again.

The input comes from the network. Whatever the bytes are, the result is a value or None, and never an exception. Packets
with IPv6 extension headers are ignored.
"""

from __future__ import annotations

import socket
import struct
from functools import lru_cache
from typing import Final, NamedTuple

from kubeproxy.model import Address, Protocol, Target

_TCP, _UDP, _ICMP, _ICMPV6 = socket.IPPROTO_TCP, socket.IPPROTO_UDP, socket.IPPROTO_ICMP, socket.IPPROTO_ICMPV6
_PORTS = struct.Struct("!HH")
_TCP_HEADER = struct.Struct("!HHIIBBHHH")
_UDP_HEADER = struct.Struct("!HHHH")
_SYN, _RST, _ACK, _FIN = 0x02, 0x04, 0x10, 0x01
_FIRST_FLAGS = _SYN | _RST | _ACK | _FIN
_UNREACHABLE_TYPE: Final = {4: 3, 6: 1}
"""The ICMP and ICMPv6 types of "destination unreachable", by IP version."""
_CHECKSUM_AT: Final = {_TCP: 16, _UDP: 6}


class Side(NamedTuple):
    """An address as bytes, with a port."""

    address: bytes
    port: int

    @property
    def target(self) -> Target:
        """Return the address and port as a value of the model."""
        return Target(text_of(self.address), self.port)


class Syn(NamedTuple):
    """The first packet of a connection, complete."""

    client: Side
    service: Side
    sequence: int
    packet: bytes
    data_bytes: int = 0
    """The length of the SYN's data (TCP Fast Open, RFC 7413)."""

    @property
    def last(self) -> int:
        """Return the sequence number that a reset acknowledges: that of the last data byte, or the SYN's own if it has
        no data."""
        return (self.sequence + self.data_bytes) & 0xFFFFFFFF


class Refusal(NamedTuple):
    """A reset that answers a SYN."""

    endpoint: Side
    peer: Side
    """The client, or this node if the connection is masqueraded."""
    last: int
    """The `Syn.last` of the refused SYN."""


class Refused(NamedTuple):
    """A refused connection, with the addresses that its client used.

    This is the reset of a `Refusal` after the rules have translated its addresses back. The rules also remove the ACK
    flag, which tells the two apart.
    """

    client: Side
    service: Side
    last: int
    """The `Syn.last` of the refused SYN."""


class Unreachable(NamedTuple):
    """An ICMP error about a packet to an endpoint."""

    protocol: Protocol
    peer: Side
    endpoint: Side
    payload: bytes | None
    """The payload of the datagram if the error quotes it completely, otherwise None."""


class _Ip(NamedTuple):
    version: int
    protocol: int
    source: bytes
    destination: bytes
    body: bytes
    """The bytes after the IP header, as far as they are there."""
    whole: bool
    """Whether `body` is complete."""


def parse(packet: bytes) -> Syn | Refusal | Refused | Unreachable | None:
    """Return what a packet means, or None if it needs no action."""
    ip = _ip(packet)
    if ip is None:
        return None
    if ip.protocol == _TCP:
        return _segment(ip, packet)
    if ip.protocol == (_ICMP if ip.version == 4 else _ICMPV6):
        return _error(ip)
    return None


def _ip(packet: bytes) -> _Ip | None:
    if len(packet) >= 20 and packet[0] >> 4 == 4:
        header, length = (packet[0] & 0xF) * 4, int.from_bytes(packet[2:4], "big")
        if header < 20 or length < header or int.from_bytes(packet[6:8], "big") & 0x1FFF:
            return None  # The second condition is true for later fragments of a datagram.
        more_fragments = packet[6] & 0x20
        body = packet[header:length]
        whole = not more_fragments and len(packet) >= length
        return _Ip(4, packet[9], packet[12:16], packet[16:20], body, whole)
    if len(packet) >= 40 and packet[0] >> 4 == 6:
        length = int.from_bytes(packet[4:6], "big")
        body = packet[40 : 40 + length]
        return _Ip(6, packet[6], packet[8:24], packet[24:40], body, len(body) == length)
    return None


def _segment(ip: _Ip, packet: bytes) -> Syn | Refusal | Refused | None:
    if len(ip.body) < _TCP_HEADER.size:
        return None
    source, destination, sequence, acknowledged, offset, flags, _, _, _ = _TCP_HEADER.unpack_from(ip.body)
    begin, end = Side(ip.source, source), Side(ip.destination, destination)
    if flags & _FIRST_FLAGS == _SYN:
        if not ip.whole or (offset >> 4) * 4 < _TCP_HEADER.size or (offset >> 4) * 4 > len(ip.body):
            return None
        return Syn(begin, end, sequence, packet, len(ip.body) - (offset >> 4) * 4)
    if flags & (_SYN | _RST | _ACK) == _RST | _ACK:
        return Refusal(begin, end, (acknowledged - 1) & 0xFFFFFFFF)
    if flags & (_SYN | _RST | _ACK) == _RST:
        return Refused(end, begin, (acknowledged - 1) & 0xFFFFFFFF)
    return None


def _error(ip: _Ip) -> Unreachable | None:
    if len(ip.body) < 8 or ip.body[0] != _UNREACHABLE_TYPE[ip.version]:
        return None
    quoted = _ip(ip.body[8:])
    if quoted is None or quoted.version != ip.version or len(quoted.body) < 8:
        return None
    source, destination = _PORTS.unpack_from(quoted.body)
    peer, endpoint = Side(quoted.source, source), Side(quoted.destination, destination)
    if quoted.protocol == _TCP:
        return Unreachable(Protocol.TCP, peer, endpoint, None)
    if quoted.protocol == _UDP:
        length = _UDP_HEADER.unpack_from(quoted.body)[2]
        whole = quoted.whole and length == len(quoted.body)
        return Unreachable(Protocol.UDP, peer, endpoint, quoted.body[_UDP_HEADER.size :] if whole else None)
    return None


@lru_cache(maxsize=8192)
def text_of(address: bytes) -> Address:
    """Return an address as text, in the canonical form of the model."""
    return Address(socket.inet_ntop(socket.AF_INET if len(address) == 4 else socket.AF_INET6, address))


def packed(address: str) -> bytes:
    """Return an address as bytes, the inverse of `text_of`."""
    return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)


def again(syn: Syn) -> bytes | None:
    """Return the SYN to send again, or None if its hop limit is used up.

    The hop limit is lowered by one, so that a loop ends even if it contains no router. The checksums are computed
    again, because with checksum offload the copy has only a partial TCP checksum.
    """
    packet = bytearray(syn.packet)
    hops_at = 8 if packet[0] >> 4 == 4 else 7
    if packet[hops_at] <= 1:
        return None
    packet[hops_at] -= 1
    header = (packet[0] & 0xF) * 4 if packet[0] >> 4 == 4 else 40
    if packet[0] >> 4 == 4:
        packet[10:12] = b"\0\0"
        packet[10:12] = checksum(packet[:header]).to_bytes(2, "big")
    length = int.from_bytes(packet[2:4], "big") if packet[0] >> 4 == 4 else len(packet)
    body = packet[header:length]
    _set_checksum(body, _TCP, syn.client.address, syn.service.address)
    return bytes(packet[:header] + body)


_HOPS: Final = 63
"""The hop limit of a datagram that is sent again: Linux's default, less the hop to this node. The ICMP error quotes
only what was left of the hop limit near the endpoint, which may be too low for another endpoint."""


def datagram(client: Side, service: Side, payload: bytes) -> bytes:
    """Return an IP packet with a client's datagram to a service address."""
    body = bytearray(_UDP_HEADER.pack(client.port, service.port, _UDP_HEADER.size + len(payload), 0) + payload)
    _set_checksum(body, _UDP, client.address, service.address)
    addresses = client.address + service.address
    if len(client.address) == 4:
        header = struct.pack("!BBHHHBB", 0x45, 0, 20 + len(body), 0, 0, _HOPS, _UDP)
        header += checksum(header + b"\0\0" + addresses).to_bytes(2, "big")
    else:
        header = struct.pack("!IHBB", 6 << 28, len(body), _UDP, _HOPS)
    return header + addresses + bytes(body)


def _set_checksum(body: bytearray, protocol: int, source: bytes, destination: bytes) -> None:
    """Write the checksum of TCP or UDP (RFC 1071, RFC 8200 section 8.1)."""
    at = _CHECKSUM_AT[protocol]
    body[at : at + 2] = b"\0\0"
    data = source + destination + struct.pack("!II", len(body), protocol) + body
    value = checksum(data)
    # In UDP the value 0 means that there is no checksum.
    struct.pack_into("!H", body, at, value or (0xFFFF if protocol == _UDP else 0))


def checksum(data: bytes | bytearray) -> int:
    """Return the Internet checksum of some bytes (RFC 1071)."""
    if len(data) % 2:
        data = data + b"\0"
    # Because 2**16 is 1 modulo 65,535, the whole number has the same remainder as the sum of its 16-bit words.
    value = int.from_bytes(data, "big")
    total = value % 0xFFFF
    if total == 0 and value:
        total = 0xFFFF
    return ~total & 0xFFFF
