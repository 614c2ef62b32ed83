"""The small programs that make and take traffic, each a process of its own on one of the hosts.

`source PORT` sends bytes without end to whoever connects. `sink ADDRESS PORT BEGIN END` takes them, and prints how many
came between two moments of the monotonic clock, which all hosts share. `probe ADDRESS PORT SECONDS` asks the same small
question again and again on one connection, and prints how long the answers took, sorted, in nanoseconds, as JSON.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
import time

_CHUNK = 256 * 1024
QUESTION = b"GET / HTTP/1.1\r\nHost: bench\r\n\r\n"


def program(*arguments: str) -> list[str]:
    """The command that runs this file, without the start-up cost of site packages."""
    return [sys.executable, "-S", "-E", __file__, *arguments]


def source(port: int) -> None:
    """Serve until killed; each connection is its own process, so that several use several cores."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.create_server(("0.0.0.0", port), backlog=512) as listener:
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _pour(connection)
                os._exit(0)
            connection.close()


def _pour(connection: socket.socket) -> None:
    chunk = bytes(_CHUNK)
    try:
        while True:
            connection.send(chunk)
    except OSError:
        return


def sink(address: str, port: int, begin: float, end: float) -> None:
    """Print the number of bytes received between `begin` and `end`."""
    buffer = bytearray(_CHUNK)
    counted = 0
    with socket.create_connection((address, port), timeout=10) as connection:
        connection.settimeout(None)
        # MSG_TRUNC drops the bytes instead of copying them (tcp(7)): the proxy is to be the slowest part of the way.
        while (now := time.monotonic()) < end:
            size = connection.recv_into(buffer, _CHUNK, socket.MSG_TRUNC)
            if size == 0:
                sys.exit("the stream ended early")
            if now >= begin:
                counted += size
    print(counted)


def probe(address: str, port: int, seconds: float) -> None:
    """Print the sorted answer times."""
    times = []
    gc.disable()
    with socket.create_connection((address, port), timeout=10) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(None)
        end = time.perf_counter_ns() + int(seconds * 1e9)
        now = time.perf_counter_ns()
        while now < end:
            asked = now
            connection.sendall(QUESTION)
            answer = connection.recv(4096)
            while not answer.endswith(b"\r\n\r\nok"):
                more = connection.recv(4096)
                if not more:
                    sys.exit(f"the connection ended within an answer: {answer!r}")
                answer += more
            now = time.perf_counter_ns()
            times.append(now - asked)
    json.dump(sorted(times), sys.stdout)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["source", port]:
            source(int(port))
        case ["sink", address, port, begin, end]:
            sink(address, int(port), float(begin), float(end))
        case ["probe", address, port, seconds]:
            probe(address, int(port), float(seconds))
        case _:
            sys.exit(__doc__)
