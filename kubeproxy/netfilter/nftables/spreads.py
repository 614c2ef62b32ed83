"""Spreads in our nftables table: endpoints in numbered slots, one of which the rules choose.

A destination with N targets has the slots 0 to N - 1, and jumps to the chain that draws one of N slots at random. So
each target has exactly the same share. A target with a larger share has several slots. When a target leaves, a new
target takes its slot; if there is none, the target in the last slot moves there. Further new targets are added at the
end. So the cost of changing one endpoint does not depend on their number. If a hash of the client chooses the slot, the
order of slots is that of the spread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest

from kubeproxy.model import Target, Traffic
from kubeproxy.netfilter.nftables.declarations import place
from kubeproxy.netfilter.nftables.dynamic_chains import comment_of, spread_chain
from kubeproxy.netfilter.nftables.elements import Entry, PackedTargets, Replacement, destination_key
from kubeproxy.netfilter.ruleset import ClientHash, Spread


@dataclass(frozen=True, slots=True)
class Slots:
    """The slots for the traffic to one destination, in the kernel or as wanted."""

    targets: tuple[Target, ...] | PackedTargets
    comment: str
    client_hash: ClientHash | None = None
    """The hash that selects a client's slot, or None if the slot is random."""
    spread: Spread | None = field(default=None, compare=False)
    """The spread from which the slots were made, or None if they were read from the kernel."""


NO_SLOTS = Slots((), "")


def arranged(have: Slots, wanted: Spread | None) -> Slots:
    """Return the slots for a spread, changing as few of the slots in `have` as possible."""
    if wanted is None or not wanted.targets:
        return NO_SLOTS
    if have.spread is wanted:
        return have
    numbered = wanted.slots or wanted.targets
    if wanted.client_hash is None:
        numbered = _kept(have.targets, numbered)
    return Slots(numbered, comment_of(wanted), wanted.client_hash, wanted)


def _kept(have: tuple[Target, ...] | PackedTargets, wanted: tuple[Target, ...]) -> tuple[Target, ...]:
    """Return the wanted targets, ordered so that as many as possible keep their slots."""
    if have == wanted:
        return wanted
    missing, surplus = Counter(wanted), list[int]()
    for number, target in enumerate(have):
        if missing[target]:
            missing[target] -= 1
        else:
            surplus.append(number)
    newcomers = list((+missing).elements())
    targets = list(have)
    while surplus and newcomers:
        targets[surplus.pop()] = newcomers.pop(0)
    for number in reversed(surplus):
        last = targets.pop()
        if number < len(targets):
            targets[number] = last
    known = {target: target for target in wanted}  # Equal targets that are other objects would take memory.
    kept = tuple([known[target] for target in (*targets, *newcomers)])
    return wanted if kept == wanted else kept


def arrange(have: Mapping[Traffic, Slots], wanted: Mapping[Traffic, Spread]) -> dict[Traffic, Slots]:
    """Return the wanted slots by traffic, with as few changes of `have` as possible. Traffic without targets is
    omitted."""
    slots = ((traffic, arranged(have.get(traffic, NO_SLOTS), spread)) for traffic, spread in wanted.items())
    return {traffic: some for traffic, some in slots if some.targets}


def chains_of(slots: Mapping[Traffic, Slots]) -> set[str]:
    """Return the names of the chains that choose among the present numbers of slots, and of those for one slot more and
    one less.

    These chains exist in advance, because only the program nft can create chains, and a rolling change of endpoints
    then needs only elements. (With a hash the number of slots mostly stays the same.)
    """
    shapes: dict[tuple[str, int, ClientHash | None], tuple[Traffic, Slots]] = {}
    for traffic, some in slots.items():
        name = place(traffic.destination, traffic.destination.protocol.lower(), traffic.origin)
        shapes[name, len(some.targets), some.client_hash] = traffic, some
    return {chain for traffic, some in shapes.values() for chain in chains_for(traffic, some)}


def chains_for(traffic: Traffic, slots: Slots) -> list[str]:
    """Return the names of these chains for one destination's traffic."""
    count = len(slots.targets)
    counts = (count, count + 1, count - 1) if slots.client_hash is None else (count,)
    return [spread_chain(traffic, number, slots.client_hash) for number in counts if number > 0]


SlotChange = tuple[Traffic, Slots, Slots]
"""Traffic, its slots before the change, and its slots after it."""


def slot_elements(changes: Iterable[SlotChange]) -> Iterator[Replacement]:
    """Yield the slots that change."""
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
    """Yield the jumps that a change of the number of slots alters."""
    for traffic, old, new in changes:
        before, now = (_spread_entry(traffic, slots) for slots in (old, new))
        if before != now:
            yield Replacement(place(traffic.destination, "spreads", traffic.origin), before, now)


def _spread_entry(traffic: Traffic, slots: Slots) -> Entry | None:
    if not slots.targets:
        return None
    chain = spread_chain(traffic, len(slots.targets), slots.client_hash)
    return Entry(destination_key(traffic.destination), chain, slots.comment)
