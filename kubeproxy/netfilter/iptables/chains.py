"""Chains of the legacy tables as values, and their differences.

In our chains at most one rule matches a packet (except for a rule that always comes first). So the order of rules does
not matter, and a chain is a set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from kubeproxy.model import Family
from kubeproxy.netfilter.iptables import entry as iptables_entry
from kubeproxy.netfilter.iptables.entry import Entry

NAT, FILTER, MANGLE = "nat", "filter", "mangle"

PORTALS_CONTAINER = "KUBE-PORTALS-CONTAINER"
PORTALS_HOST = "KUBE-PORTALS-HOST"
PORTALS_INTERNAL = "KUBE-PORTALS-INTERNAL"
PORTALS_HOOKS = "KUBE-PORTALS-HOOKS"
NODEPORT_CONTAINER = "KUBE-NODEPORT-CONTAINER"
NODEPORT_HOST = "KUBE-NODEPORT-HOST"
NODEPORT_INTERNAL = "KUBE-NODEPORT-INTERNAL"
PORTS_CONTAINER = "KUBE-PORTS-CONTAINER"
PORTS_HOST = "KUBE-PORTS-HOST"
PORTS_INTERNAL = "KUBE-PORTS-INTERNAL"
PROXY_PORTS = "KUBE-PROXY-PORTS"
PROXY_DIRECT = "KUBE-PROXY-DIRECT"
PROXY_CLOSED = "KUBE-PROXY-CLOSED"
PROXY_SOURCES = "KUBE-PROXY-SOURCES"
PROXY_SOCKETS = "KUBE-PROXY-SOCKETS"
PROXY_DIVERT = "KUBE-PROXY-DIVERT"
PROXY_PAUSE = "KUBE-PROXY-PAUSE"
PROXY_PAUSE_PORTS = "KUBE-PROXY-PAUSE-PORTS"

OWN: Mapping[str, frozenset[str]] = {
    NAT: frozenset(
        {
            *(PORTALS_CONTAINER, PORTALS_HOST, PORTALS_INTERNAL, PORTALS_HOOKS),
            *(NODEPORT_CONTAINER, NODEPORT_HOST, NODEPORT_INTERNAL),
            *(PORTS_CONTAINER, PORTS_HOST, PORTS_INTERNAL),
        }
    ),
    FILTER: frozenset(
        {PROXY_PORTS, PROXY_DIRECT, PROXY_CLOSED, PROXY_SOCKETS, PROXY_SOURCES, "KUBE-NODEPORT-NON-LOCAL"}
    ),
    MANGLE: frozenset({PROXY_DIVERT, PROXY_PAUSE, PROXY_PAUSE_PORTS}),
}
"""Our chains in each table, and other chains that kube-proxy's userspace mode leaves behind on purpose."""

BUILTIN: Mapping[str, tuple[str, ...]] = {
    NAT: ("PREROUTING", "OUTPUT"),
    FILTER: ("INPUT", "FORWARD", "OUTPUT"),
    MANGLE: ("PREROUTING", "OUTPUT"),
}
"""The built-in chains with jumps to our chains."""

K = TypeVar("K")
V = TypeVar("V")

Rules = frozenset[Entry] | tuple[Entry, ...]
"""The rules of a chain: an unordered set in our own chains, and a sequence of our jumps in built-in chains."""

Chains = Mapping[str, Rules]
"""Our chains with their rules, and the built-in chains with our jumps."""


class RuleFactory:
    """Makes the rules of the long chains. It caches the last version of each chain and makes only rules that differ, so
    that a change of one among ten thousand Services does not make ten thousand rules."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Family, str], tuple[object, Mapping[Any, Any], frozenset[Entry]]] = {}

    def make(
        self, family: Family, chain: str, items: Mapping[K, V], rules: Callable[[K, V], Iterable[Entry]], *, to: object
    ) -> frozenset[Entry]:
        """Return the chain with the rules for each item.

        `to` is everything else on which the rules depend. Different items must have different rules."""
        before_to, before, made = self._kept.get((family, chain), (to, {}, frozenset()))
        if before_to != to:
            before, made = {}, frozenset()
        # Sets of the items are not used, because hashing them takes ten times as long.
        new = [(key, value) for key, value in items.items() if before.get(key) != value]
        gone = [(key, value) for key, value in before.items() if items.get(key) != value]
        if gone or new:
            made = made.difference(*(rules(*item) for item in gone)).union(*(rules(*item) for item in new))
        self._kept[family, chain] = to, items, made
        return made


def union(have: Chains, wanted: Chains) -> Chains:
    """Return the existing and the wanted rules combined."""
    return {
        name: _merged(have.get(name, frozenset()), wanted.get(name, frozenset()))
        for name in have.keys() | wanted.keys()
    }


def _merged(have: Rules, wanted: Rules) -> Rules:
    if have is wanted:
        return have
    if isinstance(have, frozenset) and isinstance(wanted, frozenset):
        return have | wanted
    return tuple(dict.fromkeys((*wanted, *have)))


@dataclass(frozen=True, slots=True)
class Difference:
    """The changes of a table, in the order in which they must be made: `create`, `flush` and `drop` have names of
    chains, `delete` and `add` have rules with their chain."""

    create: tuple[str, ...]
    flush: tuple[str, ...]
    delete: tuple[tuple[str, Entry], ...]
    add: tuple[tuple[str, Entry], ...]
    """The rules to add. In a built-in chain the order matters."""
    drop: tuple[str, ...]

    def __bool__(self) -> bool:
        return any((self.create, self.flush, self.add, self.delete, self.drop))


def difference(have: Chains, wanted: Chains, *, table: str) -> Difference:
    """Return the changes that turn `have` into `wanted`."""
    own = OWN[table]
    drop = [name for name in have if name not in wanted and name in own]
    flush, add, delete = [], [], []
    for name in {**have, **wanted}:
        old, new = have.get(name, ()), wanted.get(name, ())
        if name in drop:
            continue
        if name not in own:
            # In a built-in chain the order matters. It has only a handful of our jumps, so replace all of them.
            if tuple(old) != tuple(new):
                delete += [(name, entry) for entry in old]
                add += [(name, entry) for entry in new]
            continue
        if old is new:
            continue
        more, gone = frozenset(new) - frozenset(old), frozenset(old) - frozenset(new)
        # To delete a rule the kernel's library searches its chain, so a chain that loses most of its rules is flushed
        # and filled again.
        if len(gone) > len(new):
            flush.append(name)
            add += [(name, entry) for entry in new]
        else:
            add += [(name, entry) for entry in more]
            delete += [(name, entry) for entry in gone]
    return Difference(
        create=tuple(name for name in wanted if name not in have and name in own),
        flush=tuple(flush),
        delete=tuple(delete),
        add=tuple(add),
        drop=tuple(drop),
    )


def comes_last(entry: Entry) -> bool:
    """Return whether a jump belongs at the end of a built-in chain. All other jumps belong at its start."""
    return entry.endswith(_LAST)


def comes_first(entry: Entry) -> bool:
    """Return whether a rule belongs at the start of its chain."""
    return entry.endswith(iptables_entry.jump("RETURN"))


_LAST = tuple(iptables_entry.jump(chain) for chain in (NODEPORT_CONTAINER, NODEPORT_HOST, NODEPORT_INTERNAL))
