"""Packets that no ordinary client sends, through the real rules: none disturbs the rescue of others."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator

import pytest

from kubeproxy.model import Family
from kubeproxy.rescue.packets import checksum, packed
from tests.rescue.stage import POD_PORT, PODS, Stage, stage, wait_for

pytestmark = pytest.mark.netns

FIN, SYN, RST, PSH, ACK, URG, ECE, CWR = (1 << bit for bit in range(8))
BEGINNINGS = (SYN, SYN | ECE | CWR, SYN | URG, SYN | PSH)
"""Flags of segments that begin a connection, for connection tracking and for endpoints."""
OTHERS = (SYN | FIN, SYN | RST, SYN | ACK, SYN | FIN | URG | PSH, RST, FIN, 0, 0xFF)
CLIENTS = {Family.IPV4: "10.2.0.2", Family.IPV6: "fd00:2::2"}
REFUSED_PORTS = range(6000, 7000)
FEW = 3
"""Clients that may have to repeat a SYN, on a machine with other work."""


@pytest.fixture(params=list(Family), ids=str)
def made(request: pytest.FixtureRequest) -> Iterator[Stage]:
    with stage(request.param) as made:
        yield made


def ip(source: str, destination: str, protocol: int, body: bytes, *, fragment: int = 0) -> bytes:
    """A packet; `fragment`: the field of IPv4 with offset and flags."""
    addresses = packed(source) + packed(destination)
    if ":" in source:
        return struct.pack("!IHBB", 6 << 28, len(body), protocol, 64) + addresses + body
    return struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(body), 7, fragment, 64, protocol, 0) + addresses + body


def segment(source: str, port: int, to: tuple[str, int], flags: int, data: bytes = b"") -> bytes:
    """A TCP segment without its IP header."""
    fields = (port, to[1], port, 0, 0x50, flags, 65535)
    body = struct.pack("!HHIIBBHHH", *fields, 0, 0) + data
    total = checksum(packed(source) + packed(to[0]) + struct.pack("!II", len(body), socket.IPPROTO_TCP) + body)
    return struct.pack("!HHIIBBHHH", *fields, total, 0) + data


@pytest.mark.parametrize("fails", ["refuses", "is silent"])
def test_a_client_with_ecn_is_rescued_like_any_other(made: Stage, fails: str) -> None:
    """Its SYN has ECE and CWR (RFC 3168)."""
    made.network.client.sysctl("net.ipv4.tcp_ecn", 1)
    if fails == "refuses":
        made.stop(1)
    else:
        made.filter(1, "drop")
    # One hop less than the client's own.
    hops = "ip ttl" if made.family is Family.IPV4 else "ip6 hoplimit"
    rule = f"tcp flags & (syn | ack | ecn | cwr) == syn | ecn | cwr {hops} 63 counter"
    made.network.node.run(
        [
            "nft",
            f"add table inet seen; add chain inet seen c {{ type filter hook prerouting priority 0; }}; "
            f"add rule inet seen c {rule}",
        ]
    )
    answers, repeated = made.ask_often(made.network.client, 40)
    assert set(answers) == {"pod0", "pod2", "pod3"}
    assert repeated <= FEW
    assert "packets 0" not in made.network.node.run(["nft", "list", "table", "inet", "seen"]).stdout, "sent again whole"


def test_odd_flags_fragments_and_headers_disturb_no_others(made: Stage) -> None:
    """All endpoints refuse the attacker's ports, and answer all others."""
    client = CLIENTS[made.family]
    for pod in range(PODS):
        refused = f"{REFUSED_PORTS[0]}-{REFUSED_PORTS[-1]}"
        made.filter(pod, f"tcp sport {refused} tcp flags & (fin | syn | rst | ack) == syn reject with tcp reset")
    pid, ports = made.rescue_pid(), iter(REFUSED_PORTS)
    with made.network.client.entered():
        raw = socket.socket(made.inet, socket.SOCK_RAW, socket.IPPROTO_RAW)

    def send(*packets: bytes) -> None:
        for packet in packets:
            raw.sendto(packet, (made.service[0], 0))

    def begin(flags: int, data: bytes = b"") -> bytes:
        return segment(client, next(ports), made.service, flags, data)

    with raw:
        for flags in OTHERS:
            send(ip(client, made.service[0], socket.IPPROTO_TCP, begin(flags)))
        for flags in BEGINNINGS:
            send(ip(client, made.service[0], socket.IPPROTO_TCP, begin(flags)))
        wait_for(lambda: made.counts["given_up"] >= len(BEGINNINGS), "each beginning is sent again as often as allowed")
        assert made.counts["copied"] <= 9 * len(BEGINNINGS), "and nothing else is copied"
        for packets in whole(made, begin):
            before = made.counts["given_up"]
            send(*packets)
            wait_for(lambda: made.counts["given_up"] > before, "what is made whole again is a SYN like any other")  # noqa: B023
        for packets in left_alone(made, begin):
            before = made.counts["unknown"]
            send(*packets)
            wait_for(lambda: made.counts["unknown"] > before, "it is left to its client")  # noqa: B023
        for error in errors(made):
            send(error)
    answers, repeated = made.ask_often(made.network.client, 40)
    assert set(answers) == {f"pod{pod}" for pod in range(PODS)}
    assert repeated <= FEW
    assert made.rescue_pid() == pid
    assert not made.noticed, "a dial finds every endpoint well"


Begin = Callable[..., bytes]


def whole(made: Stage, begin: Begin) -> Iterator[tuple[bytes, ...]]:
    """SYNs in fragments, which connection tracking puts together. The packet filter of a pod sees those of IPv6 before
    that, so only an atomic one is refused (RFC 6946)."""
    client, service = CLIENTS[made.family], made.service[0]
    if made.family is Family.IPV4:
        body = begin(SYN, b"x" * 1000)
        yield (
            ip(client, service, socket.IPPROTO_TCP, body[:8], fragment=0x2000),
            ip(client, service, socket.IPPROTO_TCP, body[8:], fragment=1),
        )
    else:
        header = struct.pack("!BBHI", socket.IPPROTO_TCP, 0, 0, 6)
        yield (ip(client, service, socket.IPPROTO_FRAGMENT, header + begin(SYN)),)


def left_alone(made: Stage, begin: Begin) -> Iterator[tuple[bytes, ...]]:
    """SYNs that endpoints take, and that are not sent again."""
    client, service = CLIENTS[made.family], made.service[0]
    if made.family is Family.IPV4:
        body = begin(SYN, b"x" * 3000)  # longer than a copy
        yield (
            ip(client, service, socket.IPPROTO_TCP, body[:1480], fragment=0x2000),
            ip(client, service, socket.IPPROTO_TCP, body[1480:2960], fragment=0x2000 | 185),
            ip(client, service, socket.IPPROTO_TCP, body[2960:], fragment=370),
        )
        return
    padding = bytes([1, 4, 0, 0, 0, 0])
    for header in (socket.IPPROTO_HOPOPTS, socket.IPPROTO_DSTOPTS):
        yield (ip(client, service, header, bytes([socket.IPPROTO_TCP, 0]) + padding + begin(SYN)),)


def errors(made: Stage) -> Iterator[bytes]:
    """ICMP errors about packets to endpoints, with ever less of these."""
    client, node = CLIENTS[made.family], {Family.IPV4: "10.2.0.1", Family.IPV6: "fd00:2::1"}[made.family]
    protocol, kind = (1, 3) if made.family is Family.IPV4 else (58, 1)
    for address in made.addresses:
        quoted = ip(client, address, socket.IPPROTO_TCP, segment(client, REFUSED_PORTS[0], (address, POD_PORT), SYN))
        for length in (*range(0, len(quoted), 7), len(quoted)):
            body = bytearray(struct.pack("!BBHI", kind, 1, 0, 0) + quoted[:length])
            pseudo = packed(client) + packed(node) + struct.pack("!II", len(body), protocol) if protocol == 58 else b""
            struct.pack_into("!H", body, 2, checksum(pseudo + body))
            yield ip(client, node, protocol, bytes(body))
