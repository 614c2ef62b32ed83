"""A worker whose control process is gone: it goes on serving, and looks for somebody to tell it that it may stop.

The control process that takes over on this host listens on an abstract Unix socket, and so do others that will take
over later; only the owner of the node answers an orphan. The worker connects, introduces itself in one line of JSON,
with a socket for the owner to prove CAP_NET_ADMIN on, and waits for the line that sends it away, which counts only
with that proof::

    worker   {"orphan": 4711, "run": "...", "recalls": true}    its process, and the run that it was part of
    owner    {"recall": true}                                   and before, if it wants to, whom affinity binds:
    worker   {"bound": [...]}, {"told": true}                   these and no more
    owner    {"retire": true}

If nobody comes within the grace time it ends by itself.
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
"""How often it looks for an owner: what it costs is one system call."""
LINE_LIMIT = 4096
"""Bytes. Whoever says more in one line is not the one we look for."""
TURN_S = 10.0
"""How long it waits with one owner for the word, when there is another to ask."""


class Introduction(msgspec.Struct, frozen=True):
    """What the worker says."""

    orphan: int
    run: str
    recalls: bool = True
    """That it knows the word."""


class Word(msgspec.Struct, frozen=True):
    """What it waits for; whatever else it hears it passes over."""

    retire: bool = False
    recall: bool = False


class Told(msgspec.Struct, frozen=True):
    """A piece of what it tells."""

    bound: RestoreBindings


class Orphan:
    """Looks from now on; `retire` is called once, in the end."""

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
        """`owner_prefix`: how owners' names begin, without the leading NUL; empty: there is nobody to look for.
        `bindings` as the engine tells."""
        self._reactor = reactor
        self._prefix = owner_prefix
        self._asked: set[str] = set()
        """Names that have had their turn."""
        self._turn = 0
        self._challenge: net_admin.Challenge | None = None
        self._introduction = msgspec.json.encode(Introduction(os.getpid(), run)) + b"\n"
        self._until = reactor.clock() + grace_s
        self._bindings = bindings
        self._retire: Callable[[], None] | None = retire
        self._owner: socket.socket | None = None
        self._heard = b""
        self._lines: Iterator[bytes] = iter(())
        """What is to be said yet, after `_unsaid`."""
        self._unsaid = b""
        self._look()

    def _look(self) -> None:
        if self._retire is None or self._owner is not None:
            return
        if self._reactor.clock() >= self._until:
            self._end()
        elif not self._connect():
            self._reactor.after(LOOK_S, self._look)

    def _connect(self) -> bool:
        """To the oldest of those that have not had their turn: the owner is older than those that wait to take over."""
        name = self._next_name()
        if name is None:
            return False
        self._asked.add(name)
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
        self._owner, self._heard, self._unsaid, self._challenge = sock, b"", b"", challenge
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
        self._asked &= names
        return min(names - self._asked or names, default=None)

    def _give_up(self, turn: int) -> None:
        """Its turn is over if there is another to ask."""
        if self._owner is None or turn != self._turn or self._retire is None:
            return
        if self._next_name() in self._asked:
            self._reactor.after(TURN_S, lambda: self._give_up(turn))
        else:
            self._hang_up()

    def _hang_up(self) -> None:
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
            self._tell()
        try:
            data = self._owner.recv(LINE_LIMIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, self._heard = (self._heard + data).split(b"\n")
        words = [_decode(line) for line in lines]
        if any(word.retire for word in words) and self._challenge is not None and self._challenge.answered:
            self._end()
        elif any(word.recall for word in words):
            self._lines = _told(self._bindings())
            self._tell()
        elif not data or len(self._heard) > LINE_LIMIT or any(word.retire for word in words):
            self._hang_up()

    def _tell(self) -> None:
        """As much as the owner takes; the rest when there is room."""
        if self._owner is None:
            return
        try:
            self._unsaid = self._unsaid or next(self._lines, b"")
            while self._unsaid:
                sent = self._owner.send(self._unsaid)
                self._unsaid = self._unsaid[sent:] or next(self._lines, b"")
        except BlockingIOError:
            pass
        except (OSError, MemoryError):  # that it has gone is heard, too
            self._unsaid, self._lines = b"", iter(())
        self._reactor.watch(self._owner.fileno(), LEVEL | (select.EPOLLOUT if self._unsaid else 0))

    def _end(self) -> None:
        # The connection stays open as long as this process lives: its end tells the owner that we are done.
        retire, self._retire = self._retire, None
        if retire is not None:
            retire()


def _told(bindings: Iterable[RestoreBindings | None]) -> Iterator[bytes]:
    """Line by line."""
    for remembered in filter(None, bindings):
        yield msgspec.json.encode(Told(remembered)) + b"\n"
    yield b'{"told": true}\n'


def _decode(line: bytes) -> Word:
    try:
        return msgspec.json.decode(line, type=Word)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Word()
