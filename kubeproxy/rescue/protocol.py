"""Messages between the control process and the rescue process, each of them one packet of a Unix socket."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from kubeproxy.model import Address, Protocol, Target
from kubeproxy.model.errors import KubeproxyError
from kubeproxy.model.rescue import RescueCounts

MESSAGE_BYTES: Final = 1 << 16
"""The longest message in bytes."""
FLOWS_PER_MESSAGE: Final = 400
"""How many flows a `Freed` may have. IPv6 addresses as text take 150 bytes for each."""


class GarbledMessageError(KubeproxyError):
    """The other side sent an invalid message."""


class Reason(StrEnum):
    """The way in which an endpoint failed."""

    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    SILENT = "silent"


class Started(Struct, frozen=True, tag=True, array_like=True):
    """Tells that the process reads this NFLOG group, and has given up its privileges."""

    group: int
    unfiltered: str | None = None
    """Why its system calls are not filtered, or None if they are."""
    shut_out: str | None = None
    """Why the process could not open the socket that puts a client's packet back in at the interface it came by
    (`netfilter.reentry`), or None if it could. Without that socket, first packets are sent again only for clients on
    this host itself, not for other hosts or pods."""


class Beat(Struct, frozen=True, tag=True, array_like=True):
    """Tells that the process works. This message is sent every `BEAT_S`."""

    counts: RescueCounts


class Failed(Struct, frozen=True, tag=True, array_like=True):
    """Tells that an endpoint has failed a client."""

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
    """The client, with the address that the endpoint saw."""
    peer_port: int
    link: int | None
    """The number of the interface that leads to the client. 0 means this host. None means that the interface is
    unknown, or that the flow is of TCP."""


class Freed(Struct, frozen=True, tag=True, array_like=True):
    """Says that the conntrack entries of flows to a failed endpoint have been deleted. The rescue process may then send
    again the packets that the endpoint has not answered."""

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


def decode_message(data: bytes) -> Report:
    """Return a message of the rescue process. Raise GarbledMessageError if it is invalid."""
    try:
        return _report_decoder.decode(data)
    except _GARBLED as error:
        raise GarbledMessageError(f"not a report: {error}") from error


def decode_order(data: bytes) -> Order:
    """Return a message of the control process. Raise GarbledMessageError if it is invalid."""
    try:
        return _order_decoder.decode(data)
    except _GARBLED as error:
        raise GarbledMessageError(f"not an order: {error}") from error
