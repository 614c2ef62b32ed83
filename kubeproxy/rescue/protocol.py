"""Messages between the control process and the rescue process, each one packet of a Unix socket. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from kubeproxy.model import Address, Protocol, Target
from kubeproxy.model.errors import KubeproxyError
from kubeproxy.model.rescue import RescueCounts

MESSAGE_BYTES: Final = 1 << 16
"""The longest message."""
FLOWS_PER_MESSAGE: Final = 400
"""Flows of a `Freed`: IPv6 addresses as text take 150 bytes of each."""


class GarbledError(KubeproxyError):
    """The other side sent an invalid message."""


class Reason(StrEnum):
    """How an endpoint failed."""

    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    SILENT = "silent"


class Started(Struct, frozen=True, tag=True, array_like=True):
    """The process reads this group of the packet log, and has given up its privileges."""

    group: int
    unfiltered: str | None = None
    """Why its system calls are not filtered; None: they are."""
    shut_out: str | None = None
    """Why clients' packets cannot enter this node again, so that only its own are sent again; None: they can."""


class Beat(Struct, frozen=True, tag=True, array_like=True):
    """The process works. Sent `BEAT_S` apart."""

    counts: RescueCounts


class Failed(Struct, frozen=True, tag=True, array_like=True):
    """An endpoint has failed a client."""

    protocol: Protocol
    endpoint: Target
    reason: Reason


class FreedFlow(NamedTuple):
    """A flow that the control process has deleted."""

    client: Address
    client_port: int
    service: Address
    service_port: int
    peer: Address
    """The client, as the endpoint saw it."""
    peer_port: int
    link: int | None
    """The number of the interface that leads to the client; 0: it is this host; None: unknown, or a flow of TCP."""


class Freed(Struct, frozen=True, tag=True, array_like=True):
    """The flows to a failed endpoint are deleted: what it did not answer can be sent again."""

    protocol: Protocol
    endpoint: Target
    flows: tuple[FreedFlow, ...]


BEAT_S: Final = 0.25

Report = Started | Beat | Failed
Order = Freed

_encoder = msgspec.msgpack.Encoder()
_report_decoder: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)
_order_decoder: msgspec.msgpack.Decoder[Order] = msgspec.msgpack.Decoder(Order)
_GARBLED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError, TypeError, ValueError)


def encode(message: Report | Order) -> bytes:
    """Return a message as bytes."""
    return _encoder.encode(message)


def decode_report(data: bytes) -> Report:
    """Return a message of the rescue process; GarbledError when it is none."""
    try:
        return _report_decoder.decode(data)
    except _GARBLED as error:
        raise GarbledError(f"not a report: {error}") from error


def decode_order(data: bytes) -> Order:
    """Return a message of the control process; GarbledError when it is none."""
    try:
        return _order_decoder.decode(data)
    except _GARBLED as error:
        raise GarbledError(f"not an order: {error}") from error
