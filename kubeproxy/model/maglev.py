"""Finds the endpoint that a client has under a hash, with the kernel's hash and a table of endpoints.

Every node and both data paths compute the same, so nothing has to be remembered: the hash of the client's address, or
of address and port, is a place in a table of endpoints. The hash is the kernel's jhash, as nftables calls it. The table
is that of Maglev (Eisenbud et al., NSDI 2016): endpoints take places in turn, each in an order of its own. So their
shares are equal, and when one endpoint goes, nearly all others keep their places.
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
"""The number of places of a table, by the largest number of endpoints for which it is used. The numbers are primes, at
least ten times the number of endpoints except for the largest Services."""
_MASK = 0xFFFFFFFF
_INITIAL = 0xDEADBEEF
"""JHASH_INITVAL of include/linux/jhash.h."""


def place_of(address: bytes, port: int | None, *, seed: int, size: int) -> int:
    """Return the place of a client's address in network order, or of address and port, in a table of `size` places."""
    words = (_IPV4 if len(address) == 4 else _IPV6).unpack(address)
    if port is not None:
        # This is the order in which nftables has the two: a port fills the first half of a register.
        words = (*words, (port & 0xFF) << 8 | port >> 8)
    return (jhash(words, seed) * size) >> 32


_IPV4, _IPV6 = struct.Struct("<I"), struct.Struct("<4I")


def jhash(words: Sequence[int], seed: int) -> int:
    """Return the kernel's jhash of words of 32 bits in little-endian order (Bob Jenkins' lookup3)."""
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
    # Bits that are shifted beyond the 32nd are dropped with the difference.
    c = ((c ^ b) - (b << 14 | b >> 18)) & mask
    a = ((a ^ c) - (c << 11 | c >> 21)) & mask
    b = ((b ^ a) - (a << 25 | a >> 7)) & mask
    c = ((c ^ b) - (b << 16 | b >> 16)) & mask
    a = ((a ^ c) - (c << 4 | c >> 28)) & mask
    b = ((b ^ a) - (a << 14 | a >> 18)) & mask
    return ((c ^ b) - (b << 24 | b >> 8)) & mask


def table_of(endpoints: Sequence[Target], balancing: Balancing) -> tuple[Target, ...]:
    """Return the endpoint at each place, or nothing if there are no endpoints. The order of `endpoints` has no
    effect."""
    if not endpoints:
        return ()
    ranked = sorted((target, balancing.weight_of(number)) for number, target in enumerate(endpoints))
    return _table(tuple(target for target, _ in ranked), tuple(weight for _, weight in ranked))


def size_for(endpoints: int) -> int:
    """Return how many places a table of so many endpoints has."""
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
    """Return an endpoint's own order of places: the first place, and the step to the next ones.

    The size is prime, so the order contains all places. It is cached, because a table is built again when one of many
    endpoints has changed.
    """
    name = zlib.crc32(str(target).encode())
    return jhash((name,), 1) % size, 1 + jhash((name,), 2) % (size - 1)


def _turns(weights: Sequence[int]) -> Iterator[int]:
    """Yield without end whose turn it is. Each endpoint has as many turns as its weight, and all have theirs within the
    first round."""
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
    """Return the endpoint of a client at a place: the first usable one from that place on, or None if none is usable.

    So each client has an order of endpoints of its own, and returns to the first one when that is usable again.
    """
    refused: set[Target] = set()
    for number in range(len(table)):
        target = table[(place + number) % len(table)]
        if target not in refused:
            if usable(target):
                return target
            refused.add(target)
    return None
