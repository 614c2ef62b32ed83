"""Compares what two histories have left in the kernel, if both end with the same rules.

The order of random slots depends on the history, and some things stay by design: chains that draw slots, and what
session affinity had for a port that no endpoint has any more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Set
from typing import Any

from kubeproxy.model import Scope, family_of
from kubeproxy.netfilter.nftables.affinity import affinity_name
from kubeproxy.netfilter.nftables.declarations import SLOTS, SPREADS
from kubeproxy.netfilter.nftables.dynamic_chains import choice_of, draws_slots
from kubeproxy.netfilter.nftables.rescue import SETS as RESCUE_SETS
from kubeproxy.netfilter.nftables.transaction import Table
from kubeproxy.netfilter.ruleset import RuleSet
from tests.support.lab import Host

LIST_TABLE = ["nft", "-j", "list", "table", "inet", "kubeproxy"]


class Kept:
    """What session affinity may keep under some rules."""

    def __init__(self, rules: RuleSet) -> None:
        self._ports: dict[str, set[int]] = {}
        """The ports of the endpoints, by the name of the affinity."""
        for (to, _), spread in rules.spreads.items():
            if spread.affinity_timeout_s is not None:
                ports = self._ports.setdefault(affinity_name(spread, family_of(to.address)), set())
                ports.update(it.port for it in spread.endpoints)

    def chain(self, name: str, comments: Iterable[str]) -> bool:
        """Return whether a chain with these rules, without those that `rule` allows, may be there."""
        return _affinity(name) in self._ports and not any(_PORT.search(it) for it in comments)

    def rule(self, chain: str, comment: str) -> bool:
        """Return whether a rule may be there although it is not wanted."""
        name = _affinity(chain)
        if name not in self._ports:
            return False
        if (port := _PORT.search(comment)) is not None:
            return int(port[1]) not in self._ports[name]
        return "own way" in comment and not self._ports.get(name.removesuffix(f".{Scope.EXTERNAL}"))

    def clients(self, name: str) -> bool:
        """Return whether a map of clients may be there although it is not wanted."""
        of, _, port = name.removeprefix("clients").rpartition("-")
        return of in self._ports and int(port) not in self._ports[of]


_PORT = re.compile(r"at port (\d+)")


def _affinity(chain: str) -> str:
    return chain.removeprefix("sticky").removeprefix("learn")


def canonical(table: Table, rules: RuleSet) -> dict[str, Any]:
    """Return what has to be equal in two tables of the same rules."""
    kept = Kept(rules)
    chains = {
        name: tuple(comment for comment in comments if not kept.rule(name, comment))
        for name, comments in table.chains.items()
        if not draws_slots(name)
    }
    return {
        "chains": {name: comments for name, comments in chains.items() if not kept.chain(name, comments)},
        "redirects": table.redirects,
        "sets": {name: set(elements) for name, elements in table.sets.items()},
        "slots": {
            each: (tuple(it.targets if it.client_hash else sorted(it.targets)), it.comment, it.client_hash)
            for each, it in table.slots.items()
        },
        "verdicts": table.verdicts,
        "clients": {name for name in table.clients if not kept.clients(name)},
        "flags": (table.transparent, table.rescue, table.paused),
    }


def listed(host: Host, rules: RuleSet) -> dict[str, Any]:
    """Return the same of the table as the program nft lists it."""
    kept = Kept(rules)
    found: dict[str, Any] = {}
    chains: dict[str, dict[str, str]] = {}
    """The rules of each chain, by their comments."""
    slots: dict[str, list[Any]] = {}
    counts: dict[tuple[str, str], int] = {}
    """How many slots are drawn, by map and destination."""
    for each in json.loads(host.run(LIST_TABLE).stdout)["nftables"]:
        ((kind, it),) = each.items()
        if kind == "rule":
            if not kept.rule(it["chain"], it["comment"]):
                chains[it["chain"]][it["comment"]] = _text(it)
        elif kind == "chain":
            chains[it["name"]] = {"": _text(it)}
        elif kind in ("set", "map"):
            name, elements = it["name"], it.pop("elem", [])
            if name.startswith("clients") and kept.clients(name):
                continue
            found[f"{kind} {name}"] = _text(it)
            if name in SLOTS:
                slots[name] = elements
            elif name not in RESCUE_SETS and not name.startswith("clients"):  # Packets and time change these.
                found[f"elements of {name}"] = sorted(map(_text, elements))
            if name in SPREADS:
                for key, verdict in elements:
                    *address, protocol, port = key["elem"]["val"]["concat"]
                    of = name.replace("spreads", f"{protocol}_slots")
                    counts[of, _text([*address, port])], _ = choice_of(verdict["jump"]["target"])
        elif kind not in ("metainfo", "table"):
            found[f"{kind} {it['name']}"] = _text(it)
    for name, elements in slots.items():
        # A slot that no rule draws may stay, after another program has removed its rule.
        places = ((_text(place), number, _text(value)) for ((*place, number), value) in map(_slot, elements))
        found[f"elements of {name}"] = sorted(
            (place, value) for place, number, value in places if number < counts.get((name, place), 0)
        )
    return found | {
        f"chain {name}": [*texts.values()]
        for name, texts in chains.items()
        if not (draws_slots(name) or kept.chain(name, texts))
    }


def _slot(element: Any) -> tuple[list[Any], Any]:
    key, value = element
    return key["concat"], value


def _text(it: Any) -> str:
    return json.dumps(_timeless(it), sort_keys=True)


def _timeless(it: Any) -> Any:
    """Return a listed value without handles and counters."""
    if isinstance(it, list):
        return [_timeless(each) for each in it]
    if not isinstance(it, dict):
        return it
    if it.keys() == {"elem"} and it["elem"].keys() <= {"val", "counter"}:
        return _timeless(it["elem"]["val"])
    return {key: _timeless(value) for key, value in it.items() if key not in ("counter", "handle", "expires")}


def explained(have: Any, wanted: Any, where: str = "") -> str:
    """Return where two values differ."""
    if isinstance(have, Mapping) and isinstance(wanted, Mapping):
        keys = (key for key in {**have, **wanted} if have.get(key) != wanted.get(key))
        return "\n".join(explained(have.get(key), wanted.get(key), f"{where}/{key}") for key in keys)
    if isinstance(have, list) and isinstance(wanted, list):
        have, wanted = set(map(str, have)), set(map(str, wanted))
    if isinstance(have, Set) and isinstance(wanted, Set):
        return f"{where}: too many {have - wanted}, missing {wanted - have}"
    return f"{where}: {have!r}\n  wanted {wanted!r}"


def fields(rules: RuleSet) -> dict[str, Any]:
    """Return a rule set as a mapping, for `explained`."""
    return {name: getattr(rules, name) for name in RuleSet.__slots__}
