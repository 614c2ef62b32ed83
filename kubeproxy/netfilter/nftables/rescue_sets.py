"""Reads and changes elements of our table's sets through netlink, for work that is done every second, for which
starting the program nft would cost too much.

The messages are those of nf_tables (linux/netfilter/nf_tables.h). Each change is a separate transaction.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Iterator
from typing import Final, NamedTuple

from kubeproxy.model import Address, Family, Protocol, Target
from kubeproxy.netfilter.netlink.messages import (
    ATTRIBUTE_HEADER,
    NETLINK_NETFILTER,
    NLM_F_DUMP,
    answers,
    attributes,
    encode,
    frame,
    open_netlink,
)
from kubeproxy.netfilter.nftables.element_socket import (
    INET,
    LIST_ELEMENTS,
    LIST_SET,
    LIST_TABLE,
    NESTED,
    NEW,
    SUBSYSTEM,
    TABLE_NAME,
    ElementSocket,
    nfgen,
)
from kubeproxy.netfilter.nftables.elements import Batch
from kubeproxy.netfilter.nftables.rescue import ALIVE, ALIVE_S, STAMP_S

_GET: Final = SUBSYSTEM | 13  # NFT_MSG_GETSETELEM
_KEY, _TIMEOUT, _EXPIRATION = 1, 4, 5  # NFTA_SET_ELEM_*
_VALUE = 1  # NFTA_DATA_VALUE
_BUFFER_BYTES: Final = 1 << 17
_TIMEOUT_S: Final = 1.0
_NUMBERS: Final = {Protocol.TCP: socket.IPPROTO_TCP, Protocol.UDP: socket.IPPROTO_UDP}
_ADDRESS_BYTES: Final = {Family.IPV4: 4, Family.IPV6: 16}


class Stamps(NamedTuple):
    """The contents of both sets of one family: endpoints, each with the monotonic time of its last stamp."""

    asked: dict[Target, float]
    answered: dict[Target, float]
    blur_s: float
    """The inexactness of the times in seconds. A stamp may be later than the given time by up to this much."""


class _TimedSocket:
    """A netlink socket that records when the kernel computed the part of a listing that was read last.

    The kernel computes the first part during `send`, and each further part during the `recv` that returns the part
    before.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self.counted_at = 0.0
        """The earliest monotonic time at which the kernel can have computed the part."""
        self.blur_s = 0.0
        """By how many seconds later than `counted_at` the kernel may have computed a part."""
        self._next = (0.0, 0.0)

    def send(self, data: bytes) -> None:
        began = time.monotonic()
        self._socket.send(data)
        self._next = began, time.monotonic()

    def recv(self, at_most: int) -> bytes:
        began, ended = self._next
        self.counted_at, self.blur_s = began, max(self.blur_s, ended - began)
        began = time.monotonic()
        data = self._socket.recv(at_most)
        self._next = began, time.monotonic()
        return data


class RescueSets:
    """Netlink sockets for our table's sets. Each call takes some tens of microseconds. Only one thread may use it at a
    time."""

    def __init__(self) -> None:
        """Open the sockets. Raise OSError if the kernel has no nf_tables."""
        self._socket = open_netlink(NETLINK_NETFILTER)
        self._socket.settimeout(_TIMEOUT_S)
        self._elements = ElementSocket()
        self._sequence = 0
        self._targets: dict[bytes, Target] = {}

    def renew_alive(self, for_s: float = ALIVE_S) -> None:
        """Keep the rescue rules working for `for_s` seconds. Raise OSError if the kernel refuses, for example because
        there is no table.

        Adding an existing element does not renew its timeout, so one transaction deletes the element and adds it again.
        The transaction first adds it, because deleting a missing element would fail. Nothing is changed if the rules
        already work for longer, as during a re-exec.
        """
        if self._alive_for() <= for_s:
            self._elements.transact([*_removal(for_s), _addition(for_s)])

    def remove_alive(self) -> None:
        """Make the rescue rules inert at once. Raise OSError if the kernel refuses."""
        self._elements.transact(_removal(ALIVE_S))

    def stamps(self, family: Family) -> Stamps:
        """Return when a SYN was last sent to each endpoint, and when each last answered. Raise OSError if the kernel
        refuses, for example because the sets do not exist."""
        # The set of SYNs is read first. So an answer between the two readings counts, but a SYN does not.
        asked, asked_blur_s = self._times(f"asked{family.value}", family)
        answered, answered_blur_s = self._times(f"answered{family.value}", family)
        return Stamps(asked, answered, max(asked_blur_s, answered_blur_s))

    def close(self) -> None:
        """Close the sockets."""
        self._socket.close()
        self._elements.close()

    def _alive_for(self) -> float:
        """Return for how many more seconds the rescue rules work without a renewal."""
        self._sequence += 1
        body = nfgen(INET) + encode([(LIST_TABLE, TABLE_NAME), (LIST_SET, ALIVE.encode() + b"\0")])
        self._socket.send(frame(_GET, body, flags=NLM_F_DUMP, sequence=self._sequence))
        found = answers(self._socket, self._sequence, at_most=_BUFFER_BYTES)
        return min((s for it in found if it.kind == NEW for _, s in _elements(it.body)), default=0.0)

    def _times(self, name: str, family: Family) -> tuple[dict[Target, float], float]:
        """Return the endpoints in a set with their times, and the inexactness of the times in seconds."""
        self._sequence += 1
        body = nfgen(INET) + encode([(LIST_TABLE, TABLE_NAME), (LIST_SET, name.encode() + b"\0")])
        timed = _TimedSocket(self._socket)
        timed.send(frame(_GET, body, flags=NLM_F_DUMP, sequence=self._sequence))
        times: dict[Target, float] = {}
        for message in answers(timed, self._sequence, at_most=_BUFFER_BYTES):
            if message.kind == NEW:
                for key, expires_s in _elements(message.body):
                    times[self._target(key, family)] = timed.counted_at - STAMP_S + expires_s
        return times, timed.blur_s

    def _target(self, key: bytes, family: Family) -> Target:
        found = self._targets.get(key)
        if found is None:
            if len(self._targets) > 1 << 16:
                self._targets.clear()
            size = _ADDRESS_BYTES[family]
            inet = socket.AF_INET if size == 4 else socket.AF_INET6
            found = Target(Address(socket.inet_ntop(inet, key[:size])), int.from_bytes(key[size : size + 2], "big"))
            self._targets[key] = found
        return found


def _addition(for_s: float) -> Batch:
    return Batch(ALIVE, True, [_element(bytes([number]), for_s) for number in _NUMBERS.values()])


def _removal(for_s: float) -> list[Batch]:
    """Return the batches that delete the element. It is added first, because deleting a missing element would fail."""
    return [_addition(for_s), Batch(ALIVE, False, [_element(bytes([number])) for number in _NUMBERS.values()])]


def _element(key: bytes, timeout_s: float | None = None) -> bytes:
    parts = [(_KEY | NESTED, encode([(_VALUE, key)]))]
    if timeout_s is not None:
        parts.append((_TIMEOUT, struct.pack(">Q", round(timeout_s * 1000))))
    return encode(parts)


def _elements(body: bytes) -> Iterator[tuple[bytes, float]]:
    """Yield the elements in an answer, each with the seconds until it expires."""
    for kind, value in attributes(body[4:]):
        if kind & ~NESTED != LIST_ELEMENTS:
            continue
        if (alike := _alike(value)) is not None:
            yield from alike
            continue
        for _, element in attributes(value):
            key, expires_ms = b"", 0
            for part, data in attributes(element):
                if part & ~NESTED == _KEY:
                    key = data[4:]  # Skip the header of the nested attribute NFTA_DATA_VALUE.
                elif part == _EXPIRATION:
                    expires_ms = int.from_bytes(data, "big")
            if key:
                yield key, expires_ms / 1000


def _alike(elements: bytes) -> list[tuple[bytes, float]] | None:
    """Return the result of `_elements`, computed faster, for elements that consist only of a key and an expiry time,
    with keys of one length. Return None for other elements.

    Elements that rules add have this form, and there may be tens of thousands.
    """
    shape = _SHAPES.get(int.from_bytes(elements[:2], sys.byteorder))
    if shape is None or len(elements) % shape[0].size:
        return None
    layout, before, between = shape
    found = []
    for head, key, middle, expires_ms in layout.iter_unpack(elements):
        if head != before or middle != between:
            return None
        found.append((key, int.from_bytes(expires_ms, "big") / 1000))
    return found


def _shape(key_bytes: int) -> tuple[struct.Struct, bytes, bytes]:
    """Return the layout of an element with a key of this length, and the constant bytes before its key and between key
    and expiration."""
    header = ATTRIBUTE_HEADER
    value, expiration = header.size + key_bytes, header.size + 8
    before = header.pack(2 * header.size + value + expiration, 1) + header.pack(header.size + value, _KEY)
    return (
        struct.Struct(f"{3 * header.size}s{key_bytes}s{header.size}s8s"),
        before + header.pack(value, _VALUE),
        header.pack(expiration, _EXPIRATION),
    )


_SHAPES: Final = {shape[0].size: shape for shape in map(_shape, (8, 20))}
"""The layouts by the length of an element. Keys are an IPv4 or IPv6 address with a port, padded to four bytes."""
