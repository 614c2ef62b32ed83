"""Changes of the spreads of some destinations in our nftables table. Pure.

Other endpoints of a Service are other elements. Neither finding them nor entering them in the table takes longer among
ten thousand Services than among ten.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kubeproxy.model import Destination, family_of
from kubeproxy.netfilter.nftables.declarations import SETS, place
from kubeproxy.netfilter.nftables.elements import Entry, Replacement, destination_key
from kubeproxy.netfilter.nftables.rules import Rule, spread_chain, spread_rules
from kubeproxy.netfilter.nftables.spreads import (
    NO_SLOTS,
    Slots,
    affinity_verdicts,
    arranged,
    chains_for,
    slot_elements,
    spread_elements,
)
from kubeproxy.netfilter.nftables.steps import chain_steps, comments_of
from kubeproxy.netfilter.nftables.transaction import Table, clients_in, verdict_elements
from kubeproxy.netfilter.ruleset import Rebalance, Spread


@dataclass(frozen=True, slots=True)
class Change:
    """The way from one table to another that differs in the spreads of some destinations alone. Its size, and the time
    to find and to enter it, do not depend on the size of the table."""

    chains: Mapping[str, tuple[Rule, ...]]
    """Chains that are to be there before the elements are changed."""
    elements: Sequence[Replacement]
    spreads: Sequence[tuple[Destination, Spread]]
    """The spreads of these destinations, own or not, that have targets now."""
    slots: Mapping[Destination, Slots]
    own_slots: Mapping[Destination, Slots]
    verdicts: Mapping[tuple[str, Destination], str | None]
    """Of the table after it, as far as it differs; `NO_SLOTS` or None: there are none."""

    @property
    def chain_commands(self) -> str:
        """The transaction that makes the chains; empty: they are there."""
        return "".join(chain_steps({}, self.chains))

    def enter(self, table: Table) -> None:
        """Make the change in the table that it was made for."""
        table.chains.update((name, comments_of(rules)) for name, rules in self.chains.items())
        for slots, mine in ((table.slots, self.slots), (table.own_slots, self.own_slots)):
            for destination, new in mine.items():
                if new.targets:
                    slots[destination] = new
                else:
                    slots.pop(destination, None)
        for place_of, chain in self.verdicts.items():
            if chain is not None:
                table.verdicts[place_of] = chain
            else:
                table.verdicts.pop(place_of, None)
        for name, gone, added in self.elements:
            if name in SETS:
                keys = table.sets[name]
                if not isinstance(keys, set):
                    keys = table.sets[name] = set(keys)  # as read from the kernel
                if gone is not None:
                    keys.discard(gone.key)
                if added is not None:
                    keys.add(added.key)


def rebalancing(have: Table, change: Rebalance) -> Change | None:
    """Return the transaction that makes this change; None if it takes more than elements and chains of slots.

    Redirects, masquerading and affinity timeouts stay as they are, and so do chains that are not needed any more and
    rules of affinity for ports that no endpoint has any more: `table.difference` removes them."""
    spreads, own_spreads = change.spreads, change.own_spreads
    given = [(each, it) for each, it in (*spreads.items(), *own_spreads.items()) if it is not None]
    if not clients_in(given) <= have.clients:
        return None
    chains: dict[str, tuple[Rule, ...]] = {}
    elements: list[Replacement] = []
    now: dict[bool, dict[Destination, Slots]] = {True: {}, False: {}}
    for wanted, known, own in ((own_spreads, have.own_slots, True), (spreads, have.slots, False)):
        changes = []
        for destination, spread in wanted.items():
            old = known.get(destination, NO_SLOTS)
            new = now[own][destination] = arranged(old, spread)
            if new.targets and spread_chain(destination, len(new.targets), own=own) not in have.chains:
                missing = (name for name in chains_for(destination, new, own=own) if name not in have.chains)
                chains.update((name, spread_rules(name, rescued=have.rescue)) for name in missing)
            if old != new:
                changes.append((destination, old, new))
        elements += slot_elements(changes, own=own)
        elements += spread_elements(changes, own=own)
    touched = {*spreads, *own_spreads}
    present: list[tuple[Destination, Spread]] = []
    verdicts: dict[tuple[str, Destination], str] = {}
    for known, own in ((have.own_slots, True), (have.slots, False)):  # others win, as in the whole table
        slots = ((each, now[own].get(each) or known.get(each, NO_SLOTS)) for each in touched)
        found = {each: it.spread for each, it in slots if it.targets and it.spread is not None}
        present += found.items()
        verdicts.update(((name, each), chain) for name, each, chain in affinity_verdicts(found, own=own))
    before = {it: chain for each in touched for it in _affinity_places(each) if (chain := have.verdicts.get(it))}
    elements += verdict_elements(before, verdicts)
    for destination in touched:
        name, element = place(destination, "translated"), destination_key(destination)
        stays = (
            spreads.get(destination)
            or own_spreads.get(destination)
            or now[False].get(destination, have.slots.get(destination, NO_SLOTS)).targets
            or now[True].get(destination, have.own_slots.get(destination, NO_SLOTS)).targets
        )
        if bool(stays) is not (element in have.sets[name]):
            entry = Entry(element)
            elements.append(Replacement(name, None, entry) if stays else Replacement(name, entry, None))
    for address, is_one in change.hairpins.items():
        name, pair = f"hairpins{family_of(address).value}", Entry((address, address))
        if is_one is not (pair.key in have.sets[name]):
            elements.append(Replacement(name, None, pair) if is_one else Replacement(name, pair, None))
    return Change(
        chains=chains,
        elements=elements,
        spreads=present,
        slots=now[False],
        own_slots=now[True],
        verdicts={**dict.fromkeys(before), **verdicts},
    )


def _affinity_places(destination: Destination) -> Iterator[tuple[str, Destination]]:
    yield place(destination, "affinities", own=True), destination
    yield place(destination, "affinities"), destination
    yield place(destination, "learned"), destination
