"""`kubeproxy.rescue.packets`: what a packet is, and the packet that is sent again."""

from __future__ import annotations

import random
import struct

import pytest

from kubeproxy.model import Protocol
from kubeproxy.rescue.packets import Refusal, Refused, Side, Syn, Unreachable, again, checksum, datagram, packed, parse

CLIENT, SERVICE, POD = "10.2.0.2", "10.96.0.10", "10.3.1.2"
CLIENT6, SERVICE6, POD6 = "fd00:2::2", "fd00:96::10", "fd00:3:1::2"
SYN, RST, ACK = 0x02, 0x04, 0x10


def ip(source: str, destination: str, protocol: int, body: bytes, *, hops: int = 64, options: bytes = b"") -> bytes:
    addresses = packed(source) + packed(destination)
    if ":" in source:
        return struct.pack("!IHBB", 6 << 28, len(body), protocol, hops) + addresses + body
    header = 20 + len(options)
    first = 0x40 | header // 4
    return (
        struct.pack("!BBHHHBBH", first, 0, header + len(body), 7, 0x4000, hops, protocol, 0)
        + addresses
        + options
        + body
    )


def tcp(
    flags: int,
    *,
    sequence: int = 1000,
    acknowledged: int = 0,
    source: int = 4000,
    destination: int = 80,
    options: bytes = b"",
) -> bytes:
    offset = (20 + len(options)) // 4 << 4
    return (
        struct.pack("!HHIIBBHHH", source, destination, sequence, acknowledged, offset, flags, 65535, 0xBEEF, 0)
        + options
    )


def sound(packet: bytes) -> bool:
    """Whether the checksums of an IPv4 header and of a packet's TCP or UDP part are right."""
    v4 = packet[0] >> 4 == 4
    header = (packet[0] & 0xF) * 4 if v4 else 40
    addresses = packet[12:20] if v4 else packet[8:40]
    protocol = packet[9] if v4 else packet[6]
    body = packet[header:]
    whole = checksum(addresses + struct.pack("!II", len(body), protocol) + body) == 0
    return whole and (not v4 or checksum(packet[:header]) == 0)


FAMILIES = pytest.mark.parametrize(
    ("client", "service", "pod"), [(CLIENT, SERVICE, POD), (CLIENT6, SERVICE6, POD6)], ids=["IPv4", "IPv6"]
)


@FAMILIES
def test_a_syn(client: str, service: str, pod: str) -> None:
    packet = ip(client, service, 6, tcp(SYN, options=b"\x02\x04\x05\xb4"))
    syn = parse(packet)
    assert syn == Syn(Side(packed(client), 4000), Side(packed(service), 80), 1000, packet)


@FAMILIES
def test_a_refusal_names_the_syn(client: str, service: str, pod: str) -> None:
    found = parse(ip(pod, client, 6, tcp(RST | ACK, sequence=0, acknowledged=0, source=8080, destination=4000)))
    assert found == Refusal(Side(packed(pod), 8080), Side(packed(client), 4000), 0xFFFFFFFF)


@FAMILIES
def test_a_syn_with_data_is_refused_as_a_whole(client: str, service: str, pod: str) -> None:
    """A closed port acknowledges the data, too (RFC 9293, section 3.10.7.1)."""
    syn = parse(ip(client, service, 6, tcp(SYN, sequence=0xFFFFFFFE) + b"hello"))
    assert isinstance(syn, Syn)
    assert syn.data_bytes == 5
    refusal = parse(ip(pod, client, 6, tcp(RST | ACK, sequence=0, acknowledged=4)))
    assert isinstance(refusal, Refusal)
    assert refusal.last == syn.last
    resent = again(syn)
    assert resent is not None
    assert sound(resent)
    assert resent.endswith(b"hello")


@FAMILIES
@pytest.mark.parametrize("flags", [SYN | ACK, ACK, SYN | RST, 0x01, SYN | 0x01])
def test_other_segments_are_nothing(client: str, service: str, pod: str, flags: int) -> None:
    assert parse(ip(client, service, 6, tcp(flags))) is None


@FAMILIES
def test_a_reset_that_the_rules_have_changed_names_the_connection(client: str, service: str, pod: str) -> None:
    found = parse(ip(service, client, 6, tcp(RST, source=80, destination=4000)))
    assert isinstance(found, Refused)
    assert (found.client, found.service) == (Side(packed(client), 4000), Side(packed(service), 80))


@FAMILIES
def test_errors_quote_what_did_not_arrive(client: str, service: str, pod: str) -> None:
    number, kind = (58, 1) if ":" in client else (1, 3)
    sides = Side(packed(client), 4000), Side(packed(pod), 8080)
    quoted = ip(client, pod, 6, tcp(SYN, destination=8080))
    error = ip(pod, client, number, bytes([kind, 3, 0, 0]) + bytes(4) + quoted)
    assert parse(error) == Unreachable(Protocol.TCP, *sides, None)
    quoted = ip(client, pod, 17, struct.pack("!HHHH", 4000, 8080, 13, 0) + b"hello")
    error = ip(pod, client, number, bytes([kind, 3, 0, 0]) + bytes(4) + quoted)
    assert parse(error) == Unreachable(Protocol.UDP, *sides, b"hello")
    assert parse(error[:-1]) == Unreachable(Protocol.UDP, *sides, None), "not quoted in whole"
    for other in range(256):
        if other != kind:
            assert parse(ip(pod, client, number, bytes([other, 3, 0, 0]) + bytes(4) + quoted)) is None


@FAMILIES
def test_a_syn_sent_again_is_one_hop_further(client: str, service: str, pod: str) -> None:
    syn = parse(ip(client, service, 6, tcp(SYN, options=b"\x02\x04\x05\xb4"), hops=9))
    assert isinstance(syn, Syn)
    packet = again(syn)
    assert packet is not None
    assert sound(packet)
    assert not sound(syn.packet), "the copy has the unfinished checksum of an offload"
    repeated = parse(packet)
    assert repeated == syn._replace(packet=packet)
    assert packet[7 if ":" in client else 8] == 8


@FAMILIES
def test_a_loop_ends(client: str, service: str, pod: str) -> None:
    syn = parse(ip(client, service, 6, tcp(SYN), hops=1))
    assert isinstance(syn, Syn)
    assert again(syn) is None


@FAMILIES
@pytest.mark.parametrize("payload", [b"", b"a", b"hello", bytes(1400), bytes(range(256)) * 4])
def test_a_datagram_sent_again(client: str, service: str, pod: str, payload: bytes) -> None:
    packet = datagram(Side(packed(client), 4000), Side(packed(service), 53), payload)
    assert sound(packet)
    assert packet.endswith(payload)
    assert packed(client) + packed(service) in packet


def test_options_fragments_and_truncation() -> None:
    assert isinstance(parse(ip(CLIENT, SERVICE, 6, tcp(SYN), options=bytes(8))), Syn)
    whole = ip(CLIENT, SERVICE, 6, tcp(SYN))
    for length in range(len(whole)):
        assert parse(whole[:length]) is None
    fragment = bytearray(whole)
    fragment[6:8] = b"\x20\x00"  # more follow
    assert parse(bytes(fragment)) is None
    fragment[6:8] = b"\x00\x01"  # not the first
    assert parse(bytes(fragment)) is None


def test_any_bytes_are_something_or_nothing() -> None:
    rng = random.Random(7)
    seeds = [
        ip(CLIENT, SERVICE, 6, tcp(SYN)),
        ip(CLIENT6, SERVICE6, 6, tcp(SYN)),
        ip(POD, CLIENT, 1, bytes([3, 3]) + bytes(6) + ip(CLIENT, POD, 17, bytes(12))),
    ]
    for _ in range(20_000):
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.randrange(4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        found = parse(bytes(data[: rng.randrange(len(data) + 1)]))
        if isinstance(found, Syn):
            packet = again(found)
            assert packet is None or sound(packet)


def test_the_checksum_is_that_of_rfc_1071() -> None:
    def by_words(data: bytes) -> int:
        data += b"\0" * (len(data) % 2)
        total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
        while total >> 16:
            total = (total & 0xFFFF) + (total >> 16)
        return ~total & 0xFFFF

    rng = random.Random(3)
    for _ in range(2000):
        data = rng.randbytes(rng.randrange(100))
        assert checksum(data) == by_words(data)
    assert checksum(b"\xff\xff") == by_words(b"\xff\xff")
    assert checksum(bytes(4)) == by_words(bytes(4))
