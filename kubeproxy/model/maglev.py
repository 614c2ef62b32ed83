"""Finds a client's endpoint by a hash of the client and a lookup table of endpoints (Maglev).

The hash of the client's address, or of address and port, is a position in the table. All nodes and both data paths
compute the same result, so no state is needed. The hash is the kernel's jhash, as nftables computes it. The table is
built as in Maglev (Eisenbud et al., NSDI 2016): the endpoints take positions in turn, each in an order of its own. So
their shares are equal, and if an endpoint is removed, the others keep nearly all of their positions.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import cycle, islice

from kubeproxy.model.balancing import Balancing
from kubeproxy.model.frontend import Target

SIZES = ((40, 1021), (400, 4093), (1 << 16, 8191))
"""Pairs of a number of endpoints and the size of the table that is used up to this number. The sizes are primes, and at
least ten times the number of endpoints except for the largest Services."""
_MASK = 0xFFFFFFFF
_INITIAL = 0xDEADBEEF
"""JHASH_INITVAL of include/linux/jhash.h."""


def place_of(address: bytes, port: int | None, *, seed: int, size: int) -> int:
    """Return the position of a client in a table of `size` positions. `address` is in network byte order. `port` is
    None if only the address is hashed."""
    words = (_IPV4 if len(address) == 4 else _IPV6).unpack(address)
    if port is not None:
        # In nftables, a port is in the first half of a register, in network byte order.
        words = (*words, (port & 0xFF) << 8 | port >> 8)
    return (jhash(words, seed) * size) >> 32


_IPV4, _IPV6 = struct.Struct("<I"), struct.Struct("<4I")


def jhash(words: Sequence[int], seed: int) -> int:
    """Return the kernel's jhash (Bob Jenkins' lookup3) of 32-bit words, on a little-endian machine."""
    mask = _MASK
    a = b = c = (_INITIAL + 4 * len(words) + seed) & mask
    while len(words) > 3:
        a, b, c = (a + words[0]) & mask, (b + words[1]) & mask, (c + words[2]) & mask
        a = ((a - c) ^ (c << 4 | c >> 28)) & mask
        c = (c + b) & mask
        b = ((b - a) ^ (a << 6 | a >> 26)) & mask
        a = (a + c) & mask
        c = ((c - b) ^ (b << 8 | b >> 24)) & mask
        b = (b + a) & mask
        a = ((a - c) ^ (c << 16 | c >> 16)) & mask
        c = (c + b) & mask
        b = ((b - a) ^ (a << 19 | a >> 13)) & mask
        a = (a + c) & mask
        c = ((c - b) ^ (b << 4 | b >> 28)) & mask
        b = (b + a) & mask
        words = words[3:]
    a = (a + words[0]) & mask
    if len(words) > 1:
        b = (b + words[1]) & mask
        if len(words) > 2:
            c = (c + words[2]) & mask
    # The mask after the subtraction also drops bits that were shifted out.
    c = ((c ^ b) - (b << 14 | b >> 18)) & mask
    a = ((a ^ c) - (c << 11 | c >> 21)) & mask
    b = ((b ^ a) - (a << 25 | a >> 7)) & mask
    c = ((c ^ b) - (b << 16 | b >> 16)) & mask
    a = ((a ^ c) - (c << 4 | c >> 28)) & mask
    b = ((b ^ a) - (a << 14 | a >> 18)) & mask
    return ((c ^ b) - (b << 24 | b >> 8)) & mask


def table_of(endpoints: Sequence[Target], balancing: Balancing) -> tuple[Target, ...]:
    """Return the table: the endpoint at each position. It is empty if there are no endpoints, and does not depend on
    the order of `endpoints`."""
    if not endpoints:
        return ()
    ranked = sorted((target, balancing.weight_of(number)) for number, target in enumerate(endpoints))
    return _table(tuple(target for target, _ in ranked), tuple(weight for _, weight in ranked))


def size_for(endpoints: int) -> int:
    """Return the size of the table for this number of endpoints."""
    return next(size for most, size in SIZES if endpoints <= most) if endpoints else 0


@lru_cache(maxsize=64)
def _table(endpoints: tuple[Target, ...], weights: tuple[int, ...]) -> tuple[Target, ...]:
    size = size_for(len(endpoints))
    orders = [_order(target, size) for target in endpoints]
    places, steps = [place for place, _ in orders], [step for _, step in orders]
    table: list[Target | None] = [None] * size
    for number in islice(_turns(weights), size):
        place, step = places[number], steps[number]
        while table[place] is not None:
            place += step
            if place >= size:
                place -= size
        table[place], places[number] = endpoints[number], place
    return tuple(target for target in table if target is not None)


@lru_cache(maxsize=1 << 14)
def _order(target: Target, size: int) -> tuple[int, int]:
    """Return an endpoint's order of positions: the first position, and the step to the next position.

    The size is prime, so the order contains all positions. The result is cached, because a table is built again
    whenever one of its many endpoints changes.
    """
    name = zlib.crc32(str(target).encode())
    return jhash((name,), 1) % size, 1 + jhash((name,), 2) % (size - 1)


def _turns(weights: Sequence[int]) -> Iterator[int]:
    """Yield endlessly the index of the endpoint whose turn it is. In each round, an endpoint has as many turns as its
    weight."""
    if len(set(weights)) == 1:
        yield from cycle(range(len(weights)))
    heaviest = max(weights)
    credits = [heaviest - weight for weight in weights]
    while True:
        for number, weight in enumerate(weights):
            credits[number] += weight
            if credits[number] >= heaviest:
                credits[number] -= heaviest
                yield number


def usable_at(table: Sequence[Target], place: int, usable: Callable[[Target], bool]) -> Target | None:
    """Return the first usable endpoint from a position in the table on, or None if no endpoint is usable.

    So if a client's endpoint becomes unusable, the client gets another one, and returns to the first when it is usable
    again.
    """
    refused: set[Target] = set()
    for number in range(len(table)):
        target = table[(place + number) % len(table)]
        if target not in refused:
            if usable(target):
                return target
            refused.add(target)
    return None
