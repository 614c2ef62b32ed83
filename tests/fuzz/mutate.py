"""Mutations that produce valid JSON, so that inputs get past the parser.

Flipped bytes rarely are JSON. So half of the mutations take a JSON value apart and exchange, double, drop or nest one
of its parts; the other half are the fuzzer's own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, MutableMapping, MutableSequence
from itertools import islice
from random import Random
from typing import Any, Final

ODD: Final[tuple[Any, ...]] = (
    *(None, True, False, "", " ", "None", "0", "-1", "1e400", "\0", "\u0000a", "\ufeff", "é", "a" * 64, "a" * 300),
    *(0, 1, -1, 80, 65535, 65536, 86401, 2**31, 2**63, 2**64, 10**30, 0.5, 1e308, -0.0),
    *("10.0.0.1", "10.0.0.01", "::1", "fe80::1%eth0", "::ffff:10.0.0.1", "255.255.255.255", "0.0.0.0", "10.0.0.0/8"),
    *("2001:db8::/129", "TCP", "UDP", "SCTP", "tcp", "ClientIP", "Local", "Cluster", "NodePort", "LoadBalancer"),
    *("IPv4", "IPv6", "FQDN", "ADDED", "DELETED", "BOOKMARK", "ERROR", "Service", "EndpointSlice", "ServiceList"),
    *([], {}, [[]], [None], {"": None}, {"kubernetes.io/service-name": "a"}, {"service.kubernetes.io/headless": ""}),
    *("30s", "1h", "-5s", "9999999999h", "1.5", "nan", "inf", ":0", "[::]:80", "localhost:80", "300-400", "0-0"),
)
"""Values at the limits of fields, and just beyond."""

MOST_PLACES: Final = 2000
"""The most parts of a value that is mutated again: one mutation may multiply its size by eight, soon to a gigabyte."""

MutateBytes = Callable[[bytes, int], bytes]


def mutate(data: bytes, longest: int, seed: int, mutate_bytes: MutateBytes) -> bytes:
    """One mutation of at most `longest` bytes; `mutate_bytes` is the fuzzer's own."""
    random = Random(seed)
    if random.random() < 0.5:
        return mutate_bytes(data, longest)
    start = data.find(b"{")
    if start < 0:
        return mutate_bytes(data, longest)
    head, *lines = data[start:].split(b"\n") if random.random() < 0.5 else [data[start:]]
    try:
        value = json.loads(head)
    except (ValueError, RecursionError):
        return mutate_bytes(data, longest)
    for _ in range(random.randint(1, 3)):
        _change(value, random)
    try:
        changed = json.dumps(value, ensure_ascii=random.random() < 0.5).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        return mutate_bytes(data, longest)
    lines.insert(random.randint(0, len(lines)), changed)
    return (data[:start] + b"\n".join(lines))[:longest]


def _change(value: Any, random: Random) -> None:
    # A part that was copied into several places occurs in each of them: without a bound that is exponential.
    places = list(islice(_places(value), MOST_PLACES + 1))
    if not 0 < len(places) <= MOST_PLACES:
        return
    container, key = random.choice(places)
    match random.randrange(6):
        case 0 | 1:
            container[key] = random.choice(ODD)
        case 2:
            other, other_key = random.choice(places)
            container[key] = _copy(other[other_key])
        case 3:
            del container[key]
        case 4:
            container[key] = [container[key]]
        case 5 if isinstance(container, MutableSequence):
            container.extend([_copy(container[key])] * random.choice((1, 2, 8)))
        case _:
            other, other_key = random.choice(places)
            container[key], other[other_key] = _copy(other[other_key]), _copy(container[key])


def _copy(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every part of a value, with its container and its key."""
    waiting = [value]
    while waiting:
        container = waiting.pop()
        keys: Any = ()
        if isinstance(container, MutableMapping):
            keys = list(container)
        elif isinstance(container, MutableSequence):
            keys = range(len(container))
        for key in keys:
            yield container, key
            waiting.append(container[key])
