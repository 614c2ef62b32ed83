"""Small programs that make and take traffic, each a process of its own on one host.

source PORT                     bytes without end to every client
sink ADDRESS PORT               connects, says "connected", reads two moments of the monotonic clock, which all hosts
                                share; prints how many bytes came between them
probe ADDRESS PORT SECONDS      asks the same small question again and again on one connection; prints how long the
                                answers took, sorted, in nanoseconds, as JSON
pace ADDRESS PORT PER_S         asks it at fixed moments until its input says something; prints [moment, time to an
                                answer], in nanoseconds, as JSON
hold ADDRESS PORT COUNT         opens so many connections, asks once on each, says "held", and keeps them until killed
echo ADDRESS PORT               answers datagrams with themselves
volley ADDRESS PORT SECONDS N   sends small datagrams from N sockets, each as soon as its last one came back; prints
                                [round trips, lost]
answers PORT EVERY_S LIMIT_S    reads addresses; prints the moment when each of them had answered at least once
sweep PORT                      reads addresses; prints how many did not answer, each being asked once, or twice
"""

from __future__ import annotations

import gc
import json
import os
import resource
import select
import signal
import socket
import sys
import time

_CHUNK = 256 * 1024
QUESTION = b"GET / HTTP/1.1\r\nHost: bench\r\n\r\n"
_DATAGRAM = bytes(64)
_LOST_S = 0.5


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


def sink(address: str, port: int) -> None:
    """Print the number of bytes received between the two moments."""
    buffer = bytearray(_CHUNK)
    counted = 0
    with socket.create_connection((address, port), timeout=10) as connection:
        connection.settimeout(None)
        print("connected", flush=True)
        begin, end = map(float, sys.stdin.readline().split())
        # MSG_TRUNC drops the bytes instead of copying them (tcp(7)): the proxy must be the slowest part of the way.
        while (now := time.monotonic()) < end:
            size = connection.recv_into(buffer, _CHUNK, socket.MSG_TRUNC)
            if size == 0:
                sys.exit("the stream ended early")
            if now >= begin:
                counted += size
    print(counted)


def _connected(address: str, port: int) -> socket.socket:
    connection = socket.create_connection((address, port), timeout=10)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _ask(connection: socket.socket) -> None:
    """Send one question, and read its answer to the end."""
    connection.sendall(QUESTION)
    answer = connection.recv(4096)
    while not _complete(answer):
        more = connection.recv(4096)
        if not more:
            sys.exit(f"the connection ended within an answer: {answer!r}")
        answer += more


def _complete(answer: bytes) -> bool:
    head, end, body = answer.partition(b"\r\n\r\n")
    if not end:
        return False
    length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
    return len(body) >= int(length)


def probe(address: str, port: int, seconds: float) -> None:
    """Print the sorted answer times."""
    times = []
    gc.disable()
    with _connected(address, port) as connection:
        connection.settimeout(None)
        now = time.perf_counter_ns()
        end = now + int(seconds * 1e9)
        while now < end:
            asked = now
            _ask(connection)
            now = time.perf_counter_ns()
            times.append(now - asked)
    json.dump(sorted(times), sys.stdout)


def pace(address: str, port: int, per_s: float) -> None:
    """Print, for each fixed moment, the time from it to an answer. A question due before the last
    answer is not sent, but has the time of that answer. So a pause counts for every question that would have met it,
    and for no other."""
    seen = []
    gc.disable()
    step = int(1e9 / per_s)
    with _connected(address, port) as connection:
        appointed = time.monotonic_ns()
        while not select.select([sys.stdin], [], [], 0)[0]:
            appointed += step
            time.sleep(max(0, appointed - time.monotonic_ns()) / 1e9)
            asked = time.monotonic_ns()  # a sleep may be late: that is not the proxy's fault
            _ask(connection)
            answered = time.monotonic_ns()
            seen.append((asked, answered - asked))
            while appointed + step < answered:
                appointed += step
                if appointed > asked:
                    seen.append((appointed, answered - appointed))
    json.dump(seen, sys.stdout)


def hold(address: str, port: int, count: int) -> None:
    """Keep connections open that have been used once."""
    _raise_limit()
    held = []
    for _ in range(count):
        connection = _connected(address, port)
        _ask(connection)
        held.append(connection)
    print("held", flush=True)
    signal.pause()


def echo(address: str, port: int) -> None:
    """Serve until killed."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        sock.bind((address, port))
        while True:
            sock.sendto(*sock.recvfrom(65536))


def volley(address: str, port: int, seconds: float, count: int) -> None:
    """Print the round trips made, and the datagrams that did not come back in `_LOST_S`."""
    gc.disable()
    socks: dict[int, socket.socket] = {}
    poll = select.epoll()
    for _ in range(count):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.connect((address, port))
        socks[sock.fileno()] = sock
        poll.register(sock.fileno(), select.EPOLLIN)
    sent = dict.fromkeys(socks, 0.0)
    trips = lost = 0
    end = time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        for fd, at in sent.items():
            if now - at > _LOST_S:
                lost += at > 0
                socks[fd].send(_DATAGRAM)
                sent[fd] = now
        until = min(end, now + _LOST_S / 4)
        while time.monotonic() < until:
            for fd, _ in poll.poll(0.01):
                sock = socks[fd]
                try:
                    sock.recv(2048, socket.MSG_DONTWAIT)
                except OSError:
                    continue  # refused: the port has no listener yet; it counts as lost
                sock.send(_DATAGRAM)
                trips += 1
                sent[fd] = now
    json.dump([trips, lost], sys.stdout)


def answers(port: int, every_s: float, limit_s: float) -> None:
    """Print the moment of the last first answer, -1 if one was not in time. Silent addresses get another question."""
    missing = sys.stdin.read().split()
    end = time.monotonic() + limit_s
    while missing and time.monotonic() < end:
        begun = time.monotonic()
        missing = _silent(missing, port, every_s)
        if missing:
            time.sleep(max(0.0, begun + every_s - time.monotonic()))
    print(-1 if missing else time.monotonic())


def sweep(port: int) -> None:
    """Print how many were silent. They get a second question, because a change may take a transaction more."""
    silent = sys.stdin.read().split()
    for pause_s in (0.0, 1.5):
        time.sleep(pause_s if silent else 0.0)
        asked, silent = silent, []
        for start in range(0, len(asked), 250):
            silent += _silent(asked[start : start + 250], port, 2.0)
    print(len(silent))


def _silent(addresses: list[str], port: int, patience_s: float) -> list[str]:
    """The addresses that did not answer in time; all get their question at once."""
    _raise_limit()
    poll = select.epoll()
    asked: dict[int, tuple[socket.socket, str]] = {}
    for address in addresses:
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex((address, port))
        asked[sock.fileno()] = sock, address
        poll.register(sock.fileno(), select.EPOLLOUT)
    silent = []
    end = time.monotonic() + patience_s
    while asked and (left := end - time.monotonic()) > 0:
        for fd, what in poll.poll(left):
            sock, address = asked[fd]
            try:
                if what == select.EPOLLOUT:
                    sock.send(QUESTION)
                    poll.modify(fd, select.EPOLLIN)
                    continue
                if sock.recv(4096).startswith(b"HTTP/1.1 200"):
                    address = ""
            except OSError:
                pass  # refused or reset: silent
            if address:
                silent.append(address)
            del asked[fd]
            sock.close()
    for sock, address in asked.values():
        silent.append(address)
        sock.close()
    poll.close()
    return silent


def _raise_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["source", port]:
            source(int(port))
        case ["sink", address, port]:
            sink(address, int(port))
        case ["probe", address, port, seconds]:
            probe(address, int(port), float(seconds))
        case ["pace", address, port, per_s]:
            pace(address, int(port), float(per_s))
        case ["hold", address, port, count]:
            hold(address, int(port), int(count))
        case ["echo", address, port]:
            echo(address, int(port))
        case ["volley", address, port, seconds, count]:
            volley(address, int(port), float(seconds), int(count))
        case ["answers", port, every_s, limit_s]:
            answers(int(port), float(every_s), float(limit_s))
        case ["sweep", port]:
            sweep(int(port))
        case _:
            sys.exit(__doc__)
