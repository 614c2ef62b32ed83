"""An orphaned worker: keeps serving without its control process, and looks for a new owner.

The control process that takes over on this host listens on an abstract Unix socket, and so do instances that will take
over later; only the owner answers an orphan. The worker connects and introduces itself in one line of JSON, with a
socket on which the owner proves CAP_NET_ADMIN. It then waits for ``retire``, which it obeys only with that proof::

    worker   {"orphan": 4711, "run": "...", "recalls": true}    its process, and the run that it belongs to
    owner    {"recall": true}                                   optional: asks for the affinity bindings
    worker   {"bound": [...]}, {"told": true}                   the bindings, and their end
    owner    {"retire": true}

Without an owner it exits when the grace period is over.
"""

from __future__ import annotations

import array
import os
import select
import socket
from collections.abc import Callable, Iterable, Iterator

import msgspec

from kubeproxy.dataplane.loop.reactor import LEVEL, Reactor
from kubeproxy.dataplane.messages import RestoreBindings
from kubeproxy.runtime import net_admin
from kubeproxy.runtime.unix_names import listening, uid_of

LOOK_S = 0.25
"""How often it looks for an owner, which takes one system call."""
LINE_LIMIT = 4096
"""Bytes. A peer with a longer line is not an owner."""
TURN_S = 10.0
"""How long it waits for ``retire`` at one socket, when there is another to try."""


class Introduction(msgspec.Struct, frozen=True):
    """The worker's first line."""

    orphan: int
    run: str
    recalls: bool = True
    """Whether the worker supports ``recall``."""


class OwnerLine(msgspec.Struct, frozen=True):
    """A line of the owner; unknown fields are ignored."""

    retire: bool = False
    recall: bool = False


class BindingsLine(msgspec.Struct, frozen=True):
    """A line of the worker with affinity bindings."""

    bound: RestoreBindings


class Orphan:
    """The search for an owner; calls `retire` once, at its order or after the grace period."""

    def __init__(
        self,
        reactor: Reactor,
        *,
        owner_prefix: str,
        run: str,
        grace_s: float,
        bindings: Callable[[], Iterable[RestoreBindings | None]],
        retire: Callable[[], None],
    ) -> None:
        """`owner_prefix`: the prefix of owners' socket names, without the leading NUL; empty: no search.
        `bindings`: see `Engine.bindings`."""
        self._reactor = reactor
        self._prefix = owner_prefix
        self._tried: set[str] = set()
        """Names of sockets that have had their turn."""
        self._turn = 0
        self._challenge: net_admin.Challenge | None = None
        self._introduction = msgspec.json.encode(Introduction(os.getpid(), run)) + b"\n"
        self._until = reactor.clock() + grace_s
        self._bindings = bindings
        self._retire: Callable[[], None] | None = retire
        self._owner: socket.socket | None = None
        self._received = b""
        self._lines: Iterator[bytes] = iter(())
        """Lines to send after `_unsent`."""
        self._unsent = b""
        self._look()

    def _look(self) -> None:
        if self._retire is None or self._owner is not None:
            return
        if self._reactor.clock() >= self._until:
            self._end()
        elif not self._connect():
            self._reactor.after(LOOK_S, self._look)

    def _connect(self) -> bool:
        """Connect to the oldest socket that has not had its turn: the owner is older than instances that wait."""
        name = self._next_name()
        if name is None:
            return False
        self._tried.add(name)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        challenge = None
        try:
            sock.connect("\0" + name)
            if uid_of(sock) != os.geteuid():
                raise PermissionError
            challenge = net_admin.Challenge()
            rights = array.array("i", [challenge.fileno()])
            sock.sendmsg([self._introduction], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            self._reactor.add(sock.fileno(), self._on_owner, LEVEL)
        except OSError:
            sock.close()
            if challenge is not None:
                challenge.close()
            return False
        self._owner, self._received, self._unsent, self._challenge = sock, b"", b"", challenge
        self._turn += 1
        turn = self._turn
        self._reactor.after(TURN_S, lambda: self._give_up(turn))
        return True

    def _next_name(self) -> str | None:
        if not self._prefix:
            return None
        try:
            names = listening(self._prefix)
        except OSError:
            return None
        self._tried &= names
        return min(names - self._tried or names, default=None)

    def _give_up(self, turn: int) -> None:
        """End a socket's turn if there is another socket to try."""
        if self._owner is None or turn != self._turn or self._retire is None:
            return
        if self._next_name() in self._tried:
            self._reactor.after(TURN_S, lambda: self._give_up(turn))
        else:
            self._disconnect()

    def _disconnect(self) -> None:
        if self._owner is not None:
            self._reactor.close(self._owner.detach())
            self._owner = None
        if self._challenge is not None:
            self._challenge.close()
            self._challenge = None
        self._reactor.after(LOOK_S, self._look)

    def _on_owner(self, what: int) -> None:
        if self._owner is None:
            return
        if what & select.EPOLLOUT:
            self._send()
        try:
            data = self._owner.recv(LINE_LIMIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *complete, self._received = (self._received + data).split(b"\n")
        lines = [_decode(line) for line in complete]
        if any(line.retire for line in lines) and self._challenge is not None and self._challenge.answered:
            self._end()
        elif any(line.recall for line in lines):
            self._lines = _binding_lines(self._bindings())
            self._send()
        elif not data or len(self._received) > LINE_LIMIT or any(line.retire for line in lines):
            self._disconnect()

    def _send(self) -> None:
        """Send as much as the socket takes; the rest when it is writable again."""
        if self._owner is None:
            return
        try:
            self._unsent = self._unsent or next(self._lines, b"")
            while self._unsent:
                sent = self._owner.send(self._unsent)
                self._unsent = self._unsent[sent:] or next(self._lines, b"")
        except BlockingIOError:
            pass
        except (OSError, MemoryError):  # if the owner has closed, the socket reports that, too
            self._unsent, self._lines = b"", iter(())
        self._reactor.watch(self._owner.fileno(), LEVEL | (select.EPOLLOUT if self._unsent else 0))

    def _end(self) -> None:
        # The connection stays open until this process exits: its end shows the owner that the worker has finished.
        retire, self._retire = self._retire, None
        if retire is not None:
            retire()


def _binding_lines(bindings: Iterable[RestoreBindings | None]) -> Iterator[bytes]:
    """The lines with the affinity bindings, and the last line."""
    for message in filter(None, bindings):
        yield msgspec.json.encode(BindingsLine(message)) + b"\n"
    yield b'{"told": true}\n'


def _decode(line: bytes) -> OwnerLine:
    try:
        return msgspec.json.decode(line, type=OwnerLine)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return OwnerLine()
