"""A backend on every address of its host that answers with the client's address, by TCP and UDP alike.

`address_echo.py NAME PORT`. By TCP it answers one line. By UDP ``late SECONDS ...`` is answered later, ``name`` by that
line, all else by itself. The line is: its name, the client's address, the client's port.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

RECEIVE_BYTES = 4 << 20


class Mirror(asyncio.DatagramProtocol):
    """The UDP half."""

    def __init__(self, name: str, sock: socket.socket) -> None:
        self._name = name
        self.socket = sock

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        match data.split(b" ", 2):
            case [b"name"]:
                self.socket.sendto(f"{self._name} {addr[0]} {addr[1]}".encode(), addr)
            case [b"late", seconds, _]:
                asyncio.get_running_loop().call_later(float(seconds), self.socket.sendto, data, addr)
            case _:
                self.socket.sendto(data, addr)


def bound(family: int, kind: int, port: int) -> socket.socket:
    """On every address of a family."""
    sock = socket.socket(family, kind)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    if family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    sock.bind(("", port))
    return sock


async def main(name: str, port: int) -> None:
    """For ever."""

    async def called(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address, number, *_ = writer.get_extra_info("peername")
        writer.write(f"{name} {address} {number}".encode())
        writer.close()

    for family in (socket.AF_INET, socket.AF_INET6):
        await asyncio.start_server(called, sock=bound(family, socket.SOCK_STREAM, port), backlog=1024)
        # Answers go past the transport, which swallows empty datagrams.
        mirror = Mirror(name, bound(family, socket.SOCK_DGRAM, port))
        await asyncio.get_running_loop().create_datagram_endpoint(lambda: mirror, sock=mirror.socket)  # noqa: B023
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
