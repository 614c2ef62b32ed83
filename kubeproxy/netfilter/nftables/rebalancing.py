"""Computes changes of the spreads of some destinations in our nftables table.

If a Service gets other endpoints, only elements change. The time to compute and to record such a change does not depend
on the number of Services.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from kubeproxy.model import Destination, Origin, Traffic, family_of
from kubeproxy.netfilter.nftables.affinity import affinity_verdicts, clients_in
from kubeproxy.netfilter.nftables.declarations import SETS, place
from kubeproxy.netfilter.nftables.dynamic_chains import spread_rules
from kubeproxy.netfilter.nftables.elements import Element, Entry, Replacement, by_origin, destination_key
from kubeproxy.netfilter.nftables.rules import Rule
from kubeproxy.netfilter.nftables.spreads import (
    NO_SLOTS,
    Slots,
    arranged,
    chains_for,
    slot_elements,
    spread_elements,
)
from kubeproxy.netfilter.nftables.transaction import Table, verdict_elements
from kubeproxy.netfilter.nftables.transaction_steps import chain_steps, comments_of
from kubeproxy.netfilter.ruleset import Rebalance, Spread


@dataclass(frozen=True, slots=True)
class Change:
    """The difference between two tables whose spreads differ for some destinations.

    Its size, and the time to compute and record it, do not depend on the size of the table.
    """

    chains: Mapping[str, tuple[Rule, ...]]
    """The chains that must exist before the elements are changed."""
    elements: Sequence[Replacement]
    spreads: Mapping[Traffic, Spread]
    """The spreads of these destinations that have targets after the change, for clients of every origin."""
    slots: Mapping[Traffic, Slots]
    """The changed slots after the change. Traffic that no longer has slots has `NO_SLOTS`."""
    verdicts: Mapping[tuple[str, Destination], str | None]
    """The changed jumps after the change. A jump that is removed has None."""

    @property
    def chain_commands(self) -> str:
        """Return the commands that create the chains in one transaction, or an empty text if the chains exist."""
        return "".join(chain_steps({}, self.chains))

    def enter(self, table: Table) -> None:
        """Record the change in the table for which it was computed."""
        table.chains.update((name, comments_of(rules)) for name, rules in self.chains.items())
        for traffic, slots in self.slots.items():
            if slots.targets:
                table.slots[traffic] = slots
            else:
                table.slots.pop(traffic, None)
        for place_of, chain in self.verdicts.items():
            if chain is not None:
                table.verdicts[place_of] = chain
            else:
                table.verdicts.pop(place_of, None)
        for name, gone, added in self.elements:
            if name in SETS:
                keys = table.sets[name]
                if not isinstance(keys, set):
                    keys = table.sets[name] = set(keys)  # A table read from the kernel has a frozenset.
                if gone is not None:
                    keys.discard(gone.key)
                if added is not None:
                    keys.add(added.key)


def rebalancing(have: Table, change: Rebalance) -> Change | None:
    """Return the change, or None if it needs more than elements and chains of slots.

    Redirects, masquerading and affinity timeouts do not change. Chains that are no longer needed stay, and so do rules
    of affinity for ports that no endpoint has any more; `table.difference` removes them.
    """
    if not clients_in({traffic: spread for traffic, spread in change.spreads.items() if spread}) <= have.clients:
        return None
    chains: dict[str, tuple[Rule, ...]] = {}
    elements: list[Replacement] = []
    slots: dict[Traffic, Slots] = {}
    for _, some in groupby(sorted(change.spreads.items(), key=by_origin), key=by_origin):
        changes = []
        for traffic, spread in some:
            old = have.slots.get(traffic, NO_SLOTS)
            new = slots[traffic] = arranged(old, spread)
            if new.targets and chains_for(traffic, new)[0] not in have.chains:
                missing = (name for name in chains_for(traffic, new) if name not in have.chains)
                chains.update((name, spread_rules(name, rescued=have.rescue)) for name in missing)
            if old != new:
                changes.append((traffic, old, new))
        elements += slot_elements(changes)
        elements += spread_elements(changes)
    touched = dict.fromkeys(destination for destination, _ in change.spreads)
    present: dict[Traffic, Spread] = {}
    translated: list[Replacement] = []
    for destination in touched:
        name, entry, stays = place(destination, "translated"), Entry(destination_key(destination)), False
        for traffic in (Traffic(destination, origin) for origin in Origin):
            now = slots.get(traffic) or have.slots.get(traffic, NO_SLOTS)
            if now.targets and now.spread is not None:
                present[traffic] = now.spread
            # A spread may remain without a target, because answers to earlier packets still arrive.
            stays = stays or bool(now.targets or change.spreads.get(traffic))
        if stays is not (entry.key in have.sets[name]):
            translated.append(Replacement(name, None, entry) if stays else Replacement(name, entry, None))
    verdicts = affinity_verdicts(present)
    before = {it: chain for each in touched for it in _affinity_places(each) if (chain := have.verdicts.get(it))}
    elements += [*verdict_elements(before, verdicts), *translated]
    members: dict[tuple[str, Element], bool] = {
        **{(f"hairpins{family_of(it).value}", (it, it)): is_one for it, is_one in change.hairpins.items()},
        **{(f"hooks{family_of(it.address).value}", it): is_one for it, is_one in change.hooks.items()},
    }
    for (name, key), is_one in members.items():
        if is_one is not (key in have.sets[name]):
            entry = Entry(key)
            elements.append(Replacement(name, None, entry) if is_one else Replacement(name, entry, None))
    return Change(
        chains=chains,
        elements=elements,
        spreads=present,
        slots=slots,
        verdicts={**dict.fromkeys(before), **verdicts},
    )


def _affinity_places(destination: Destination) -> Iterator[tuple[str, Destination]]:
    for origin in Origin:
        yield place(destination, "affinities", origin), destination
    yield place(destination, "learned"), destination
