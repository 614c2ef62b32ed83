"""The messages between an orphaned worker and the owner, and the version of the takeover protocol.

Each message is a JSON object on a line of its own, sent over a stream socket; ``type`` names its kind. Unknown fields
are ignored. `OrphanHello` and `Retire` are frozen: they mean the same in every version, so that an owner can replace
workers of another version. `Show`, `Shown`, `Move` and `Moved` have a version of their own (`MOVES`), and are sent if
both sides support a common one. All other messages may change with each version of `PROTOCOL`, and are sent only to
processes of the same version. `kubeproxy.daemon.takeover.protocol` has the messages between control processes.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from kubeproxy.dataplane.messages import RestoreBindings

PROTOCOL: Final = 2
"""The version of the protocol. Increase it when a message that is not frozen changes its meaning or its fields, or when
the order of messages changes. This includes `RestoreBindings`, which is part of a message."""
MOVES: Final = 2
"""The version of everything that moves with a connection (`move_protocol`), and of `Show` and `Move`. Increase it when
one of these, `ConnectionState` or `SessionState` changes its meaning. A field with a default may be appended without
that, because both sides ignore unknown fields."""
MOVES_SINCE: Final = MOVES
"""The oldest version of `MOVES` that this program still supports. Two workers use the newest version that both support.
Without a common version nothing moves, and the connections are drained. So whoever increases `MOVES` should keep
support for the previous version, and add a field to `Move` for the version to use, with the previous version as its
default."""
LINE_BYTES: Final = 4096
"""The longest line in bytes."""

T = TypeVar("T")


class TakeoverMessage(msgspec.Struct, frozen=True, tag_field="type", tag=str.lower):
    """The base of all messages. Each is sent as one line."""


class OrphanHello(TakeoverMessage, frozen=True, omit_defaults=True, tag="orphan"):
    """The first message of an orphaned worker, sent with a `peer_capability.Challenge`. Frozen."""

    protocol: int
    pid: int
    """The worker's process id in its own PID namespace."""
    run: str
    """The run to which the worker belongs."""
    moves: int = 0
    """The newest version of `Move` that the worker supports."""
    moves_since: int = 0
    """The oldest version of `Move` that the worker supports. 0 means the same as `moves`."""

    @property
    def common_moves(self) -> int | None:
        """Return the newest version of `Move` that both the worker and this program support, or None."""
        newest = min(self.moves, MOVES)
        return newest if newest >= max(self.moves_since or self.moves, MOVES_SINCE) else None


class Retire(TakeoverMessage, frozen=True):
    """Tells the worker that the rules redirect to the owner, so that it stops accepting, drains and exits. Frozen."""


class Show(TakeoverMessage, frozen=True):
    """Asks the worker for the marker of its run."""


class Shown(TakeoverMessage, frozen=True):
    """The answer to `Show`, sent together with the marker."""


class Move(TakeoverMessage, frozen=True):
    """Asks the worker to move all connections to the owner's workers. It is sent with a socket to each of them, in the
    order of `workers`."""

    workers: tuple[int, ...]
    """The numbers of the owner's workers that can take connections."""
    count: int
    """The number of all the owner's workers, by which UDP clients are assigned."""


class Moved(TakeoverMessage, frozen=True):
    """Tells that everything that can move has moved."""

    moved: int
    left: int
    longest_s: float = 0.0
    """The longest time in seconds for which a connection was stopped."""


class Recall(TakeoverMessage, frozen=True):
    """Asks the worker for its session affinity bindings."""


class Bindings(TakeoverMessage, frozen=True):
    """A part of the answer to `Recall`."""

    bound: RestoreBindings


class Done(TakeoverMessage, frozen=True):
    """Tells that the request of type `request` is completed."""

    request: str


FOR_ORPHANS: Final[msgspec.json.Decoder[Retire | Show | Recall | Move]] = msgspec.json.Decoder(
    Retire | Show | Recall | Move
)
SHOWN: Final = msgspec.json.Decoder(Shown)
FROM_ORPHANS: Final[msgspec.json.Decoder[Bindings | Done | Moved]] = msgspec.json.Decoder(Bindings | Done | Moved)


def encode(message: TakeoverMessage) -> bytes:
    """Return a message as a line."""
    return msgspec.json.encode(message) + b"\n"


def decode(line: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Parse a line as a message. Raise ValueError if it is invalid."""
    try:
        return decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"expected a takeover message, got {line[:80]!r}") from error
