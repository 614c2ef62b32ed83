"""Who serves already, played: it says of every word of a successor's what could be seen when it came."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain

from kubeproxy.daemon.takeover.control_socket import PREFIX
from kubeproxy.daemon.takeover.instances import InstanceMarker
from kubeproxy.runtime import net_admin
from tests.support.lab import Host
from tests.system.e2e import kernel


@dataclass(frozen=True, slots=True)
class Observation:
    """The host at the moment of a word."""

    word: str
    listeners: int
    """TCP listeners that were not there before."""
    rules: int
    """Lines of ours in the packet filter."""


@dataclass(slots=True)
class Incumbent:
    """Owner of the host's name; to the first `busy` newcomers it says that it speaks with another."""

    host: Host
    busy: int
    sights: list[Observation] = field(default_factory=list)

    @property
    def words(self) -> list[str]:
        """What was said, in order."""
        return [sight.word for sight in self.sights]

    def serve(self, listening: socket.socket) -> None:
        """Until a successor has taken over, or `listening` is shut down."""
        before = kernel.listening(self.host)
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            with client:
                hello, descriptors, _, _ = socket.recv_fds(client, 4096, 1)
                for descriptor in descriptors:
                    net_admin.answer(descriptor)
                if self.words.count("hello") >= self.busy:
                    challenge = net_admin.Challenge()
                    socket.send_fds(client, [b'{"prove": true}\n'], [challenge.fileno()])
                    client.recv(4096)
                    proven = challenge.answered
                    challenge.close()
                    if not proven:
                        continue
                self._talk(client, hello, before)

    def _talk(self, client: socket.socket, hello: bytes, before: Set[kernel.Listening]) -> None:
        with client.makefile("rwb") as talk:
            for line in chain([hello], talk):
                word = json.loads(line)["do"]
                new = kernel.listening(self.host) - before
                self.sights.append(Observation(word, len(new), len(kernel.ours(self.host))))
                if word == "hello" and self.words.count("hello") <= self.busy:
                    answer: dict[str, object] = {"busy": True}
                elif word == "hello":
                    answer = {"pid": 1, "version": "0"}
                else:
                    answer = {"done": word}
                talk.write(json.dumps(answer).encode() + b"\n")
                talk.flush()
                if "busy" in answer or word == "take":
                    break


@contextmanager
def incumbent(host: Host, *, busy: int) -> Iterator[Incumbent]:
    """One that serves on `host`."""
    with host.entered():
        listening = socket.socket(socket.AF_UNIX)
        instance_marker = InstanceMarker()
    played = Incumbent(host, busy)
    listening.bind(f"\0{PREFIX}{0:016x}-played")
    listening.listen()
    thread = threading.Thread(target=played.serve, args=(listening,))
    thread.start()
    try:
        yield played
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
        listening.close()
        instance_marker.close()
