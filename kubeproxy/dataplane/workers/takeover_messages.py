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
LINE_BYTES: Final = 4096
"""The longest line."""

T = TypeVar("T")


class TakeoverMessage(msgspec.Struct, frozen=True, tag_field="type", tag=str.lower):
    """One line."""


class OrphanHello(TakeoverMessage, frozen=True, tag="orphan"):
    """The first message of an orphaned worker, sent with a `peer_capability.Challenge`. Frozen."""

    protocol: int
    pid: int
    """Its process number in its own PID namespace."""
    run: str
    """The run that it belonged to."""


class Retire(TakeoverMessage, frozen=True):
    """The rules lead to the owner: the worker stops accepting, drains and ends. Frozen."""


class Recall(TakeoverMessage, frozen=True):
    """A request for the clients that session affinity binds."""


class Bindings(TakeoverMessage, frozen=True):
    """A part of the answer to `Recall`."""

    bound: RestoreBindings


class Done(TakeoverMessage, frozen=True):
    """The request of that type is carried out, and its answer complete."""

    request: str


FOR_ORPHANS: Final[msgspec.json.Decoder[Retire | Recall]] = msgspec.json.Decoder(Retire | Recall)
FROM_ORPHANS: Final[msgspec.json.Decoder[Bindings | Done]] = msgspec.json.Decoder(Bindings | Done)


def encode(message: TakeoverMessage) -> bytes:
    """Return the line of a message."""
    return msgspec.json.encode(message) + b"\n"


def decode(line: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Return the message of a line. ValueError for any other text."""
    try:
        return decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"expected a takeover message, got {line[:80]!r}") from error
