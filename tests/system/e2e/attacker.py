"""What a local process does to the takeover sockets. Started on the node, by itself: it imports nothing of ours.

attacker.py take            send hello, hold, take and stop to every listening name that begins with "kubeproxy/"
attacker.py squat UID       as that user, bind the names that our processes could be looked for by, and say nothing
attacker.py flood UID       as that user, fill the queue of every such name for as long as it runs
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import sys
import time

TXTIME = struct.pack("=iI", 11, 0)
"""CLOCK_TAI: the proof that is asked for."""


def names() -> list[str]:
    with open("/proc/self/net/unix", errors="replace") as listing:
        fields = [line.split() for line in listing]
    return sorted({it[7] for it in fields if len(it) > 7 and it[7].startswith("@kubeproxy/")})


def connect(name: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(3)
    sock.connect("\0" + name[1:])
    return sock


def take() -> None:
    for name in names():
        for protocol, words in ((2, ("hold", "take")), (999, ("stop",))):
            with contextlib.suppress(OSError):
                send(name, protocol, words)


def send(name: str, protocol: int, words: tuple[str, ...]) -> None:
    with connect(name) as sock, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own:
        hello = {"type": "hello", "protocol": protocol, "pid": os.getpid(), "version": "evil"}
        socket.send_fds(sock, [json.dumps(hello).encode() + b"\n"], [own.fileno()])
        answer, descriptors, _, _ = socket.recv_fds(sock, 4096, 1)
        print(name, answer, flush=True)
        if descriptors:
            with contextlib.suppress(OSError), socket.socket(fileno=descriptors[0]) as challenge:
                challenge.setsockopt(socket.SOL_SOCKET, 61, TXTIME)
            sock.sendall(b'{"type": "proof"}\n')
            print(name, "proof", sock.recv(4096), flush=True)
        for word in words:
            sock.sendall(json.dumps({"type": word}).encode() + b"\n")
            print(name, word, sock.recv(4096), flush=True)


def squat() -> None:
    bound = []
    for name in ("owner", "run/evil", f"control/{0:016x}-0", f"control/{'f' * 16}-f"):
        sock = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError):
            sock.bind(f"\0kubeproxy/{name}")
            sock.listen(1)
            bound.append(sock)
    print("ready", flush=True)
    time.sleep(600)


def flood() -> None:
    print("ready", flush=True)
    while True:
        for name in names():
            held = []
            for _ in range(500):
                sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
                held.append(sock)
                with contextlib.suppress(OSError):
                    sock.connect("\0" + name[1:])
            for sock in held:
                sock.close()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        os.setuid(int(sys.argv[2]))
    {"take": take, "squat": squat, "flood": flood}[sys.argv[1]]()
