"""Turns a listing of our nftables table into a `Table` (pure). `reading` makes the listing."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from typing import NamedTuple

from kubeproxy.model import NODE_PORTS, Address, Destination, Protocol, Traffic
from kubeproxy.netfilter.nftables import rescue
from kubeproxy.netfilter.nftables.declarations import (
    CLIENTS,
    DIVERT,
    DIVERT_HOOK,
    HOOKS,
    KINDS,
    PAUSE_SETS,
    REDIRECTS,
    SETS,
    SPREADS,
    VERDICTS,
    Kind,
)
from kubeproxy.netfilter.nftables.dynamic_chains import choice_of, is_dynamic
from kubeproxy.netfilter.nftables.elements import Element, Entry, PackedTargets
from kubeproxy.netfilter.nftables.spreads import Slots
from kubeproxy.netfilter.nftables.transaction import EMPTY, Table


class Listed(NamedTuple):
    """A listed map or set."""

    declared: tuple[object, ...]
    """The declaration, in the form of `Kind.listed`."""
    entries: Iterable[Entry]
    """The elements, decoded during iteration. An element of a foreign form raises ValueError, KeyError or
    struct.error."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The listed contents of the table."""

    sets: Mapping[str, Listed]
    chains: Mapping[str, tuple[str, str, int, str] | None]
    """The type, hook, priority and policy of each chain, or None for a chain without a hook."""
    comments: Mapping[str, tuple[str, ...]]
    """The comments of each chain's rules, in order."""
    slots: Callable[[str, Element, int], PackedTargets]
    """Returns the endpoints in the first slots of a destination in a map. The number of slots is the last argument.
    Raises ValueError if one is missing. Slots beyond these are not read, because no rule draws them."""


def table_of(found: Listing, *, slots: bool = True) -> Table:
    """Return the table, without `slots` if these are not wanted. If its declarations are not those of this version,
    `sound` is false."""
    sets = found.sets
    clients = {name: kind for name, kind in sets.items() if name.startswith("clients")}
    table = EMPTY
    try:
        # Redirects are read even from tables of other versions, because a pause has to cover their clients, too.
        redirects = _redirects(sets)
        table = replace(EMPTY, redirects=redirects)
        elements: dict[str, Set[Element]] = {
            name: frozenset(entry.key for entry in sets[name].entries) for name in SETS
        }
        rescued = {*found.chains, *sets} & {*rescue.HOOKS, *rescue.SETS}
        declared = {
            name: kind.declared for name, kind in sets.items() if name not in clients and name not in rescue.SETS
        }
        static = {
            name: hook
            for name, hook in found.chains.items()
            if not is_dynamic(name) and name not in rescue.HOOKS and name != DIVERT
        }
        return Table(
            chains={name: found.comments.get(name, ()) for name in found.chains},
            redirects=redirects,
            sets=elements,
            slots=_slots(found) if slots else {},
            verdicts={
                (name, traffic_of(kind, entry.key).destination): str(entry.value)
                for name, kind in VERDICTS.items()
                for entry in sets[name].entries
            },
            clients=frozenset(clients),
            kept={name: frozenset(clients_in(kind).values()) for name, kind in clients.items()},
            transparent=DIVERT in found.chains,
            rescue=bool(rescued),
            paused=any(True for name in PAUSE_SETS if name in sets for _ in sets[name].entries),
            sound=static == HOOKS
            and found.chains.get(DIVERT, DIVERT_HOOK) == DIVERT_HOOK
            and all(hook is None for name, hook in found.chains.items() if is_dynamic(name))
            and (not rescued or _has_rescue(found))
            and declared == {name: kind.listed for name, kind in KINDS.items()}
            and all(kind.declared in _CLIENTS for kind in clients.values()),
        )
    except (KeyError, TypeError, ValueError, struct.error):
        # An element of a foreign form is not ours, so the table is not sound.
        return table


def _has_rescue(found: Listing) -> bool:
    """Return whether the table has the chains and sets of the rescue, as in this version."""
    return {name: hook for name, hook in found.chains.items() if name in rescue.HOOKS} == rescue.HOOKS and {
        name: kind.declared for name, kind in found.sets.items() if name in rescue.SETS
    } == rescue.SETS


_CLIENTS = tuple(kind.listed for kind in CLIENTS.values())


def _redirects(sets: Mapping[str, Listed]) -> dict[Traffic, int]:
    return {
        traffic_of(kind, entry.key): _number(entry.value)
        for name, kind in REDIRECTS.items()
        for entry in sets[name].entries
    }


def _slots(found: Listing) -> dict[Traffic, Slots]:
    """Return the slots of each destination whose packets jump to a chain of slots. Raise ValueError if a slot is
    missing."""
    slots: dict[Traffic, Slots] = {}
    for name, kind in SPREADS.items():
        for key, chain, comment in found.sets[name].entries:
            *address, protocol, port = key
            count, client_hash = choice_of(str(chain))
            if count <= 0:
                raise ValueError(chain)
            of = name.replace("spreads", f"{protocol}_slots".lower())
            slots[traffic_of(kind, key)] = Slots(found.slots(of, (*address, port), count), comment, client_hash)
    return slots


def traffic_of(kind: Kind, key: Element) -> Traffic:
    """Return the traffic for an element's key in a map of this kind."""
    *address, protocol, port = key
    where = Address(str(address[0])) if address else NODE_PORTS[kind.family]
    return Traffic(Destination(where, Protocol(str(protocol)), _number(port)), kind.origin)


def clients_in(found: Listed) -> dict[Address, Address]:
    """Return the clients in a client map, each with the address of its endpoint."""
    return {Address(str(entry.key[0])): Address(str(entry.value)) for entry in found.entries}


def _number(found: object) -> int:
    if not isinstance(found, int):
        raise TypeError(found)
    return found
