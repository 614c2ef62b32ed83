"""Elements of our table's maps and sets as values, in nft's syntax, and in the kernel's format.

Everything that concerns rules goes through the program nft, in its syntax. Changes of elements alone are sent by
`element_socket` in the kernel's format (linux/netfilter/nf_tables.h), without a program.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar

from kubeproxy.model import NODE_PORTS, Address, Destination, Family, Origin, Protocol, Target, Traffic
from kubeproxy.netfilter.netlink.messages import encode
from kubeproxy.netfilter.nftables.declarations import Kind

K = TypeVar("K")
V = TypeVar("V")

Element = tuple[str | int, ...]
"""The fields of a key. Addresses, ranges and protocols are text, and ports are numbers. A `ProxyPort` can be used as a
key."""


class Entry(NamedTuple):
    """An element of a map or set."""

    key: Element
    value: Target | int | str | None = None
    """The value of a map's element: an endpoint, a proxy port, or the name of the chain to jump to."""
    comment: str = ""

    @property
    def text(self) -> str:
        """Return the element in nft's syntax."""
        comment = f' comment "{self.comment}"' if self.comment else ""
        return f"{key_text(self.key)}{comment}{self._value_text}"

    @property
    def text_to_delete(self) -> str:
        """Return the element in nft's syntax for deleting it, with its key and value. nft 1.0.6 ignores the value, but
        newer versions compare it."""
        return f"{key_text(self.key)}{self._value_text}"

    @property
    def _value_text(self) -> str:
        match self.value:
            case None:
                return ""
            case Target(address=address, port=port):
                return f" : {address} . {port}"
            case str(chain):
                return f" : jump {chain}"
            case port:
                return f" : {port}"


class Replacement(NamedTuple):
    """An element of a map or set before and after a change. Both have the same key. None means that the element does
    not exist."""

    name: str
    old: Entry | None
    new: Entry | None


def replacement(name: str, destination: Destination, old: int | str | None, new: int | str | None) -> Replacement:
    """Return the replacement of a destination's value in a map. The value is a proxy port or the name of a chain."""
    key = destination_key(destination)
    return Replacement(name, Entry(key, old) if old is not None else None, Entry(key, new) if new is not None else None)


def changed(have: Mapping[K, V], wanted: Mapping[K, V], missing: V) -> Iterator[tuple[K, V, V]]:
    """Yield each key whose value has changed, with the old and the new value. `missing` is the value of a key that does
    not exist."""
    if have is wanted:
        return
    for key, new in wanted.items():
        old = have.get(key, missing)
        if old is not new and old != new:
            yield key, old, new
    for key, old in have.items():
        if key not in wanted:
            yield key, old, missing


def by_origin(item: tuple[Traffic, *tuple[object, ...]]) -> Origin:
    """Return the origin of an item whose first field is `Traffic`, as the key to sort items in the order of the
    rules."""
    return item[0].origin


def destination_key(destination: Destination) -> Element:
    """Return the key of a destination. The key of a node port has no address."""
    return destination[1:] if destination.address in _ANY_ADDRESS else destination


_ANY_ADDRESS: Final = frozenset(NODE_PORTS.values())


def key_text(key: Element) -> str:
    """Return a key in nft's syntax."""
    # Only protocols have capital letters.
    return " . ".join(map(str, key)).lower()


# The kernel's format.

_KEY, _DATA, _USER_DATA = 1, 2, 6  # NFTA_SET_ELEM_*
_VALUE, _VERDICT = 1, 2  # NFTA_DATA_*
_CODE, _CHAIN = 1, 2  # NFTA_VERDICT_*
_NESTED: Final = 0x8000
_JUMP: Final = struct.pack(">i", -3)  # NFT_JUMP
_COMMENT: Final = 0  # NFTNL_UDATA_SET_ELEM_COMMENT of libnftnl: type, length and text with its end
_NUMBERS: Final = {Protocol.TCP: socket.IPPROTO_TCP, Protocol.UDP: socket.IPPROTO_UDP}


def encoded(kind: Kind, entry: Entry) -> bytes:
    """Return an element in the kernel's format, to add it."""
    key, value, comment = entry
    data = encoded_key(kind, key)
    if isinstance(value, Target):
        data += _of_value(_DATA, packed_target(value))
    elif isinstance(value, str):
        verdict = encode([(_CODE, _JUMP), (_CHAIN, value.encode() + b"\0")])
        data += encode([(_DATA | _NESTED, encode([(_VERDICT | _NESTED, verdict)]))])
    elif value is not None:
        data += encode([(_DATA | _NESTED, encode([(_VALUE, struct.pack(">H", value))]))])
    if comment:
        text = comment.encode() + b"\0"
        data += encode([(_USER_DATA, bytes((_COMMENT, len(text))) + text)])
    return data


def encoded_key(kind: Kind, key: Element) -> bytes:
    """Return an element in the kernel's format, to delete it. The kernel finds it by its key."""
    return _of_value(_KEY, b"".join([_PACKED[name](field) for name, field in zip(kind.key, key, strict=True)]))


def _of_value(attribute: int, value: bytes) -> bytes:
    """Return an attribute whose value is a multiple of four bytes. (`encode` would be too slow for a hundred thousand
    of them.)"""
    return _TWO_HEADERS.pack(len(value) + 8, attribute | _NESTED, len(value) + 4, _VALUE) + value


@lru_cache(maxsize=256)
def _packed_address(address: str) -> bytes:
    return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)


_TWO_HEADERS: Final = struct.Struct("=HHHH")
_PORT: Final = struct.Struct(">Hxx")
TARGET_BYTES: Final = {Family.IPV4: 4 + _PORT.size, Family.IPV6: 16 + _PORT.size}
"""The size of an endpoint in the kernel's format, by family."""
SLOT_NUMBER: Final = struct.Struct("=I")
"""The last field of a slot's key, in host byte order, because the rules generate it so."""
_PACKED: Final[Mapping[str, Callable[[Any], bytes]]] = {
    "inet_service": _PORT.pack,
    "inet_proto": lambda protocol: bytes((_NUMBERS[protocol], 0, 0, 0)),
    "integer": SLOT_NUMBER.pack,
    "ipv4_addr": _packed_address,
    "ipv6_addr": _packed_address,
}
"""Encoders of a key's fields. Each field is padded to a multiple of four bytes."""


class PackedTargets:
    """Endpoints in the kernel's format. A quarter of a million take 2 MB in this format, and 32 MB as objects."""

    __slots__ = ("_packed", "_size")

    def __init__(self, packed: bytes, family: Family) -> None:
        self._packed = packed
        self._size = TARGET_BYTES[family]

    def __len__(self) -> int:
        return len(self._packed) // self._size

    def __iter__(self) -> Iterator[Target]:
        for at in range(0, len(self._packed), self._size):
            address = unpacked_address(self._packed[at : at + self._size - _PORT.size])
            (port,) = _PORT.unpack_from(self._packed, at + self._size - _PORT.size)
            yield Target(Address(address), port)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PackedTargets):
            return self._packed == other._packed
        return isinstance(other, tuple) and self._packed == b"".join(map(packed_target, other))

    __hash__ = None  # type: ignore[assignment]


def packed_target(target: Target) -> bytes:
    """Return an endpoint in the kernel's format."""
    return _packed_address(target.address) + _PORT.pack(target.port)


def unpacked_address(packed: bytes) -> str:
    """Return an address in the model's canonical form. (libc writes the last part of some IPv6 addresses like an IPv4
    address.)"""
    if len(packed) == 4:
        return socket.inet_ntop(socket.AF_INET, packed)
    found = socket.inet_ntop(socket.AF_INET6, packed)
    return str(ipaddress.ip_address(found)) if "." in found else found


class Batch(NamedTuple):
    """Elements to delete from, or to add to, one map or set."""

    name: str
    adds: bool
    elements: list[bytes]


def batches(kinds: Mapping[str, Kind], replacements: Iterable[Replacement]) -> list[Batch]:
    """Return replacements in the kernel's format, grouped by map and set, deletions first."""
    deleted: dict[str, list[bytes]] = {}
    added: dict[str, list[bytes]] = {}
    for name, old, new in replacements:
        if old is not None:
            deleted.setdefault(name, []).append(encoded_key(kinds[name], old.key))
        if new is not None:
            added.setdefault(name, []).append(encoded(kinds[name], new))
    return [
        *(Batch(name, False, elements) for name, elements in deleted.items()),
        *(Batch(name, True, elements) for name, elements in added.items()),
    ]
