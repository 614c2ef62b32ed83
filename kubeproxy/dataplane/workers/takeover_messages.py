"""The messages between an orphaned worker and the owner, and the version of the takeover protocol.

Each message is one JSON object in a line, sent over a stream socket; ``type`` names the kind. Unknown fields are
ignored. `OrphanHello` and `Retire` are frozen: they mean the same in every version, so that an owner can replace the
workers of another version. The other messages may change with each version, and go only to a process of the same
version. `kubeproxy.daemon.takeover.protocol` has the messages between control processes.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from kubeproxy.dataplane.messages import RestoreBindings

PROTOCOL: Final = 2
"""The version. Raise it when a message that is not frozen changes its meaning or its fields, or when the order of
messages changes. `RestoreBindings` and its fields are part of a message."""
MOVES: Final = 2
"""The version of everything that moves with a connection (`move_protocol`), and of `Show` and `Move`. Raise it when one
of them, `ConnectionState` or `SessionState` changes its meaning. A field with a default may be added at the end without
that: both sides ignore fields that they do not know."""
MOVES_SINCE: Final = MOVES
"""The oldest version of `MOVES` that this program still speaks. Two workers use the newest version that both speak.
Without one in common nothing moves, and the connections drain. So a program that raises `MOVES` goes on speaking the
version before, and gives `Move` a field for the version to use, whose default is the version before."""
LINE_BYTES: Final = 4096
"""The longest line in bytes."""

T = TypeVar("T")


class TakeoverMessage(msgspec.Struct, frozen=True, tag_field="type", tag=str.lower):
    """One line."""


class OrphanHello(TakeoverMessage, frozen=True, omit_defaults=True, tag="orphan"):
    """The first message of an orphaned worker, sent with a `peer_capability.Challenge`. It is frozen."""

    protocol: int
    pid: int
    """Its process number in its own PID namespace."""
    run: str
    """The run to which the worker belonged."""
    moves: int = 0
    """The newest version of `Move` that the worker understands."""
    moves_since: int = 0
    """The oldest version of `Move` that the worker understands. 0 stands for `moves`."""

    @property
    def common_moves(self) -> int | None:
        """Return the newest version of `Move` that both this worker and this program understand, or None."""
        newest = min(self.moves, MOVES)
        return newest if newest >= max(self.moves_since or self.moves, MOVES_SINCE) else None


class Retire(TakeoverMessage, frozen=True):
    """The rules lead to the owner, so the worker stops accepting, drains and ends. This message is frozen."""


class Show(TakeoverMessage, frozen=True):
    """Asks the worker for the marker of its run."""


class Shown(TakeoverMessage, frozen=True):
    """The answer to `Show`, sent with the marker."""


class Move(TakeoverMessage, frozen=True):
    """Asks the worker to move all connections to the owner's workers. It is sent with a socket to each of them, in this
    order."""

    workers: tuple[int, ...]
    """The numbers of these workers."""
    count: int
    """The number of the owner's workers, by which UDP clients are assigned."""


class Moved(TakeoverMessage, frozen=True):
    """Everything that can move has moved."""

    moved: int
    left: int
    longest_s: float = 0.0
    """For how long a connection was stopped at most."""


class Recall(TakeoverMessage, frozen=True):
    """A request for the clients that session affinity binds."""


class Bindings(TakeoverMessage, frozen=True):
    """A part of the answer to `Recall`."""

    bound: RestoreBindings


class Done(TakeoverMessage, frozen=True):
    """The request of type `request` is carried out, and its answer is complete."""

    request: str


FOR_ORPHANS: Final[msgspec.json.Decoder[Retire | Show | Recall | Move]] = msgspec.json.Decoder(
    Retire | Show | Recall | Move
)
SHOWN: Final = msgspec.json.Decoder(Shown)
FROM_ORPHANS: Final[msgspec.json.Decoder[Bindings | Done | Moved]] = msgspec.json.Decoder(Bindings | Done | Moved)


def encode(message: TakeoverMessage) -> bytes:
    """Return the line of a message."""
    return msgspec.json.encode(message) + b"\n"


def decode(line: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Return the message of a line. Raise ValueError for any other text."""
    try:
        return decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"expected a takeover message, got {line[:80]!r}") from error
