"""Lists our table through netlink, without the program nft.

(For 125,000 slots `nft -j list map` took 4.6 s of CPU time and 346 MiB.) The messages are those of nf_tables
(linux/netfilter/nf_tables.h).

The kernel marks a dump as interrupted (NLM_F_DUMP_INTR) if anything in any table has changed during it, and the
rescue's sets change every second. In a dump of chains, rules or sets the kernel keeps its position as a count over the
tables of all programs. So after an interruption some of ours may be missing, and the dump is repeated. In a dump of
elements the position is a count within one set, and the mark is ignored: the large sets have only one writer, which
waits for the dump.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import repeat
from typing import Any, Final

from kubeproxy.model import Address, Protocol, Target
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
from kubeproxy.netfilter.nftables.declarations import SLOTS, VERDICT
from kubeproxy.netfilter.nftables.element_socket import (
    INET,
    LIST_ELEMENTS,
    LIST_SET,
    LIST_TABLE,
    NESTED,
    SUBSYSTEM,
    TABLE_NAME,
    nfgen,
)
from kubeproxy.netfilter.nftables.elements import Element, Entry, unpacked_address
from kubeproxy.netfilter.nftables.listing import Listed, Listing
from kubeproxy.netfilter.nftables.slot_reading import slots_at

_GET_CHAIN, _GET_RULE, _GET_SET, _GET_ELEMENT = 4, 7, 10, 13  # NFT_MSG_GET*
_CHAIN_TABLE, _CHAIN_NAME, _CHAIN_HOOK, _CHAIN_POLICY, _CHAIN_TYPE = 1, 3, 4, 5, 7  # NFTA_CHAIN_*
_HOOK_NUMBER, _HOOK_PRIORITY = 1, 2  # NFTA_HOOK_*
_RULE_TABLE, _RULE_CHAIN, _RULE_USER_DATA = 1, 2, 7  # NFTA_RULE_*
_SET_TABLE, _SET_NAME, _SET_FLAGS, _SET_KEY, _SET_DATA = 1, 2, 3, 4, 6  # NFTA_SET_*
_KEY, _DATA, _FLAGS, _USER_DATA, _EXPRESSION, _KEY_END = 1, 2, 3, 6, 7, 10  # NFTA_SET_ELEM_*
_VALUE, _VERDICT = 1, 2  # NFTA_DATA_*
_VERDICT_CHAIN: Final = 2  # NFTA_VERDICT_CHAIN
_EXPRESSION_DATA: Final = 2  # NFTA_EXPR_DATA
_COUNTER_PACKETS: Final = 2  # NFTA_COUNTER_PACKETS
_COMMENT: Final = 0  # The comment of a rule or an element: type, length and text with its end (libnftnl)
_INTERVAL_END: Final = 1  # NFT_SET_ELEM_INTERVAL_END
_ANONYMOUS: Final = 1  # NFT_SET_ANONYMOUS: the set is part of a rule
_FLAG_NAMES: Final = {2: "constant", 4: "interval", 16: "timeout"}
"""The flags that are compared in declarations. The flag for sets that rules fill is not included, as in
`Kind.listed`."""
_HOOKS: Final = {0: "prerouting", 1: "input", 2: "forward", 3: "output", 4: "postrouting"}
_POLICIES: Final = {0: "drop", 1: "accept"}
_TYPES: Final = {4: "integer", 7: "ipv4_addr", 8: "ipv6_addr", 12: "inet_proto", 13: "inet_service"}
"""The names of nft's type numbers. In the number of a concatenated key, each field has six bits."""
_TYPE_BITS: Final = 6
_VERDICT_TYPE: Final = 0xFFFFFF00  # NFT_DATA_VERDICT
_PROTOCOLS: Final = {
    socket.IPPROTO_TCP: Protocol.TCP,
    socket.IPPROTO_UDP: Protocol.UDP,
    socket.IPPROTO_SCTP: Protocol.SCTP,
}
_TIMEOUT_S: Final = 10.0
_DUMPS: Final = 3
"""How often a dump is attempted. The last result is used even if it was interrupted."""


class TableReader:
    """A netlink socket for one reading of our table. It belongs to the network namespace in which it was created. Any
    thread may use it."""

    def __init__(self) -> None:
        """Open the socket. Raise OSError if the kernel has no nf_tables."""
        self._socket = open_netlink(NETLINK_NETFILTER)
        self._socket.settimeout(_TIMEOUT_S)
        self._sequence = 0

    def read(self) -> Listing:
        """Return the table as it is in the kernel. Raise OSError if the kernel refuses, for example because there is no
        table."""
        sets = {}
        for name, declared in dict(self._declarations()).items():
            sets[name] = Listed(declared, ()) if name in SLOTS else self._listed(name, declared)
        comments: dict[str, list[str]] = {}
        for body in self._dump(_GET_RULE, [(_RULE_TABLE, TABLE_NAME)]):
            rule = dict(attributes(body))
            if rule.get(_RULE_TABLE) == TABLE_NAME:
                comments.setdefault(_text(rule[_RULE_CHAIN]), []).append(_comment(rule.get(_RULE_USER_DATA, b"")))
        texts = {name: tuple(texts) for name, texts in comments.items()}
        return Listing(sets, dict(self._chains()), texts, partial(slots_at, self._socket))

    def map(self, name: str) -> Listed:
        """Return one map or set. It is empty if it does not exist. Raise OSError if the kernel refuses."""
        declared = dict(self._declarations()).get(name)
        return self._listed(name, declared) if declared is not None else Listed((), ())

    def counts(self, name: str) -> Iterator[tuple[Element, int]]:
        """Yield the keys of a map with counters, each with the number of packets. Raise OSError if the kernel
        refuses."""
        if (declared := dict(self._declarations()).get(name)) is None:
            return
        fields = _fields(_names(declared[0]))
        for part in self._parts(name):
            for element in _elements(part):
                if _EXPRESSION in element:
                    counter = dict(attributes(dict(attributes(element[_EXPRESSION]))[_EXPRESSION_DATA]))
                    yield fields(_key(element, _KEY)), _big(counter[_COUNTER_PACKETS])

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _dump(self, kind: int, filtered: Iterable[tuple[int, bytes]]) -> list[bytes]:
        """Return the attributes of each object of a kind."""
        body = nfgen(INET) + encode(filtered)
        left = 1 if kind == _GET_ELEMENT else _DUMPS
        while True:
            left -= 1
            self._sequence += 1
            self._socket.send(frame(SUBSYSTEM | kind, body, flags=NLM_F_DUMP, sequence=self._sequence))
            with contextlib.suppress(InterruptedError):
                found = answers(self._socket, self._sequence, unchanged=left > 0)
                return [message.body[4:] for message in found]

    def _declarations(self) -> Iterator[tuple[str, tuple[object, ...]]]:
        """Yield the name of each map and set with its types, value and flags, in the form of `Kind.listed`."""
        for body in self._dump(_GET_SET, [(_SET_TABLE, TABLE_NAME)]):
            found = {kind & ~NESTED: value for kind, value in attributes(body)}
            flags = _big(found.get(_SET_FLAGS, b""))
            if found.get(_SET_TABLE) != TABLE_NAME or flags & _ANONYMOUS:
                continue
            held = [name for bit, name in _FLAG_NAMES.items() if flags & bit]
            key = _type_names(_big(found[_SET_KEY]))
            data = _big(found.get(_SET_DATA, b""))
            values = VERDICT if data == _VERDICT_TYPE else " . ".join(_type_names(data)) or None
            yield _text(found[_SET_NAME]), (key if len(key) > 1 else "".join(key), values, held or None)

    def _chains(self) -> Iterator[tuple[str, tuple[str, str, int, str] | None]]:
        for body in self._dump(_GET_CHAIN, ()):
            found = {kind & ~NESTED: value for kind, value in attributes(body)}
            if found.get(_CHAIN_TABLE) != TABLE_NAME:
                continue
            base = None
            if _CHAIN_HOOK in found:
                hook = dict(attributes(found[_CHAIN_HOOK]))
                base = (
                    _text(found[_CHAIN_TYPE]),
                    _HOOKS.get(_big(hook[_HOOK_NUMBER]), "another"),
                    int.from_bytes(hook[_HOOK_PRIORITY], "big", signed=True),
                    _POLICIES.get(_big(found[_CHAIN_POLICY]), "another"),
                )
            yield _text(found[_CHAIN_NAME]), base

    def _listed(self, name: str, declared: tuple[object, ...]) -> Listed:
        return Listed(declared, entries(declared, self._parts(name)))

    def _parts(self, name: str) -> list[bytes]:
        """Return the elements of a map or set in parts, one for each message of the kernel."""
        filtered = [(LIST_TABLE, TABLE_NAME), (LIST_SET, name.encode() + b"\0")]
        return [
            value
            for body in self._dump(_GET_ELEMENT, filtered)
            for kind, value in attributes(body)
            if kind & ~NESTED == LIST_ELEMENTS
        ]


def _type_names(number: int) -> list[str]:
    """Return nft's names of the types in a type number. A type that we do not use is returned as its number."""
    names: list[str] = []
    while number:
        of_one = number & (1 << _TYPE_BITS) - 1
        names.insert(0, _TYPES.get(of_one, str(of_one)))
        number >>= _TYPE_BITS
    return names


def _names(types: object) -> list[str]:
    return types if isinstance(types, list) else [str(types)]


def entries(declared: tuple[object, ...], parts: Iterable[bytes]) -> Iterator[Entry]:
    """Yield the decoded elements. Raise ValueError, KeyError or struct.error for an element of a foreign form."""
    types, values, flags = declared
    fields = _fields(_names(types))
    if isinstance(flags, list) and "interval" in flags:
        yield from _ranges(fields, parts)
        return
    value_of = _value(values)
    for part in parts:
        if (alike := _alike(part, _names(types), _value_names(values))) is not None:
            yield from alike
            continue
        for found in _elements(part):
            value: Target | int | str | None = None
            if _DATA in found:
                data_of = dict(attributes(found[_DATA]))
                if _VERDICT in data_of:
                    value = _text(dict(attributes(data_of[_VERDICT]))[_VERDICT_CHAIN])
                else:
                    value = value_of(data_of[_VALUE])
            yield Entry(fields(_key(found, _KEY)), value, _comment(found.get(_USER_DATA, b"")))


def _elements(part: bytes) -> Iterator[dict[int, bytes]]:
    """Yield the attributes of each element."""
    for _, element in attributes(part):
        yield dict(attributes(element))


def _key(element: dict[int, bytes], which: int) -> bytes:
    return element[which][ATTRIBUTE_HEADER.size :]  # Skip the header of the nested attribute NFTA_DATA_VALUE.


def _alike(part: bytes, key: list[str], value: list[str]) -> Iterator[Entry] | None:
    """Return an iterator over elements that consist of only a key and a value and have equal lengths, or None if the
    elements are not of this form.

    Most elements have this form, and there may be many thousands. They are decoded without a step in Python for each.
    """
    length = int.from_bytes(part[:2], sys.byteorder)
    if length <= _BEFORE or length % 4 or len(part) % length:
        return None
    key_end = _BEFORE + (int.from_bytes(part[8:10], sys.byteorder) - ATTRIBUTE_HEADER.size + 3 & ~3)
    has_value = key_end < length
    if has_value and [kind for kind, _ in attributes(part[key_end:length])] != [_DATA]:
        return None
    between = 2 * ATTRIBUTE_HEADER.size if has_value else 0
    if has_value and part[key_end + 6 : key_end + 8] != struct.pack("=H", _VALUE):
        return None
    layout = struct.Struct(f">{_BEFORE}s{_layout(key)}{between}s{_layout(value) if has_value else ''}")
    if layout.size != length or struct.calcsize(f">{_layout(key)}") != key_end - _BEFORE:
        raise ValueError(part[:length])
    before, *columns = zip(*layout.iter_unpack(part), strict=True)
    middle = columns.pop(len(key))
    if not (before.count(before[0]) == middle.count(middle[0]) == len(before)):
        return None
    decoded = [map(_FIELDS[name][1], column) for name, column in zip((*key, *value), columns, strict=False)]
    values: Iterable[Target | int | str | None] = repeat(None)
    if has_value:
        values = map(Target, *decoded[len(key) :]) if len(value) == 2 else decoded[-1]
    return map(Entry, zip(*decoded[: len(key)], strict=True), values)


_BEFORE: Final = 3 * ATTRIBUTE_HEADER.size
"""The number of bytes before the key in an element."""


def _layout(names: list[str]) -> str:
    """Return the `struct` format of fields that are padded to a multiple of four bytes."""
    return "".join([_FIELDS[name][0] for name in names])


def _fields(names: list[str]) -> Callable[[bytes], Element]:
    """Return a function that decodes keys with these fields."""
    layout, decoders = struct.Struct(f">{_layout(names)}"), [_FIELDS[name][1] for name in names]

    def fields(key: bytes) -> Element:
        raw = layout.unpack(key.ljust(len(key) + 3 & ~3, b"\0"))
        return tuple([decode(field) for decode, field in zip(decoders, raw, strict=True)])

    return fields


def _value_names(values: object) -> list[str]:
    """Return the fields of a map's values. There are none for a map of verdicts or for a set."""
    names = str(values).split(" . ")
    return names if set(names) <= _FIELDS.keys() else []


def _value(values: object) -> Callable[[bytes], Target | int | str]:
    """Return a function that decodes a map's values."""
    fields = _fields(_value_names(values))

    def value(data: bytes) -> Target | int | str:
        match fields(data):
            case (str(address), int(port)):
                return Target(Address(address), port)
            case (found,):
                return found
        raise ValueError(data)

    return value


def _ranges(fields: Callable[[bytes], Element], parts: Iterable[bytes]) -> Iterator[Entry]:
    """Yield the elements of a set whose key ends with an address range. The ranges are returned as prefixes."""
    ends: list[tuple[bytes, bool]] = []
    for part in parts:
        for element in _elements(part):
            first = _key(element, _KEY)
            if _KEY_END in element:  # In a concatenated key, the end of the range is in the same element.
                *others, low = fields(first)
                *same, high = fields(_key(element, _KEY_END))
                if others != same:
                    raise ValueError(element)
                yield Entry((*others, _prefix(str(low), str(high))))
            else:
                ends.append((first, not _big(element.get(_FLAGS, b"")) & _INTERVAL_END))
    begins: bytes | None = None
    last = b"\xff" * len(ends[0][0]) if ends else b""
    for key, is_begin in sorted(ends):  # If a range ends where the next one begins, the end is sorted first.
        if begins == key:
            raise ValueError(key)
        if begins is not None:
            high_number = _big(key) - 1
            yield Entry((_prefix(unpacked_address(begins), unpacked_address(high_number.to_bytes(len(key), "big"))),))
        begins = key if is_begin else None
    if begins is not None:
        yield Entry((_prefix(unpacked_address(begins), unpacked_address(last)),))


def _prefix(low: str, high: str) -> str:
    """Return a range in nft's syntax: a prefix or a single address. Raise ValueError if it is neither."""
    first, last = ipaddress.ip_address(low), ipaddress.ip_address(high)
    if first == last:
        return low
    (network,) = ipaddress.summarize_address_range(first, last)
    return str(network)


def _big(packed: bytes) -> int:
    return int.from_bytes(packed, "big")


_FIELDS: Final[dict[str, tuple[str, Callable[[Any], str | int]]]] = {
    "inet_service": ("H2x", int),
    "inet_proto": ("B3x", _PROTOCOLS.__getitem__),
    "integer": ("4s", partial(int.from_bytes, byteorder=sys.byteorder)),  # a slot number, in host byte order
    "ipv4_addr": ("4s", partial(socket.inet_ntop, socket.AF_INET)),
    "ipv6_addr": ("16s", unpacked_address),
}
"""For each type, the `struct` format of a field in a key or value, and the function that decodes the unpacked value."""


def _text(value: bytes) -> str:
    return value.rstrip(b"\0").decode(errors="replace")


def _comment(user_data: bytes) -> str:
    """Return the comment of a rule or element. The user data of ours contain nothing else."""
    return _text(user_data[2:]) if user_data[:1] == bytes([_COMMENT]) else ""
