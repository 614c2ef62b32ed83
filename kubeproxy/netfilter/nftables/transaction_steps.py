"""Makes the steps of a transaction: commands in nft's syntax that change elements, chains and maps of our table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain as joined
from itertools import islice

from kubeproxy.model import Address, Family
from kubeproxy.netfilter.nftables import rescue
from kubeproxy.netfilter.nftables.declarations import CLIENTS, DIVERT, HOOKS, KINDS, TABLE
from kubeproxy.netfilter.nftables.elements import Element, Replacement, key_text
from kubeproxy.netfilter.nftables.rules import Rule

_CHUNK = 1000
"""The number of elements in one step, so small that a step fits into the netlink buffer of an unprivileged user
namespace."""
DELETION = f"delete table {TABLE}\n"
"""The command that deletes the whole table."""


def element_steps(elements: Iterable[Replacement]) -> Iterator[str]:
    """Yield steps for the replacements. Each element is replaced within one step."""
    by_name: dict[str, list[Replacement]] = {}
    for each in elements:
        by_name.setdefault(each.name, []).append(each)
    for name, found in by_name.items():
        rest = iter(found)
        while chunk := list(islice(rest, _CHUNK)):
            old = ", ".join(each.old.text_to_delete for each in chunk if each.old is not None)
            new = ", ".join(each.new.text for each in chunk if each.new is not None)
            yield (f"delete element {TABLE} {name} {{ {old} }}\n" if old else "") + (
                f"add element {TABLE} {name} {{ {new} }}\n" if new else ""
            )


def forgetting(name: str, clients: Mapping[Address, Address]) -> str:
    """Return the transaction that deletes these clients from a client map."""
    texts = [f"{client} : {endpoint}" for client, endpoint in clients.items()]
    # Add the clients before deleting them, because deleting an element that has just expired would fail.
    steps = zip(text_steps("add", name, texts), text_steps("delete", name, texts), strict=True)
    return "".join(joined.from_iterable(steps))


def flushing(names: Iterable[str]) -> str:
    """Return the commands that empty maps and sets."""
    return "".join(f"flush {'map' if KINDS[name].is_map else 'set'} {TABLE} {name}\n" for name in sorted(names))


def map_steps(verb: str, names: Iterable[str]) -> Iterator[str]:
    """Yield the commands that add or delete client maps."""
    lines = []
    for name in sorted(names):
        family = Family(int(name.removeprefix("clients")[0]))
        lines.append(f"{verb} map {TABLE} {name}{f' {{ {CLIENTS[family].declaration} }}' if verb == 'add' else ''}\n")
    if lines:
        yield "".join(lines)


def set_steps(verb: str, name: str, elements: Iterable[Element]) -> Iterator[str]:
    """Yield the commands that add or delete elements of a set."""
    return text_steps(verb, name, map(key_text, sorted(elements)))


def text_steps(verb: str, name: str, texts: Iterable[str]) -> Iterator[str]:
    """Yield the commands that add or delete elements given in nft's syntax."""
    rest = iter(texts)
    while chunk := list(islice(rest, _CHUNK)):
        yield f"{verb} element {TABLE} {name} {{ {', '.join(chunk)} }}\n"


def comments_of(rules: Iterable[Rule]) -> tuple[str, ...]:
    """Return the comments by which a chain's rules are recognized."""
    return tuple(rule.comment for rule in rules)


def chain_steps(have: Mapping[str, tuple[str, ...]], want: Mapping[str, tuple[Rule, ...]]) -> Iterator[str]:
    """Yield the commands that create these chains, or refill those whose rules differ."""
    lines: list[str] = []
    for chain, rules in want.items():
        if have.get(chain, ()) != comments_of(rules):
            if chain not in have and chain not in HOOKS and chain not in rescue.HOOKS and chain != DIVERT:
                lines.append(f"add chain {TABLE} {chain}\n")
            lines.append(f"flush chain {TABLE} {chain}\n")
            lines += (_adding(chain, rule) for rule in rules)
    if lines:
        yield "".join(lines)


def appending(have: Mapping[str, tuple[str, ...]], chain: str, rules: Iterable[Rule]) -> Iterator[str]:
    """Yield the commands that append rules to a chain, except for those that the chain already has."""
    present = have.get(chain, ())
    lines = [_adding(chain, rule) for rule in rules if rule.comment not in present]
    if lines:
        yield "".join(lines)


def _adding(chain: str, rule: Rule) -> str:
    return f'add rule {TABLE} {chain} {rule.text} comment "{rule.comment}"\n'
