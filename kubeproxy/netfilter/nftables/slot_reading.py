"""Reads the slots of a destination through netlink. The messages are those of nf_tables (linux/netfilter/nf_tables.h).

Slots are asked for by their keys, which the jumps of their destinations tell. A dump takes time in proportion to the
square of their number, because the kernel begins each message of a dump by walking over all elements before it: for
250,000 slots it took 2.2 s of CPU time, and the questions take 1 s.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence
from typing import Final

from kubeproxy.netfilter.netlink.messages import (
    ATTRIBUTE_HEADER,
    HEADER,
    NLM_F_ACK,
    NLMSG_ERROR,
    encode,
    frame,
    parse,
)
from kubeproxy.netfilter.nftables.declarations import SLOTS
from kubeproxy.netfilter.nftables.element_socket import (
    INET,
    LIST_ELEMENT,
    LIST_ELEMENTS,
    LIST_SET,
    LIST_TABLE,
    NESTED,
    SUBSYSTEM,
    TABLE_NAME,
    nfgen,
)
from kubeproxy.netfilter.nftables.elements import SLOT_NUMBER, TARGET_BYTES, Element, PackedTargets, encoded_key

_GET_ELEMENT: Final = SUBSYSTEM | 13  # NFT_MSG_GETSETELEM
_AT_ONCE: Final = 100
"""The number of slots in one request. The answers take some 700 bytes each in the socket's buffer, which has room for
200 kB."""
_ATTRIBUTES: Final = HEADER.size + 4
"""Where the attributes of a message begin: after the headers of netlink and of nf_tables."""
_HEADERS: Final = 2 * ATTRIBUTE_HEADER.size
"""The size of the headers before an element, before its key, and before its value."""
_ANSWER_BYTES: Final = 1 << 10
"""More than an element with its headers has."""


def slots_at(netlink: socket.socket, name: str, where: Element, count: int) -> PackedTargets:
    """Return the endpoints in the first `count` slots of a destination in a map. Raise ValueError if one of the slots
    is missing or has a foreign form, and OSError if the kernel refuses."""
    kind = SLOTS[name]
    size = TARGET_BYTES[kind.family]
    first = encoded_key(kind, (*where, 0))[: -SLOT_NUMBER.size]
    targets: list[bytes] = []
    for begin in range(0, count, _AT_ONCE):
        keys = [first + SLOT_NUMBER.pack(number) for number in range(begin, min(begin + _AT_ONCE, count))]
        found = _elements_at(netlink, name, keys)
        # A map's element has a value. So its length shows that it has nothing but the key and the value.
        if [element[_HEADERS : -size - _HEADERS] for element in found] != [key[_HEADERS:] for key in keys]:
            raise ValueError(f"slots of {where} in {name}")
        targets += [element[-size:] for element in found]
    return PackedTargets(b"".join(targets), kind.family)


def _elements_at(netlink: socket.socket, name: str, keys: Sequence[bytes]) -> list[bytes]:
    """Return the elements with these keys, in the same order. Raise ValueError if one is missing."""
    of_set = encode([(LIST_TABLE, TABLE_NAME), (LIST_SET, name.encode() + b"\0")])
    elements = encode([(LIST_ELEMENT | NESTED, key) for key in keys])
    body = nfgen(INET) + of_set + encode([(LIST_ELEMENTS | NESTED, elements)])
    netlink.send(frame(_GET_ELEMENT, body, flags=NLM_F_ACK, sequence=0))
    begin, found = _ATTRIBUTES + len(of_set) + _HEADERS, list[bytes]()
    # All answers are in the socket's buffer before `send` returns. Waiting for each with a time limit would take one
    # system call more.
    limit_s = netlink.gettimeout()
    netlink.settimeout(0.0)
    try:
        while (answer := netlink.recv(_ANSWER_BYTES)).startswith(of_set, _ATTRIBUTES):
            found.append(answer[begin:])
    finally:
        netlink.settimeout(limit_s)
    for message in parse(answer):
        if message.kind != NLMSG_ERROR or message.error == errno.ENOENT:
            raise ValueError(f"an element of {name} is missing")
        if message.error:
            raise OSError(message.error, os.strerror(message.error))
    return found
