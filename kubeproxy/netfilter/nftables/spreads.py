"""Spreads in our nftables table: endpoints in numbered slots, from which the rules draw one at random. Pure.

A destination with N targets has the slots 0 to N - 1 and jumps to the chain that draws one of N, so each target has
exactly the same share. When a target goes, a new one takes its slot, or else the last one does; other new ones come at
the end. So a change of one endpoint costs the same among thousands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest

from kubeproxy.model import Address, Destination, Target, family_of
from kubeproxy.netfilter.nftables.declarations import place
from kubeproxy.netfilter.nftables.elements import Entry, Replacement, destination_key
from kubeproxy.netfilter.nftables.rules import affinities, affinity_name, clients_map, comment_of, spread_chain
from kubeproxy.netfilter.ruleset import Spread


@dataclass(frozen=True, slots=True)
class Slots:
    """The slots of one destination, in the kernel or wanted there."""

    targets: tuple[Target, ...]
    comment: str
    spread: Spread | None = field(default=None, compare=False)
    """What they were made of; None: they were read from the kernel."""


NO_SLOTS = Slots((), "")


def arranged(have: Slots, wanted: Spread | None) -> Slots:
    """Return the slots for a spread, as few of them changed as possible."""
    if wanted is None or not wanted.targets:
        return NO_SLOTS
    if have.spread is wanted:
        return have
    return Slots(_kept(have.targets, wanted.targets), comment_of(wanted), wanted)


def _kept(have: tuple[Target, ...], wanted: tuple[Target, ...]) -> tuple[Target, ...]:
    if have == wanted:
        return have
    staying, known = frozenset(wanted), frozenset(have)
    newcomers = (target for target in wanted if target not in known)
    targets = list(dict.fromkeys(have))
    for number in range(len(targets) - 1, -1, -1):
        if targets[number] in staying:
            continue
        if (newcomer := next(newcomers, None)) is not None:
            targets[number] = newcomer
            continue
        last = targets.pop()
        if number < len(targets):
            targets[number] = last
    targets += newcomers
    return wanted if tuple(targets) == wanted else tuple(targets)


def arrange(have: Mapping[Destination, Slots], wanted: Mapping[Destination, Spread]) -> dict[Destination, Slots]:
    """Return the slots of all destinations that have any."""
    slots = ((each, arranged(have.get(each, NO_SLOTS), spread)) for each, spread in wanted.items())
    return {each: found for each, found in slots if found.targets}


def chains_of(slots: Mapping[Destination, Slots], *, own: bool) -> set[str]:
    """The chains that draw slots, and those for one slot more and one less: so a rolling change of endpoints finds its
    chains, which only the program nft can make."""
    shapes = {
        (place(each, f"{each.protocol.lower()}_spread", own=own), len(found.targets)) for each, found in slots.items()
    }
    return {chain for name, count in shapes for chain in _chains_around(name, count)}


def chains_for(destination: Destination, slots: Slots, *, own: bool) -> list[str]:
    """Return the same for one destination."""
    return _chains_around(place(destination, f"{destination.protocol.lower()}_spread", own=own), len(slots.targets))


def _chains_around(name: str, count: int) -> list[str]:
    return [f"{name}_{number}" for number in (count, count + 1, count - 1) if number > 0]


def changed(
    have: Mapping[Destination, Slots], wanted: Mapping[Destination, Slots]
) -> Iterator[tuple[Destination, Slots, Slots]]:
    """Yield the destinations with other slots than before, and both."""
    for each, new in wanted.items():
        old = have.get(each, NO_SLOTS)
        if old is not new and old != new:
            yield each, old, new
    for each, old in have.items():
        if each not in wanted:
            yield each, old, NO_SLOTS


def slot_elements(changes: Iterable[tuple[Destination, Slots, Slots]], *, own: bool) -> Iterator[Replacement]:
    """Yield the slots that differ."""
    for destination, old, new in changes:
        name = place(destination, f"{destination.protocol.lower()}_slots", own=own)
        *address, _, port = destination_key(destination)
        for number, (before, now) in enumerate(zip_longest(old.targets, new.targets)):
            if before != now:
                where = (*address, port, number)
                yield Replacement(
                    name,
                    Entry(where, before) if before is not None else None,
                    Entry(where, now) if now is not None else None,
                )


def spread_elements(changes: Iterable[tuple[Destination, Slots, Slots]], *, own: bool) -> Iterator[Replacement]:
    """Yield the jumps that differ."""
    for destination, old, new in changes:
        before, now = (_spread_entry(destination, each, own=own) for each in (old, new))
        if before != now:
            yield Replacement(place(destination, "spreads", own=own), before, now)


def _spread_entry(destination: Destination, slots: Slots, *, own: bool) -> Entry | None:
    if not slots.targets:
        return None
    chain = spread_chain(destination, len(slots.targets), own=own)
    return Entry(destination_key(destination), chain, slots.comment)


def affinity_verdicts(spreads: Mapping[Destination, Spread], *, own: bool) -> Iterator[tuple[str, Destination, str]]:
    """The jumps of destinations with session affinity: map, destination and chain. Those without a target have none,
    so their clients come to the redirect."""
    for destination, spread in spreads.items():
        if spread.affinity_timeout_s is None or not spread.targets:
            continue
        name = affinity_name(spread, family_of(destination.address))
        yield place(destination, "affinities", own=own), destination, f"sticky{name}"
        yield place(destination, "learned"), destination, f"learn{name}"


def clients_of(spreads: Iterable[tuple[Destination, Spread]]) -> dict[str, frozenset[Address]]:
    """Return the maps of clients, and the addresses that these may lead to."""
    pairs = list(spreads)
    found: dict[str, set[Address]] = {
        clients_map(it.name, port): set() for it in affinities(pairs) for port in it.ports
    }
    for destination, spread in pairs:
        if spread.affinity_timeout_s is not None:
            name = affinity_name(spread, family_of(destination.address))
            for target in spread.targets:
                found[clients_map(name, target.port)].add(target.address)
    return {name: frozenset(addresses) for name, addresses in found.items()}
