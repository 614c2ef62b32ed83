"""Writes the begins and resets of TCP connections on a host, for the analysis of a failure.
``python -m tests.system.soak.capture``

One line for each packet with SYN or RST, and for each ICMP error, but for those of the hostile tenant: time
(CLOCK_MONOTONIC), interface, direction, addresses and flags. A packet that the host forwards appears twice, translated
the second time.
"""

from __future__ import annotations

import socket
import sys
import time
from ipaddress import ip_address

from tests.system.soak.hostile import LOOPS

HOSTILE = tuple(loop.address for loop in LOOPS)
ALL = 3
"""ETH_P_ALL, linux/if_ether.h"""
IPV4, IPV6 = 0x0800, 0x86DD
TCP, ERRORS = 6, {1: (3,), 58: (1,)}
"""Protocols; the types of ICMP errors that a destination is unreachable."""
FLAGS = {0x02: "SYN", 0x10: "ACK", 0x04: "RST", 0x01: "FIN"}


def line(packet: bytes, protocol: int) -> str | None:
    """The text of a packet from its IP header on; None: it is of no interest."""
    if protocol == IPV4 and len(packet) >= 20:
        next_header, start = packet[9], (packet[0] & 15) * 4
        source, destination = ip_address(packet[12:16]), ip_address(packet[16:20])
    elif protocol == IPV6 and len(packet) >= 40:
        next_header, start = packet[6], 40
        source, destination = ip_address(packet[8:24]), ip_address(packet[24:40])
    else:
        return None
    rest = packet[start:]
    if next_header == TCP and len(rest) >= 20 and rest[13] & 0x06:
        ports = int.from_bytes(rest[:2]), int.from_bytes(rest[2:4])
        flags = ",".join(name for bit, name in FLAGS.items() if rest[13] & bit)
        numbers = int.from_bytes(rest[4:8]), int.from_bytes(rest[8:12])
        return f"{source} {ports[0]} > {destination} {ports[1]} {flags} seq {numbers[0]} ack {numbers[1]}"
    if next_header in ERRORS and rest and rest[0] in ERRORS[next_header]:
        return f"{source} > {destination} unreachable, code {rest[1]}: {line(rest[8:], protocol)}"
    return None


def main() -> None:
    """Until killed."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ALL)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        while True:
            packet, (interface, protocol, kind, *_) = sock.recvfrom(256)
            text = line(packet, protocol)
            if text is not None and not any(address in text for address in HOSTILE):
                way = "out" if kind == socket.PACKET_OUTGOING else "in"
                sys.stdout.write(f"{time.monotonic():.4f} {interface} {way} {text}\n")


if __name__ == "__main__":
    main()
