"""What processes of ours say to one another over a Unix socket: one JSON object per line, in both directions.

Whoever is of another version may say what is not known here; that is for the listener to pass over.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from kubeproxy.dataplane.messages import RestoreBindings

LINE_BYTES: Final = 4096

Message = Mapping[str, Any]


async def send(writer: asyncio.StreamWriter, message: Message) -> None:
    """OSError when the other side has gone."""
    if writer.is_closing():
        raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
    writer.write(msgspec.json.encode(message) + b"\n")
    await writer.drain()


async def receive(reader: asyncio.StreamReader) -> Message | None:
    """The next message; None at the end. ValueError for what is none."""
    line = await reader.readline()
    if not line.endswith(b"\n"):
        return None
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"expected an object, got {line[:80]!r}") from error


def told(remembered: RestoreBindings) -> Message:
    """Whom another process is to know, to be said."""
    return {"bound": remembered}


def heard(message: Message) -> RestoreBindings | None:
    """Whom another process knows; None: the message is about something else, or not to be understood."""
    try:
        return msgspec.convert(message.get("bound"), RestoreBindings)
    except msgspec.ValidationError:
        return None
