"""Our nftables table as a value: the wanted one, the one in the kernel, and the transaction between them.

Changes in the cluster change only elements, so the cost of a packet and of a change does not grow with the number of
Services. ``docs/netfilter.md`` shows the table.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from itertools import chain as joined
from itertools import groupby
from typing import NamedTuple

from kubeproxy.model import Address, Destination, Family, Traffic, family_of
from kubeproxy.netfilter.cidr import disjoint, of_family
from kubeproxy.netfilter.nftables import rescue
from kubeproxy.netfilter.nftables.affinity import affinity_chains, affinity_verdicts, clients_in
from kubeproxy.netfilter.nftables.declarations import (
    DIVERT,
    DIVERT_HOOK,
    IP,
    PAUSE_SETS,
    REDIRECTS,
    SETS,
    TABLE,
    chain_creation,
    creation,
    place,
)
from kubeproxy.netfilter.nftables.dynamic_chains import draws_slots, is_dynamic, spread_rules
from kubeproxy.netfilter.nftables.elements import (
    Element,
    Replacement,
    by_origin,
    changed,
    destination_key,
    key_text,
    replacement,
)
from kubeproxy.netfilter.nftables.rules import Rule, masquerade_chain, rules_of
from kubeproxy.netfilter.nftables.spreads import (
    NO_SLOTS,
    Slots,
    arrange,
    chains_of,
    slot_elements,
    spread_elements,
)
from kubeproxy.netfilter.nftables.transaction_steps import (
    DELETION,
    appending,
    chain_steps,
    comments_of,
    element_steps,
    flushing,
    map_steps,
    set_steps,
    text_steps,
)
from kubeproxy.netfilter.ruleset import Reach, RuleSet

Verdicts = Mapping[tuple[str, Destination], str]
"""The maps and destinations, with the chains to which these jump."""


@dataclass(frozen=True, slots=True)
class Table:
    """The contents of the table, wanted or in the kernel. Only `Change.enter` changes one."""

    chains: dict[str, tuple[str, ...]]
    """The comments of each chain's rules, in order."""
    redirects: Mapping[Traffic, int]
    sets: dict[str, Set[Element]]
    slots: dict[Traffic, Slots] = field(default_factory=dict)
    verdicts: dict[tuple[str, Destination], str] = field(default_factory=dict)
    clients: frozenset[str] = frozenset()
    """The maps of clients. The kernel owns their elements."""
    kept: Mapping[str, frozenset[Address]] = field(default_factory=dict, compare=False)
    """The endpoint addresses that these maps had when they were read."""
    transparent: bool = False
    """Whether the chain for answers to clients' addresses exists."""
    rescue: bool = False
    """Whether the chains and sets for failed connections exist."""
    paused: bool = False
    """Whether there is a pause, even one that is over."""
    sound: bool = True
    """Whether maps, sets and chains are declared as in this version. Otherwise the table is made anew."""

    @classmethod
    def of(cls, wanted: RuleSet, *, after: Table | None = None) -> Table:
        """Return the table of a rule set. Slots that the table `after` already has stay where they are."""
        return _made_of(wanted, after if after is not None and after.sound else EMPTY)[0]


EMPTY = Table(chains={}, redirects={}, sets=dict.fromkeys(SETS, frozenset()), sound=False)


def _made_of(wanted: RuleSet, have: Table) -> tuple[Table, dict[str, tuple[Rule, ...]]]:
    """Return the table of a rule set, and the rules of its chains."""
    slots = arrange(have.slots, wanted.spreads)
    rules = _chains_of(wanted, slots)
    table = Table(
        chains={chain: comments_of(each) for chain, each in rules.items()},
        redirects=wanted.redirects,
        sets=_sets_of(wanted),
        slots=slots,
        verdicts=_verdicts_of(wanted),
        clients=clients_in(wanted.spreads),
        transparent=wanted.transparent,
        rescue=wanted.rescue is not None,
    )
    return table, rules


def _chains_of(wanted: RuleSet, slots: Mapping[Traffic, Slots]) -> dict[str, tuple[Rule, ...]]:
    drawing = sorted(chains_of(slots))
    rescued = wanted.rescue is not None
    return {
        **{name: spread_rules(name, rescued=rescued) for name in drawing},
        **affinity_chains(wanted.spreads, rescued=rescued, uplinks=wanted.uplinks),
        **rules_of(wanted),
    }


def _verdicts_of(wanted: RuleSet) -> dict[tuple[str, Destination], str]:
    verdicts = {
        (place(destination, "masquerades"), destination): masquerade_chain(kind, family_of(destination.address))
        for destination, kind in wanted.masquerades.items()
    }
    return verdicts | affinity_verdicts(wanted.spreads)


def _sets_of(wanted: RuleSet) -> dict[str, Set[Element]]:
    sets: dict[str, Set[Element]] = {
        "guarded": wanted.guarded,
        "unguarded": wanted.unguarded,
        "refused": wanted.refused,
        "dropped": wanted.dropped,
    }
    for family in Family:
        number = family.value
        sets[f"node_addresses{number}"] = frozenset((it,) for it in of_family(wanted.node_addresses, family))
        sets[f"internal_sources{number}"] = frozenset((it,) for it in disjoint(wanted.internal_sources, family))
        admitted = {each: it for each, it in wanted.admitted.items() if family_of(each.address) is family}
        sets[f"admitted{number}"] = frozenset((*each, it) for each, ranges in admitted.items() for it in ranges)
        sets[f"restricted{number}"] = frozenset(admitted)
        sets[f"hooks{number}"] = frozenset(it for it in wanted.hooks if family_of(it.address) is family)
        sets[f"hairpins{number}"] = {(it, it) for it in of_family(wanted.hairpins, family)}
    by_name: dict[str, set[Element]] = {}
    # This includes destinations whose endpoints are all ejected, because answers to earlier packets still come.
    for destination, _ in wanted.spreads:
        by_name.setdefault(place(destination, "translated"), set()).add(destination_key(destination))
    for (destination, origin), port in wanted.redirects.items() if wanted.refused else ():
        if (destination.protocol, port) in wanted.refused:
            by_name.setdefault(place(destination, "refusals", origin), set()).add(destination_key(destination))
    return {name: by_name.get(name, set()) for name in SETS} | sets


class Transition(NamedTuple):
    """The difference between two tables: the steps of a transaction, and the table after it."""

    steps: list[str]
    after: Table
    creation: str = ""
    """The commands that come before the slots, or empty if there are none."""
    slots: Iterable[Replacement] = ()
    """The slots that are to be added before the steps. No packet comes to them until then."""


def difference(have: Table | None, wanted: RuleSet) -> list[str]:
    """Return the steps of `transition`."""
    return transition(have, wanted).steps


def transition(have: Table | None, wanted: RuleSet, *, apart: int | None = None) -> Transition:
    """Return the transaction from one table to the other. It has no steps if they are equal.

    If there are at least `apart` first slots, they are kept apart from the steps. They are by far the most elements,
    and no packet comes to them before the steps.

    The steps are to be sent as one transaction. If that is too large for the kernel they can be sent one by one: guards
    come before the redirects to guarded ports, and an element is replaced within one step.
    """
    first = ""
    before = have
    if before is None or not before.sound:
        first = (DELETION if before is not None else "") + creation()
        before = EMPTY
    new, rules = _made_of(wanted, before)
    is_apart = (
        apart is not None
        and (before.sound or have is None)
        and not before.slots
        and sum(len(some.targets) for some in new.slots.values()) >= apart
    )
    additions, removals = _set_steps(before, new)
    steps = [
        *([first] if first else []),
        *_objects(before, new, wanted, rules),
        *additions,
        *element_steps(_redirect_elements(before.redirects, wanted.redirects)),
    ]
    if new.rescue and before.rescue and new.slots and (before.paused or not before.slots):
        # The first packets of all spreads are rescued, too.
        steps.append(rescue.revival(TABLE))
    slots: list[Iterator[Replacement]] = []
    for _, some in groupby(sorted(changed(before.slots, new.slots, NO_SLOTS), key=by_origin), key=by_origin):
        changes = list(some)
        if is_apart:
            slots.append(slot_elements(changes))
        else:
            steps += element_steps(slot_elements(changes))
        steps += element_steps(spread_elements(changes))
    steps += element_steps(verdict_elements(before.verdicts, new.verdicts))
    if before.paused:
        removals.append(flushing(PAUSE_SETS))
    steps += [*removals, *_obsolete(before, new, only_chains=not (steps or removals))]
    if is_apart and have is None:
        return Transition(steps[1:], new, first, joined.from_iterable(slots))
    return Transition(steps, new, slots=joined.from_iterable(slots))


def _objects(have: Table, new: Table, wanted: RuleSet, rules: Mapping[str, tuple[Rule, ...]]) -> Iterator[str]:
    """Yield the steps that make maps of clients and chains, and fill the chains that differ."""
    yield from map_steps("add", new.clients - have.clients)
    if new.transparent and not have.transparent:
        yield chain_creation(DIVERT, DIVERT_HOOK) + "\n"
    if new.rescue and not have.rescue:
        yield rescue.creation(TABLE, wanted.tcp_timeouts)
    elif new.rescue and any(have.chains.get(name) != new.chains[name] for name in rescue.SET_TIMEOUTS):
        yield rescue.replacement(TABLE, wanted.tcp_timeouts)
    yield from chain_steps(have.chains, rules)


def _set_steps(have: Table, new: Table) -> tuple[list[str], list[str]]:
    """Return the steps that change sets before the redirects change, and those that come after the redirects."""
    early: list[str] = []
    late: list[str] = []
    for name, elements in new.sets.items():
        # A range cannot be added beside one that it overlaps.
        deletions = early if SETS[name].ranges else late
        deletions += set_steps("delete", name, have.sets[name] - elements)
        early += set_steps("add", name, elements - have.sets[name])
    return early, late


def _obsolete(have: Table, new: Table, *, only_chains: bool) -> Iterator[str]:
    """Yield the steps that delete what no rule needs any more.

    If only chains that draw slots are obsolete (`only_chains`), they are not deleted, because the next change may need
    them again. They stay in the new table.
    """
    # A chain with a longer name may jump to one whose name is the beginning of its own.
    chains = sorted((name for name in have.chains.keys() - new.chains.keys() if is_dynamic(name)), reverse=True)
    if only_chains:
        new.chains.update((name, have.chains[name]) for name in chains if draws_slots(name))
        chains = [name for name in chains if not draws_slots(name)]
    if chains:
        yield "".join(f"delete chain {TABLE} {name}\n" for name in chains)
    if have.transparent and not new.transparent:
        yield f"flush chain {TABLE} {DIVERT}\ndelete chain {TABLE} {DIVERT}\n"
    if have.rescue and not new.rescue:
        yield rescue.deletion(TABLE)
    yield from map_steps("delete", have.clients - new.clients)


def reach(have: Table, ours: RuleSet) -> Reach:
    """Return how many of the table's redirects belong to a rule set, and how many do not.

    The rules have the address to which they lead, and the elements have the port.
    """
    wanted = rules_of(ours)
    same = all(have.chains.get(chain) == comments_of(wanted[chain]) for chain in ("prerouting", "output"))
    mine = sum(ours.redirects.get(traffic) == port for traffic, port in have.redirects.items()) if same else 0
    return Reach(mine, len(have.redirects) - mine)


def pause(have: Table, *, for_s: float) -> list[str]:
    """Return the steps of the transaction that replaces redirects by drops of first packets for that time, so that
    clients retry. Return None if there are no redirects. The steps are as in `difference`.

    Everything that needs no process stays in force: spreads and all that belongs to them. When the time is up, the
    drops have no effect. A table of another version is made anew, without its spreads.
    """
    destinations = {destination for destination, _ in have.redirects}
    hooks = {name: sorted(have.sets.get(name, ())) for name in _HOOKS}
    if not destinations and not any(hooks.values()):
        return []
    if have.sound:
        steps, chains = [flushing(PAUSE_SETS)], have.chains
    else:
        steps, chains = [DELETION + creation()], {}
        for name in _NODE_ADDRESSES:
            steps += set_steps("add", name, have.sets[name])
        # With the last rule that needs connection tracking the kernel would end tracking, and every running connection.
        steps += chain_steps(chains, rules_of(RuleSet()))
    by_set: dict[str, list[Element]] = {}
    for each in sorted(destinations):
        by_set.setdefault(place(each, "paused"), []).append(destination_key(each))
    for name, elements in hooks.items():
        by_set.setdefault(name.replace("hooks", "paused"), []).extend(elements)
    for name, elements in by_set.items():
        texts = (f"{key_text(each)} timeout {math.ceil(for_s * 1000)}ms" for each in elements)
        steps += text_steps("add", name, texts)
    # The drops come after the spreads. A client of this node may then be led by the spread for all clients, whose
    # endpoints are a subset of its own.
    rules = tuple(_pause_rules())
    steps += [step for hook in ("prerouting", "output") for step in appending(chains, hook, rules)]
    return [*steps, flushing(_LEADING_TO_PROXY_PORTS)]


def _pause_rules() -> Iterator[Rule]:
    for family in Family:
        ip, number = IP[family], family.value
        why = f"{family} clients wait for the next proxy"
        yield Rule(f"{ip} daddr . meta l4proto . th dport @paused{number} drop", why)
        yield Rule(
            f"{ip} daddr @node_addresses{number} meta l4proto . th dport @paused_ports{number} drop",
            f"{why}, node ports",
        )


def _redirect_elements(have: Mapping[Traffic, int], want: Mapping[Traffic, int]) -> Iterator[Replacement]:
    for (destination, origin), old, new in sorted(changed(have, want, None), key=by_origin):
        yield replacement(place(destination, "redirects", origin), destination, old, new)


def verdict_elements(have: Verdicts, want: Verdicts) -> Iterator[Replacement]:
    """Yield the jumps that differ."""
    for (name, destination), old, new in changed(have, want, None):
        yield replacement(name, destination, old, new)


_HOOKS = frozenset(f"hooks{family.value}" for family in Family)
_LEADING_TO_PROXY_PORTS = frozenset((*REDIRECTS, *_HOOKS, "guarded", "unguarded", "refused", "dropped"))
"""The maps and sets that are only useful while a process listens at the proxy ports in them."""

_NODE_ADDRESSES = frozenset(f"node_addresses{family.value}" for family in Family)
