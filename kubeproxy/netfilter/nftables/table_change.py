"""Changes some destinations, proxy ports and pods in our nftables table.

Other endpoints of a Service, and other Services, are other elements. Finding these, and entering them in the table,
takes no longer among ten thousand Services than among ten.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

from kubeproxy.model import Destination, Origin, Protocol, Traffic, family_of
from kubeproxy.netfilter.nftables.affinity import affinity_verdicts, clients_in
from kubeproxy.netfilter.nftables.declarations import SETS, place
from kubeproxy.netfilter.nftables.dynamic_chains import spread_rules
from kubeproxy.netfilter.nftables.elements import (
    Element,
    Entry,
    Replacement,
    by_origin,
    destination_key,
    replacement,
)
from kubeproxy.netfilter.nftables.rules import Rule, masquerade_chain
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
from kubeproxy.netfilter.ruleset import ProxyPort, RuleChange, RuleSet, Spread

SERVICE_ELEMENTS = 10_000
"""The largest number of elements of a change of Services that goes without the program nft. With more of them one
transaction would hold up others, and their number matters more than that of all Services."""

_Key = TypeVar("_Key")
_Places = Mapping[tuple[str, Destination], str | None]
"""Maps and destinations, with the chains to which these jump, or None."""


@dataclass(frozen=True, slots=True)
class TableChange:
    """The difference between two tables that differ in few elements.

    Its size, and the time to find and to enter it, do not depend on the size of the table.
    """

    chains: Mapping[str, tuple[Rule, ...]]
    """The chains that must exist before the elements are changed."""
    elements: Sequence[Replacement]
    spreads: Mapping[Traffic, Spread]
    """The spreads of the same destinations that have targets after the change, for clients of every origin."""
    slots: Mapping[Traffic, Slots]
    """The changed slots, as they are after the change. Traffic that has no slots any more has `NO_SLOTS`."""
    verdicts: _Places
    """The changed jumps, as they are after the change, with None for one that is gone."""
    redirects: Mapping[Traffic, int | None]
    """The changed redirects, as they are after the change, with None for one that is gone."""

    @property
    def chain_commands(self) -> str:
        """Return the commands that create the chains, as one transaction. It is empty if the chains exist."""
        return "".join(chain_steps({}, self.chains))

    def enter(self, table: Table) -> None:
        """Make the change in the table that it was made for."""
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
        for traffic, port in self.redirects.items():
            if port is not None:
                table.redirects[traffic] = port
            else:
                table.redirects.pop(traffic, None)
        for name, gone, added in self.elements:
            if name in SETS:
                keys = table.sets[name]
                if not isinstance(keys, set):
                    keys = table.sets[name] = set(keys)
                if gone is not None:
                    keys.discard(gone.key)
                if added is not None:
                    keys.add(added.key)


def table_change(have: Table, rules: RuleSet, change: RuleChange) -> TableChange | None:
    """Return a change of the rules `rules`, whose table is `have`, as one of the table. Return None if it takes more
    than elements and chains of slots, or very many of these.

    Chains that are not needed any more stay, and so do rules of affinity for ports that no endpoint has any more:
    `transaction.difference` removes them.
    """
    if not clients_in({traffic: spread for traffic, spread in change.spreads.items() if spread}) <= have.clients:
        return None
    if any(_own_chains(now) != _own_chains(rules.spreads.get(traffic)) for traffic, now in change.spreads.items()):
        return None
    if not change.only_endpoints and not _takes_only_elements(have, rules, change):
        return None
    touched = dict.fromkeys(destination for destination, _ in change.spreads)
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
    now = {
        traffic: spread
        for traffic in (Traffic(destination, origin) for destination in touched for origin in Origin)
        if (spread := change.spreads[traffic] if traffic in change.spreads else rules.spreads.get(traffic))
    }
    present = {traffic: spread for traffic, spread in now.items() if spread.targets}
    sticky = affinity_verdicts(present)
    before = {it: chain for each in touched for it in _affinity_places(each) if (chain := have.verdicts.get(it))}
    masquerades = {
        (place(to, "masquerades"), to): masquerade_chain(kind, family_of(to.address)) if kind is not None else None
        for to, kind in change.masquerades.items()
    }
    verdicts: _Places = {**dict.fromkeys(before), **sticky, **masquerades}
    elements += verdict_elements(
        {it: chain for it in verdicts if (chain := have.verdicts.get(it))},
        {it: chain for it, chain in verdicts.items() if chain},
    )
    redirects = {it: port for it, port in change.redirects.items() if port != have.redirects.get(it)}
    for (destination, origin), port in redirects.items():
        old_port = have.redirects.get(Traffic(destination, origin))
        elements.append(replacement(place(destination, "redirects", origin), destination, old_port, port))
    # A spread may stay without a target, because answers to earlier packets still come.
    translated = {
        (place(each, "translated"), destination_key(each)): any(Traffic(each, origin) in now for origin in Origin)
        for each in touched
    }
    for (name, key), is_one in {**translated, **_members(rules, change)}.items():
        if is_one is not (key in have.sets[name]):
            entry = Entry(key)
            elements.append(Replacement(name, None, entry) if is_one else Replacement(name, entry, None))
    if not change.only_endpoints and len(elements) > SERVICE_ELEMENTS:
        return None
    return TableChange(
        chains=chains,
        elements=elements,
        spreads=present,
        slots=slots,
        verdicts=verdicts,
        redirects=redirects,
    )


def _takes_only_elements(have: Table, rules: RuleSet, change: RuleChange) -> bool:
    """Return whether a change of Services takes no rules, apart from chains that draw slots for as many endpoints.
    Source ranges are elements of another form.
    """
    content = have.content
    if content is None or change.allowed_sources:
        return False
    if any(change.spreads.values()) and not content.spreads:
        return False  # With the first spread come the rules of spreads.
    filled = {
        *(
            place(to, "redirects", origin)
            for (to, origin), port in change.redirects.items()
            if port and origin is Origin.NODE
        ),
        *(place(to, "masquerades") for to, kind in change.masquerades.items() if kind),
    }
    if not filled <= content.filled or _empties(rules, change):
        return False
    old = {it: rules.redirects[it] for it in change.redirects if it in rules.redirects}
    new = {it: port for it, port in change.redirects.items() if port is not None}
    return not (rules.unguarded_by(old) or rules.unguarded_by(new))


def _own_chains(spread: Spread | None) -> tuple[object, ...]:
    """Return what decides which chains a spread has of its own, for session affinity and for a hash of clients. Such
    chains come and go only with complete rules."""
    if spread is None:
        return None, None
    sticky = spread.affinity_timeout_s is not None
    return spread.client_hash, (spread.service_port, spread.scope, spread.affinity_timeout_s) if sticky else None


def _empties(rules: RuleSet, change: RuleChange) -> bool:
    """Return whether a change removes the last elements of a kind for which the table has rules."""

    def kinds(changed: Mapping[_Key, object], present: Mapping[_Key, object], kind: Callable[[_Key], str]) -> bool:
        emptied = {kind(it) for it in changed if it in present}
        # The search ends with the first elements that stay, so it is short where there are many.
        for it in itertools.chain(changed, present):
            if not emptied:
                return False
            if changed.get(it, present.get(it)) is not None:
                emptied.discard(kind(it))
        return bool(emptied)

    return (
        kinds(change.spreads, rules.spreads, lambda _: "spreads")
        or kinds(
            {it: port for it, port in change.redirects.items() if it.origin is Origin.NODE},
            rules.redirects,
            lambda it: place(it.destination, "redirects", it.origin),
        )
        or kinds(change.masquerades, rules.masquerades, lambda it: place(it, "masquerades"))
    )


def _members(rules: RuleSet, change: RuleChange) -> dict[tuple[str, Element], bool]:
    """Return elements of sets, and whether they are there after the change."""

    def refuses(port: ProxyPort) -> bool:
        return change.refused.get(port, port in rules.refused)

    members: dict[tuple[str, Element], bool] = {
        **{(f"hairpins{family_of(it).value}", (it, it)): is_one for it, is_one in change.hairpins.items()},
        **{(f"hooks{family_of(it.address).value}", it): is_one for it, is_one in change.hooks.items()},
        **{("refused", port): is_one for port, is_one in change.refused.items()},
        **{("dropped", port): is_one for port, is_one in change.dropped.items()},
    }
    for port in change.ports:
        is_ours = change.proxy_ports.get(port, port in rules.proxy_ports)
        is_dropped = change.dropped.get(port, port in rules.dropped)
        is_hook = bool(rules.hooks) and port == (Protocol.TCP, rules.hook_port)
        members["guarded", port] = is_ours or refuses(port) or is_dropped or is_hook
    for (destination, origin), number in change.redirects.items():
        name = place(destination, "refusals", origin)
        members[name, destination_key(destination)] = number is not None and refuses(
            ProxyPort(destination.protocol, number)
        )
    return members


def _affinity_places(destination: Destination) -> Iterator[tuple[str, Destination]]:
    for origin in Origin:
        yield place(destination, "affinities", origin), destination
    yield place(destination, "learned"), destination
