"""A fake predecessor: it records the state of the host at each request of a new instance."""

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
from kubeproxy.daemon.takeover.protocol import Accepted, Busy, Prove
from kubeproxy.dataplane.workers.takeover_messages import PROTOCOL, Done, TakeoverMessage, encode
from kubeproxy.runtime import peer_capability
from kubeproxy.runtime.peer_capability import Purpose
from tests.support.lab import Host
from tests.system.e2e import kernel_state

NAME = f"{PREFIX}{0:016x}-played"
"""Older than every other."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The host at the moment of a request."""

    word: str
    listeners: int
    """TCP listeners that were not there before."""
    rules: int
    """Lines of ours in the packet filter."""


@dataclass(slots=True)
class Incumbent:
    """The owner of the node; to the first `busy` hellos it answers busy."""

    host: Host
    busy: int
    sights: list[Observation] = field(default_factory=list)

    @property
    def words(self) -> list[str]:
        """The types of the requests, in order."""
        return [sight.word for sight in self.sights]

    def serve(self, listening: socket.socket) -> None:
        """Serve until a new instance has taken over, or `listening` is shut down.

        It runs in the network namespace of the host, since a proof holds for one network namespace.
        """
        with self.host.entered():
            self._accept(listening)

    def _accept(self, listening: socket.socket) -> None:
        before = kernel_state.listening(self.host)
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            with client:
                hello, descriptors, _, _ = socket.recv_fds(client, 4096, 1)
                for descriptor in descriptors:
                    peer_capability.answer(descriptor, Purpose.OWN, NAME)
                if self.words.count("hello") >= self.busy:
                    challenge = peer_capability.Challenge(Purpose.TAKE, NAME)
                    socket.send_fds(client, [encode(Prove(PROTOCOL, 1, "0"))], [challenge.fileno()])
                    client.recv(4096)
                    proven = challenge.answered
                    challenge.close()
                    if not proven:
                        continue
                self._talk(client, hello, before)

    def _talk(self, client: socket.socket, hello: bytes, before: Set[kernel_state.Listening]) -> None:
        with client.makefile("rwb") as talk:
            for line in chain([hello], talk):
                word = json.loads(line)["type"]
                new = kernel_state.listening(self.host) - before
                self.sights.append(Observation(word, len(new), len(kernel_state.ours(self.host))))
                if word == "hello" and self.words.count("hello") <= self.busy:
                    answer: TakeoverMessage = Busy(PROTOCOL)
                elif word == "hello":
                    answer = Accepted()
                else:
                    answer = Done(word)
                talk.write(encode(answer))
                talk.flush()
                if isinstance(answer, Busy) or word == "take":
                    break


@contextmanager
def incumbent(host: Host, *, busy: int) -> Iterator[Incumbent]:
    """A fake predecessor on `host`."""
    with host.entered():
        listening = socket.socket(socket.AF_UNIX)
        instance_marker = InstanceMarker()
    played = Incumbent(host, busy)
    listening.bind(f"\0{NAME}")
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
