"""Opens, reads and changes the legacy tables through python-iptables' binding of libiptc."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from kubeproxy.model import Family
from kubeproxy.model.errors import KernelError
from kubeproxy.netfilter.iptables import entry as iptables_entry
from kubeproxy.netfilter.iptables.chains import BUILTIN, OWN, Chains, Difference, Rules, comes_first, comes_last
from kubeproxy.netfilter.iptables.entry import Entry
from kubeproxy.netfilter.iptables.table_info import info_of

Key = tuple[Family, str]
"""The family and the name of a table."""

_NAMES = {Family.IPV4: Path("/proc/net/ip_tables_names"), Family.IPV6: Path("/proc/net/ip6_tables_names")}


def table_infos() -> dict[Key, bytes]:
    """Return the sizes of the existing tables, as far as the kernel reports them."""
    found: dict[Key, bytes] = {}
    for family in Family:
        for table in OWN:
            if exists(family, table):
                with contextlib.suppress(OSError):
                    found[family, table] = info_of(family, table)
    return found


@cache
def iptc() -> ModuleType:
    """Import and return python-iptables. The import loads a kernel module and runs two programs, so it is done only
    when needed.

    The package is an optional dependency, because it is distributed only as source and needs a C compiler.
    """
    try:
        return importlib.import_module("iptc")
    except ModuleNotFoundError as error:
        raise KernelError(
            "python-iptables is not installed: pip install 'kubeproxy[iptables]' (it needs a C compiler), "
            "or use --netfilter nftables"
        ) from error
    except Exception as error:  # The import raises many kinds of errors.
        raise KernelError(
            f"python-iptables cannot be loaded: {error}; install libxtables, libip4tc and libip6tc (iptables)"
        ) from error


def error_text(error: Exception) -> str:
    """Return an error's text without the quotes of bytes literals that python-iptables puts into it."""
    return re.sub(r"b'([^']*)'", r"\1", str(error))


def exists(family: Family, name: str) -> bool:
    """Return whether the kernel has this table. This does not open the table, because opening would create it."""
    try:
        return name in _NAMES[family].read_text().split()
    except FileNotFoundError:
        return False
    except PermissionError:  # In a user namespace only opening the table would tell.
        return True


@contextlib.contextmanager
def opened(family: Family, name: str) -> Iterator[Any]:
    """Open a new snapshot of a table, and close it at the end of the context."""
    table = _open(family, name)
    try:
        yield table
    finally:
        table.close()


def _open(family: Family, name: str) -> Any:
    module = iptc()
    try:
        table = (module.Table if family is Family.IPV4 else module.Table6)(name, autocommit=False)
        table.refresh()
        return table
    except module.IPTCError as error:
        text = error_text(error)
        hint = (
            "it needs CAP_NET_ADMIN and CAP_NET_RAW"
            if "ermission" in text
            else "the kernel may have no legacy tables (CONFIG_NETFILTER_XTABLES_LEGACY): use --netfilter nftables"
        )
        raise KernelError(f"{family} table {name}: {text}; {hint}") from error


def read(table: Any, family: Family, name: str) -> tuple[Chains, list[tuple[str, Entry]]]:
    """Return our chains with the jumps to them, and the rules that appear more than once in their chain."""
    chains: dict[str, Rules] = {}
    surplus: list[tuple[str, Entry]] = []
    for chain in (*BUILTIN[name], *filter(table.is_chain, OWN[name])):
        entries: list[Entry] = []
        rule = table.first_rule(chain)
        while rule:
            target = (table.get_target(rule) or b"").decode()
            if chain in OWN[name] or target in OWN[name]:
                entries.append(_bytes(family, rule, target))
            rule = table.next_rule(rule)
        if chain in OWN[name]:
            chains[chain] = frozenset(entries)
            surplus += [(chain, entry) for entry, count in Counter(entries).items() for _ in range(count - 1)]
        elif entries:
            chains[chain] = tuple(entries)
    return chains, surplus


def _bytes(family: Family, rule: Any, target: str) -> Entry:
    address = ctypes.addressof(rule)
    size = iptables_entry.size_of(family, ctypes.string_at(address, iptables_entry.head_size(family)))
    return iptables_entry.canonical(family, ctypes.string_at(address, size), target)


def carry_out(table: Any, difference: Difference, surplus: list[tuple[str, Entry]]) -> None:
    """Make these changes in a snapshot of the table, and remove surplus copies of rules. The caller commits the
    snapshot."""
    for chain in difference.create:
        table.create_chain(chain)
    for chain in (*difference.flush, *difference.drop):
        table.flush_entries(chain)
    emptied = {*difference.flush, *difference.drop}
    for chain, entry in (*difference.delete, *(extra for extra in surplus if extra[0] not in emptied)):
        every_bit = ctypes.create_string_buffer(b"\xff" * len(entry), len(entry))
        table.delete_entry(chain, ctypes.create_string_buffer(entry, len(entry)), every_bit)
    position: dict[str, int] = {}
    for chain, entry in difference.add:
        rule = ctypes.create_string_buffer(entry, len(entry))
        # Our jumps come first, before NAT rules or firewalls of other programs.
        if table.builtin_chain(chain) and not comes_last(entry):
            table.insert_entry(chain, rule, position.get(chain, 0))
            position[chain] = position.get(chain, 0) + 1
        elif comes_first(entry):
            table.insert_entry(chain, rule, 0)
        else:
            table.append_entry(chain, rule)
    for chain in difference.drop:
        table.delete_chain(chain)
