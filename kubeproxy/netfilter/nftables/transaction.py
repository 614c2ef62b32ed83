"""Our nftables table as a value, wanted or in the kernel, and the transaction that turns one into the other.

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
from kubeproxy.netfilter.nftables.rules import Content, Rule, masquerade_chain, rules_of
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
"""The chain to which each destination jumps in each map of verdicts."""


@dataclass(frozen=True, slots=True)
class Table:
    """The contents of the table, wanted or in the kernel. Only `TableChange.enter` modifies a table."""

    chains: dict[str, tuple[str, ...]]
    """The comments of each chain's rules, in order."""
    redirects: dict[Traffic, int]
    sets: dict[str, Set[Element]]
    slots: dict[Traffic, Slots] = field(default_factory=dict)
    verdicts: dict[tuple[str, Destination], str] = field(default_factory=dict)
    clients: frozenset[str] = frozenset()
    """The names of the client maps. Their elements are managed by the kernel."""
    kept: Mapping[str, frozenset[Address]] = field(default_factory=dict, compare=False)
    """The addresses of endpoints that each client map contained when it was read."""
    transparent: bool = False
    """Whether the chain for answers to preserved client addresses exists."""
    rescue: bool = False
    """Whether the chains and sets of the rescue exist."""
    paused: bool = False
    """Whether a pause is in the table, even if its time is over."""
    content: Content | None = field(default=None, compare=False)
    """The properties of the rule set that decided which rules there are, or None if the table was read."""
    sound: bool = True
    """Whether maps, sets and chains are declared as in this version. Otherwise the table is created again."""

    @classmethod
    def of(cls, wanted: RuleSet, *, after: Table | None = None) -> Table:
        """Return the table for a rule set. Slots that exist in the table `after` keep their places."""
        return _made_of(wanted, after if after is not None and after.sound else EMPTY)[0]


EMPTY = Table(chains={}, redirects={}, sets=dict.fromkeys(SETS, frozenset()), sound=False)


def _made_of(wanted: RuleSet, have: Table) -> tuple[Table, dict[str, tuple[Rule, ...]]]:
    """Return the table for a rule set, and the rules of its chains."""
    slots, content = arrange(have.slots, wanted.spreads), Content.of(wanted)
    rules = _chains_of(wanted, slots, content)
    table = Table(
        chains={chain: comments_of(each) for chain, each in rules.items()},
        redirects=dict(wanted.redirects),
        sets=_sets_of(wanted),
        slots=slots,
        verdicts=_verdicts_of(wanted),
        clients=clients_in(wanted.spreads),
        transparent=wanted.transparent,
        rescue=wanted.rescue is not None,
        content=content,
    )
    return table, rules


def _chains_of(wanted: RuleSet, slots: Mapping[Traffic, Slots], content: Content) -> dict[str, tuple[Rule, ...]]:
    drawing = sorted(chains_of(slots))
    rescued = wanted.rescue is not None
    return {
        **{name: spread_rules(name, rescued=rescued) for name in drawing},
        **affinity_chains(wanted.spreads, rescued=rescued, uplinks=wanted.uplinks),
        **rules_of(wanted, content),
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
        "refused": set(wanted.refused),
        "dropped": set(wanted.dropped),
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
    # Destinations whose endpoints are all ejected are included, because answers to earlier packets still arrive.
    for destination, _ in wanted.spreads:
        by_name.setdefault(place(destination, "translated"), set()).add(destination_key(destination))
    for (destination, origin), port in wanted.redirects.items() if wanted.refused else ():
        if (destination.protocol, port) in wanted.refused:
            by_name.setdefault(place(destination, "refusals", origin), set()).add(destination_key(destination))
    return {name: by_name.get(name, set()) for name in SETS} | sets


class Transition(NamedTuple):
    """The difference between two tables: the steps of a transaction, and the resulting table."""

    steps: list[str]
    after: Table
    creation: str = ""
    """The commands to run before the slots are added, or empty if there are none."""
    slots: Iterable[Replacement] = ()
    """The slots to add before the steps. No packet uses these slots before the steps are in force."""


def difference(have: Table | None, wanted: RuleSet) -> list[str]:
    """Return only the steps of `transition`."""
    return transition(have, wanted).steps


def transition(have: Table | None, wanted: RuleSet, *, apart: int | None = None) -> Transition:
    """Return the transaction from one table to the other. It has no steps if the tables are equal.

    If at least `apart` slots are new, they are returned separately from the steps. They are by far the most elements,
    and no packet uses them before the steps are in force.

    The steps are meant to be sent as one transaction. If that is too large for the kernel, they can be sent one by one:
    guards come before redirects to guarded ports, and an element is always replaced within one step.
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
        # Enable the rescue in the same transaction, so that the first packets to the new slots can be rescued.
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
    """Yield the steps that create client maps and chains, and refill the chains whose rules differ."""
    yield from map_steps("add", new.clients - have.clients)
    if new.transparent and not have.transparent:
        yield chain_creation(DIVERT, DIVERT_HOOK) + "\n"
    if new.rescue and not have.rescue:
        yield rescue.creation(TABLE, wanted.tcp_timeouts)
    elif new.rescue and any(have.chains.get(name) != new.chains[name] for name in rescue.SET_TIMEOUTS):
        yield rescue.replacement(TABLE, wanted.tcp_timeouts)
    yield from chain_steps(have.chains, rules)


def _set_steps(have: Table, new: Table) -> tuple[list[str], list[str]]:
    """Return the steps that change sets before the redirects change, and those that do so afterwards."""
    early: list[str] = []
    late: list[str] = []
    for name, elements in new.sets.items():
        # Ranges are deleted early, because a range cannot be added while it overlaps an existing one.
        deletions = early if SETS[name].ranges else late
        deletions += set_steps("delete", name, have.sets[name] - elements)
        early += set_steps("add", name, elements - have.sets[name])
    return early, late


def _obsolete(have: Table, new: Table, *, only_chains: bool) -> Iterator[str]:
    """Yield the steps that delete what no rule needs any more.

    If `only_chains` is true, only chains that draw slots are obsolete. These are kept, also in the new table, because
    the next change may need them again.
    """
    # Delete in reverse order of names: a chain may jump only to one whose name is a prefix of its own.
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
    """Return how many redirects of the table belong to a rule set, and how many do not.

    A redirect's port is in an element, and its address is in a rule.
    """
    wanted = rules_of(ours)
    same = all(have.chains.get(chain) == comments_of(wanted[chain]) for chain in ("prerouting", "output"))
    mine = sum(ours.redirects.get(traffic) == port for traffic, port in have.redirects.items()) if same else 0
    return Reach(mine, len(have.redirects) - mine)


def pause(have: Table, *, for_s: float) -> list[str]:
    """Return the steps (as in `difference`) of the transaction for a pause: it replaces redirects by drops of first
    packets for `for_s` seconds, so that clients retry. Return no steps if there are no redirects.

    Everything that needs no process stays in force: spreads and all that belongs to them. When the time is over, the
    drops have no effect. A table of another version is created again, without its spreads.
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
        # Keep the chains: with the last rule that needs it, the kernel would stop tracking connections, which would
        # break every running connection.
        steps += chain_steps(chains, rules_of(RuleSet()))
    by_set: dict[str, list[Element]] = {}
    for each in sorted(destinations):
        by_set.setdefault(place(each, "paused"), []).append(destination_key(each))
    for name, elements in hooks.items():
        by_set.setdefault(name.replace("hooks", "paused"), []).extend(elements)
    for name, elements in by_set.items():
        texts = (f"{key_text(each)} timeout {math.ceil(for_s * 1000)}ms" for each in elements)
        steps += text_steps("add", name, texts)
    # The drops come after the spreads. A client on this node may then use the spread for all clients, whose endpoints
    # are a subset of its own.
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
    """Yield the jumps that change."""
    for (name, destination), old, new in changed(have, want, None):
        yield replacement(name, destination, old, new)


_HOOKS = frozenset(f"hooks{family.value}" for family in Family)
_LEADING_TO_PROXY_PORTS = frozenset((*REDIRECTS, *_HOOKS, "guarded", "unguarded", "refused", "dropped"))
"""The maps and sets that are useful only while a process listens on the proxy ports in them."""

_NODE_ADDRESSES = frozenset(f"node_addresses{family.value}" for family in Family)
