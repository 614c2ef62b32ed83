"""An orphaned worker: its control process has ended, so the worker keeps serving and looks for the new owner of the
node.

Each control process listens on an abstract Unix socket (`kubeproxy.daemon.takeover.control_socket`); only the owner
answers an orphaned worker. The worker connects and introduces itself, and sends a socket by which the owner has to
prove CAP_NET_ADMIN (`peer_capability`). After the proof the worker obeys the owner: finally it retires, and before that
it may be asked for session affinity bindings and connections::

    worker   {"type": "orphan", "protocol": 2, "pid": 4711, "run": "...", "moves": 2, …}
    owner    {"type": "show"}                                if both support a common version of moves
    worker   {"type": "shown"}                               with the marker of its run
    owner    {"type": "recall"}                              any number of times, with equal protocol versions
    worker   {"type": "bindings", "bound": [...]}            any number
    worker   {"type": "done", "request": "recall"}
    owner    {"type": "move", "workers": [0, 1], "count": 2, …}   with a socket to each; only if the marker is signed
    worker   {"type": "moved", "moved": 20, "left": 0}
    owner    {"type": "retire"}

A worker whose control process is alive does the same when that process has handed over to another one
(`protocol.MoveTo`). In this case it knows the owner's name.

Without an owner the worker retires after its grace period.
"""

from __future__ import annotations

import array
import contextlib
import os
import select
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

from kubeproxy.dataplane.loop.reactor import LEVEL, Reactor
from kubeproxy.dataplane.messages import RestoreBindings
from kubeproxy.dataplane.workers.protocol import DESCRIPTORS_LIMIT
from kubeproxy.dataplane.workers.takeover_messages import (
    FOR_ORPHANS,
    LINE_BYTES,
    MOVES,
    MOVES_SINCE,
    PROTOCOL,
    Bindings,
    Done,
    Move,
    Moved,
    OrphanHello,
    Recall,
    Retire,
    Show,
    Shown,
    decode,
    encode,
)
from kubeproxy.runtime import peer_capability
from kubeproxy.runtime.abstract_sockets import listening, uid_of
from kubeproxy.runtime.peer_capability import Purpose

LOOK_S = 0.25
"""How often, in seconds, the worker looks for an owner. A look costs one system call."""
TURN_S = 10.0
"""For how many seconds the worker waits for an owner if there is another name to try."""


class Marker:
    """The marker of this run. The control process has bound and signed it, and the workers inherit it."""

    def __init__(self, sock: socket.socket | None = None) -> None:
        """`sock` is None if there is no marker. Then connections of this worker cannot move."""
        self._sock = sock
        self.run = "" if sock is None else sock.getsockname().decode().rpartition("/")[2]

    def show(self, to: socket.socket) -> None:
        """Send the marker to an owner. Raise OSError if the connection has ended, or cannot take the marker now."""
        rights = array.array("i", [] if self._sock is None else [self._sock.fileno()])
        to.sendmsg([encode(Shown())], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if rights else [])


class Orphan:
    """The search of one worker for an owner. It starts at once, and calls `retire` once at the end."""

    def __init__(
        self,
        reactor: Reactor,
        *,
        owner_prefix: str,
        marker: Marker,
        grace_s: float,
        bindings: Callable[[], Iterable[RestoreBindings | None]],
        move: Callable[[Move, Sequence[int]], None],
        retire: Callable[[], None],
    ) -> None:
        """`owner_prefix` is the prefix of owners' names, without the leading NUL, or empty if there is no owner.
        `bindings` returns the session affinity bindings in parts. `move` is called with the owner's request and the
        descriptors that came with it."""
        self._reactor = reactor
        self._prefix = owner_prefix
        self._tried: set[str] = set()
        """The names to which the worker has already connected."""
        self._turn = 0
        self._challenge: peer_capability.Challenge | None = None
        self._marker = marker
        self._hello = encode(OrphanHello(PROTOCOL, os.getpid(), marker.run, MOVES, MOVES_SINCE))
        self._until = reactor.clock() + grace_s
        self._bindings = bindings
        self._move = move
        self._moves = False
        """Whether this owner has asked to move connections."""
        self._retire: Callable[[], None] | None = retire
        self._owner: socket.socket | None = None
        self._received = b""
        self._lines: Iterator[bytes] = iter(())
        """The lines to send after those in `_unsent`."""
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
        """Connect to the oldest control socket that has not been tried, or to the oldest one if all have been tried.
        (The owner is older than instances that wait to take over.) Return whether that succeeded."""
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
            challenge = peer_capability.Challenge(Purpose.RETIRE, name)
            rights = array.array("i", [challenge.fileno()])
            sock.sendmsg([self._hello], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            self._reactor.add(sock.fileno(), self._on_owner, LEVEL)
        except OSError:
            sock.close()
            if challenge is not None:
                challenge.close()
            return False
        self._owner, self._received, self._unsent, self._challenge = sock, b"", b"", challenge
        self._moves = False
        self._turn += 1
        turn = self._turn
        self._reactor.after(TURN_S, lambda: self._end_turn(turn))
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

    def _end_turn(self, turn: int) -> None:
        """Stop waiting for an owner if there is another name to try."""
        if self._owner is None or turn != self._turn or self._retire is None:
            return
        if self._next_name() in self._tried:
            self._reactor.after(TURN_S, lambda: self._end_turn(turn))
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
            data, descriptors, _, _ = socket.recv_fds(
                self._owner, LINE_BYTES, DESCRIPTORS_LIMIT, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        *lines, self._received = (self._received + data).split(b"\n")
        requests = list(map(_decode, lines))
        proven = self._challenge is not None and self._challenge.answered
        if not data or len(self._received) > LINE_BYTES or (any(requests) and not proven):
            self._disconnect()
        elif any(isinstance(request, Retire) for request in requests):
            self._end()
        elif moves := [request for request in requests if isinstance(request, Move)]:
            self._moves = True
            self._move(moves[0], descriptors)
            descriptors = []
        elif any(isinstance(request, Show) for request in requests):
            # The owner will close the connection, and the worker will connect again.
            with contextlib.suppress(OSError):
                self._marker.show(self._owner)
        elif any(isinstance(request, Recall) for request in requests):
            self._lines = _answer(self._bindings())
            self._send()
        for descriptor in descriptors:
            os.close(descriptor)

    def moved(self, moved: Moved) -> None:
        """Tell the owner that everything that can move has moved, if it has asked for that."""
        if not self._moves:
            return
        self._lines = chain(self._lines, [encode(moved)])
        self._send()

    def _send(self) -> None:
        """Send as much as the socket accepts, and the rest when it is writable."""
        if self._owner is None:
            return
        try:
            self._unsent = self._unsent or next(self._lines, b"")
            while self._unsent:
                sent = self._owner.send(self._unsent)
                self._unsent = self._unsent[sent:] or next(self._lines, b"")
        except BlockingIOError:
            pass
        except (OSError, MemoryError):  # recv will report the end of the connection.
            self._unsent, self._lines = b"", iter(())
        self._reactor.watch(self._owner.fileno(), LEVEL | (select.EPOLLOUT if self._unsent else 0))

    def _end(self) -> None:
        # The connection stays open until this process exits, because the owner waits for its end.
        retire, self._retire = self._retire, None
        if retire is not None:
            retire()


def _answer(bindings: Iterable[RestoreBindings | None]) -> Iterator[bytes]:
    """Yield the lines that answer `Recall`."""
    for part in filter(None, bindings):
        yield encode(Bindings(part))
    yield encode(Done("recall"))


def _decode(line: bytes) -> Retire | Show | Recall | Move | None:
    """Return the owner's request, or None for anything else, which is ignored."""
    try:
        return decode(line, FOR_ORPHANS)
    except ValueError:
        return None
