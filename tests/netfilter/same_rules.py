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
from kubeproxy.netfilter.nftables.dynamic_chains import draws_slots
from kubeproxy.netfilter.nftables.rescue import SETS
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
            each: (it.targets if it.client_hash else tuple(sorted(it.targets)), it.comment, it.client_hash)
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
    for each in json.loads(host.run(LIST_TABLE).stdout)["nftables"]:
        ((kind, it),) = each.items()
        if kind == "rule":
            if not kept.rule(it["chain"], it["comment"]):
                chains[it["chain"]][it["comment"]] = _text(it)
        elif kind == "chain":
            chains[it["name"]] = {"": _text(it)}
        elif kind in ("set", "map"):
            if not (it["name"].startswith("clients") and kept.clients(it["name"])):
                found[f"elements of {it['name']}"] = _elements(it["name"], it.pop("elem", []))
                found[f"{kind} {it['name']}"] = _text(it)
        elif kind not in ("metainfo", "table"):
            found[f"{kind} {it['name']}"] = _text(it)
    return found | {
        f"chain {name}": [*texts.values()]
        for name, texts in chains.items()
        if not (draws_slots(name) or kept.chain(name, texts))
    }


def _elements(name: str, elements: list[Any]) -> Any:
    if name.startswith("clients") or name in SETS:
        return ()  # Packets and time add and remove these.
    if "_slots" not in name:
        return sorted(map(_text, elements))
    by_place: dict[str, list[str]] = {}
    for key, value in elements:
        by_place.setdefault(_text(key["concat"][:-1]), []).append(_text(value))
    return {place: sorted(values) for place, values in by_place.items()}


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
