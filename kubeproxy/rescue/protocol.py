"""Messages between the control process and the rescue process. Each message is one packet of a Unix socket."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from kubeproxy.model import Address, Protocol, Target
from kubeproxy.model.errors import KubeproxyError
from kubeproxy.model.rescue import RescueCounts

MESSAGE_BYTES: Final = 1 << 16
"""The largest size of a message in bytes."""
FLOWS_PER_MESSAGE: Final = 400
"""The largest number of flows in a `Freed`. With IPv6 addresses as text, each flow takes 150 bytes."""


class GarbledMessageError(KubeproxyError):
    """The other side sent an invalid message."""


class Reason(StrEnum):
    """The way in which an endpoint failed."""

    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    SILENT = "silent"


class Started(Struct, frozen=True, tag=True, array_like=True):
    """Tells that the process reads this NFLOG group and has given up its privileges."""

    group: int
    unfiltered: str | None = None
    """Why the process runs without a system call filter, or None if it has one."""
    shut_out: str | None = None
    """Why the process could not open the socket that re-injects a client's packet at the interface on which it arrived
    (`netfilter.reentry`), or None if it could. Without that socket, first packets are sent again only for clients on
    this host, not for other hosts or pods."""


class Beat(Struct, frozen=True, tag=True, array_like=True):
    """Tells that the process works. This message is sent every `BEAT_S`."""

    counts: RescueCounts


class Failed(Struct, frozen=True, tag=True, array_like=True):
    """Tells that an endpoint has failed a client."""

    protocol: Protocol
    endpoint: Target
    reason: Reason


class FreedFlow(NamedTuple):
    """A flow whose conntrack entry the control process has deleted."""

    client: Address
    client_port: int
    service: Address
    service_port: int
    peer: Address
    """The client's address and port as the endpoint saw them."""
    peer_port: int
    link: int | None
    """The number of the client's interface; 0 means this host. It is None for TCP, or if the interface is unknown."""


class Freed(Struct, frozen=True, tag=True, array_like=True):
    """Tells that the conntrack entries of flows to a failed endpoint are deleted. The rescue process may now send their
    unanswered packets again."""

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
