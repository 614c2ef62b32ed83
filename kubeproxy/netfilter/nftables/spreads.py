"""Spreads in our nftables table: endpoints in numbered slots, from which the rules draw one at random. Pure.

A destination with N targets has the slots 0 to N - 1 and jumps to the chain that draws one of N, so each target has
exactly the same share. When a target goes, a new one takes its slot, or else the last one does; other new ones come at
the end. So a change of one endpoint costs the same among thousands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest

from kubeproxy.model import Target, Traffic
from kubeproxy.netfilter.nftables.declarations import place
from kubeproxy.netfilter.nftables.elements import Entry, Replacement, destination_key
from kubeproxy.netfilter.nftables.rules import comment_of, spread_chain
from kubeproxy.netfilter.ruleset import Spread


@dataclass(frozen=True, slots=True)
class Slots:
    """The slots for the traffic to one destination, in the kernel or wanted there."""

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


def arrange(have: Mapping[Traffic, Slots], wanted: Mapping[Traffic, Spread]) -> dict[Traffic, Slots]:
    """Return the slots of all traffic that has any."""
    slots = ((traffic, arranged(have.get(traffic, NO_SLOTS), spread)) for traffic, spread in wanted.items())
    return {traffic: some for traffic, some in slots if some.targets}


def chains_of(slots: Mapping[Traffic, Slots]) -> set[str]:
    """Return the chains that draw slots, and those for one slot more and one less.

    So a rolling change of endpoints finds its chains, which only the program nft can make."""
    shapes = {
        (place(to, f"{to.protocol.lower()}_spread", origin), len(some.targets)) for (to, origin), some in slots.items()
    }
    return {chain for name, count in shapes for chain in _chains_around(name, count)}


def chains_for(traffic: Traffic, slots: Slots) -> list[str]:
    """Return the same for the slots of one traffic."""
    to, origin = traffic
    return _chains_around(place(to, f"{to.protocol.lower()}_spread", origin), len(slots.targets))


def _chains_around(name: str, count: int) -> list[str]:
    return [f"{name}_{number}" for number in (count, count + 1, count - 1) if number > 0]


SlotChange = tuple[Traffic, Slots, Slots]
"""Traffic, its slots before, and its slots after."""


def slot_elements(changes: Iterable[SlotChange]) -> Iterator[Replacement]:
    """Yield the slots that differ."""
    for (destination, origin), old, new in changes:
        name = place(destination, f"{destination.protocol.lower()}_slots", origin)
        *address, _, port = destination_key(destination)
        for number, (before, now) in enumerate(zip_longest(old.targets, new.targets)):
            if before != now:
                where = (*address, port, number)
                yield Replacement(
                    name,
                    Entry(where, before) if before is not None else None,
                    Entry(where, now) if now is not None else None,
                )


def spread_elements(changes: Iterable[SlotChange]) -> Iterator[Replacement]:
    """Yield the jumps that differ."""
    for traffic, old, new in changes:
        before, now = (_spread_entry(traffic, slots) for slots in (old, new))
        if before != now:
            yield Replacement(place(traffic.destination, "spreads", traffic.origin), before, now)


def _spread_entry(traffic: Traffic, slots: Slots) -> Entry | None:
    if not slots.targets:
        return None
    return Entry(destination_key(traffic.destination), spread_chain(traffic, len(slots.targets)), slots.comment)
