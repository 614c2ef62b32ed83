"""Messages between an orphaned worker and the owner; the version of the takeover protocol.

One JSON object per line, over a stream socket; ``type`` names the kind. Unknown fields are ignored. `OrphanHello` and
`Retire` are frozen: they mean the same in every version, so that an owner can replace the workers of another version.
The other messages may change with each version, and go only to a process of the same version.
`kubeproxy.daemon.takeover.protocol` has the messages between control processes.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from kubeproxy.dataplane.messages import RestoreBindings

PROTOCOL: Final = 2
"""The version. Raise it when a message that is not frozen changes its meaning or its fields, or when the order of
messages changes; `RestoreBindings` and what it holds are part of a message."""
MOVES: Final = 2
"""The version of what moves with a connection (`moving`), and of `Show` and `Move`. Raise it when one of them,
`ConnectionState` or `SessionState` changes: between two versions nothing moves, and the connections drain."""
LINE_BYTES: Final = 4096
"""The longest line."""

T = TypeVar("T")


class TakeoverMessage(msgspec.Struct, frozen=True, tag_field="type", tag=str.lower):
    """One line."""


class OrphanHello(TakeoverMessage, frozen=True, omit_defaults=True, tag="orphan"):
    """The first message of an orphaned worker, sent with a `peer_capability.Challenge`. Frozen."""

    protocol: int
    pid: int
    """Its process number in its own PID namespace."""
    run: str
    """The run that it belonged to."""
    moves: int = 0
    """The version of `Move` that it understands."""


class Retire(TakeoverMessage, frozen=True):
    """The rules lead to the owner: the worker stops accepting, drains and ends. Frozen."""


class Show(TakeoverMessage, frozen=True):
    """Show the marker of your run."""


class Shown(TakeoverMessage, frozen=True):
    """The answer to `Show`, sent with the marker."""


class Move(TakeoverMessage, frozen=True):
    """Move all connections to the owner's workers: sent with a socket to each of them, in this order."""

    workers: tuple[int, ...]
    """Their numbers."""
    count: int
    """The workers of the owner, which assign UDP clients by it."""


class Moved(TakeoverMessage, frozen=True):
    """All that can move has moved."""

    moved: int
    left: int
    longest_s: float = 0.0
    """For how long a connection was still at most."""


class Recall(TakeoverMessage, frozen=True):
    """A request for the clients that session affinity binds."""


class Bindings(TakeoverMessage, frozen=True):
    """A part of the answer to `Recall`."""

    bound: RestoreBindings


class Done(TakeoverMessage, frozen=True):
    """The request of that type is carried out, and its answer complete."""

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
