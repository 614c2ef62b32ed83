"""The iptables adapter: kube-proxy's chains in the legacy tables, through python-iptables.

Only the binding of libiptc in python-iptables is used; one commit of it replaces a table at once. The rest of it takes
no lock, loses changes when it commits by itself, is not safe with threads, and reads rules back through the process's
standard output. So all calls are made in one thread, each transaction holds the lock of iptables(8), and rules are
bytes (`kubeproxy.netfilter.iptables.entry`).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib
import math
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

import structlog

from kubeproxy.model import Family
from kubeproxy.model.errors import KernelError
from kubeproxy.netfilter.interface import PAUSE_S, Feature
from kubeproxy.netfilter.iptables import entry as iptables_entry
from kubeproxy.netfilter.iptables import table_contents as iptables_chains
from kubeproxy.netfilter.iptables.entry import Entry
from kubeproxy.netfilter.iptables.lock import xtables_lock
from kubeproxy.netfilter.iptables.table_contents import (
    BUILTIN,
    FILTER,
    MANGLE,
    NAT,
    OWN,
    PROXY_DIVERT,
    PROXY_SOCKETS,
    Chains,
    Difference,
    RuleFactory,
    Rules,
)
from kubeproxy.netfilter.iptables.table_info import info_of
from kubeproxy.netfilter.ruleset import Reach, Rebalance, RuleSet

log = structlog.get_logger(__name__)

_ATTEMPTS = 4
_RETRY_S = 0.02
_POLL_S = 1.0
_NO_SPREADS = (
    "iptables rules grow with the endpoints of all Services, and a change replaces a whole table; nftables"
    " serves the kernel path"
)
_NAMES = {Family.IPV4: Path("/proc/net/ip_tables_names"), Family.IPV6: Path("/proc/net/ip6_tables_names")}

_Key = tuple[Family, str]
P = ParamSpec("P")
T = TypeVar("T")


class Iptables:
    """Keeps kube-proxy's chains equal to a rule set. Needs CAP_NET_ADMIN, CAP_NET_RAW, the lock file, and a kernel
    with the legacy tables."""

    name = "iptables"

    def __init__(self, *, lock_wait_s: float = 10.0) -> None:
        self._lock_wait_s = lock_wait_s
        self._thread = ThreadPoolExecutor(1, "iptables")
        # The rules believed to be in the kernel, by table; missing: unknown. Used by the thread alone.
        self._believed: dict[_Key, Chains] = {}
        self._rule_factory = RuleFactory()
        # The sizes of the tables after the last transaction or poll. Used by the thread alone, too.
        self._table_infos: dict[_Key, bytes] = {}
        self._on_foreign_change: Callable[[], None] = lambda: None
        self._poll_timer: asyncio.TimerHandle | None = None
        self._polling: asyncio.Future[bool] | None = None

    async def probe(self, feature: Feature | None = None) -> None:
        """Open the tables, and make and remove a chain without a jump to it for features that need one.

        Raise KernelError with the reason if that fails. (The kernel makes a table that is opened.)"""
        match feature:
            case None:
                await self._in_thread(self._probe)
            case Feature.TRANSPARENT:
                await self._in_thread(self._probe_transparent)
            case Feature.SOCKET_GUARD:
                await self._in_thread(self._probe_socket_guard)
            case Feature.SPREADS | Feature.RESCUE:
                raise KernelError(_NO_SPREADS)

    async def apply(self, wanted: RuleSet, *, verify: bool) -> bool:
        """See `Netfilter.apply`. All or nothing holds for each table; the tables change in an order in which no client
        is ever redirected to a port without its guard."""
        return await self._in_thread(self._apply, wanted, verify)

    async def rebalance(self, change: Rebalance) -> bool:
        """See `Netfilter.rebalance`: there is nothing to change."""
        return False

    async def reach(self, ours: RuleSet) -> Reach:
        """See `Netfilter.reach`."""
        families = [family for family in Family if _exists(family, NAT)]
        return await self._in_thread(self._reach, families, ours) if families else Reach(0, 0)

    async def pause(self, for_s: float = PAUSE_S) -> bool:
        """See `Netfilter.pause`. A commit of table mangle adds the drops before the redirects are removed."""
        families = [family for family in Family if _exists(family, NAT)]
        return bool(families) and await self._in_thread(self._pause, families, for_s)

    async def has_rules(self) -> bool:
        """Return whether there is anything for `cleanup` to remove."""
        return await self._in_thread(self._has_rules)

    def _has_rules(self) -> bool:
        with xtables_lock(self._lock_wait_s):
            for family in Family:
                for name in filter(partial(_exists, family), OWN):
                    table = _open(family, name)
                    try:
                        if any(_read(table, family, name)):
                            return True
                    finally:
                        table.close()
        return False

    async def cleanup(self) -> bool:
        """See `Netfilter.cleanup`."""
        if not any(_exists(family, table) for family in Family for table in OWN):
            return False
        return await self._in_thread(self._apply, None, True)

    def on_foreign_change(self, callback: Callable[[], None]) -> None:
        """See `Netfilter.on_foreign_change`. The kernel does not notify of changes to these tables, so their size is
        read every second: a rule replaced by one of the same length is noticed by the next full sync only."""
        self._on_foreign_change = callback
        self._poll_later()

    def _poll_later(self) -> None:
        self._poll_timer = asyncio.get_running_loop().call_later(_POLL_S, self._poll_now)

    def _poll_now(self) -> None:
        self._polling = asyncio.get_running_loop().run_in_executor(self._thread, self._has_changed)
        self._polling.add_done_callback(self._polled)

    def _polled(self, found: asyncio.Future[bool]) -> None:
        if self._poll_timer is None or found.cancelled():
            return
        if found.result():
            self._on_foreign_change()
        self._poll_later()

    async def close(self) -> None:
        """See `Netfilter.close`."""
        if self._poll_timer is not None:
            self._poll_timer.cancel()
            self._poll_timer = None
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)

    async def _in_thread(self, call: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        # Not first in the thread: importing holds a lock that the loop takes, with others held, whenever it starts a
        # program; the two would deadlock.
        _iptc()
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(call, *arguments, **named))

    @contextlib.contextmanager
    def _recording_table_infos(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._table_infos = _table_infos()

    def _has_changed(self) -> bool:
        now = _table_infos()
        changed = any(self._table_infos.get(key) != info for key, info in now.items() if key in self._table_infos)
        gone = self._table_infos.keys() - now.keys()
        self._table_infos = now
        if changed or gone:
            self._believed.clear()
        return changed or bool(gone)

    def _probe(self) -> None:
        with xtables_lock(self._lock_wait_s):
            for table in (NAT, FILTER):
                _open(Family.IPV4, table).close()

    def _probe_transparent(self) -> None:
        probe = {PROXY_DIVERT: iptables_chains.divert(Family.IPV4)[PROXY_DIVERT]}
        with xtables_lock(self._lock_wait_s):
            if self._move(Family.IPV4, MANGLE, lambda have: have or probe):
                self._move(Family.IPV4, MANGLE, lambda _: {})

    def _probe_socket_guard(self) -> None:
        probe = {PROXY_SOCKETS: frozenset({iptables_chains.own_socket_rule(Family.IPV4)})}
        with xtables_lock(self._lock_wait_s):
            if self._move(Family.IPV4, FILTER, lambda have: {**probe, **have}):
                self._move(Family.IPV4, FILTER, lambda have: {it: have[it] for it in have if it not in probe})

    def _reach(self, families: Iterable[Family], ours: RuleSet) -> Reach:
        mine = others = 0
        for family in families:
            table = _open(family, NAT)
            try:
                have, _ = _read(table, family, NAT)
            finally:
                table.close()
            found = iptables_chains.reach(have, ours, family)
            mine, others = mine + found.ours, others + found.others
        return Reach(mine, others)

    def _pause(self, families: Iterable[Family], for_s: float) -> bool:
        self._believed.clear()
        with xtables_lock(self._lock_wait_s), self._recording_table_infos():
            paused = [self._pause_family(family, math.ceil(time.time() + for_s)) for family in families]
        return any(paused)

    def _pause_family(self, family: Family, until: int) -> bool:
        table = _open(family, NAT)
        try:
            nat, _ = _read(table, family, NAT)
        finally:
            table.close()
        drops = iptables_chains.pause(nat, family, until=until)
        if not drops:
            return False
        nothing = iptables_chains.chains_of(RuleSet(), family)
        self._move(
            family, MANGLE, lambda have: iptables_chains.union(iptables_chains.without_pause(have, family), drops)
        )
        self._move(family, NAT, lambda _: nothing[NAT])
        self._move(family, FILTER, lambda _: nothing[FILTER])
        return True

    def _apply(self, wanted: RuleSet | None, verify: bool) -> bool:
        if verify:
            self._believed.clear()
        changed, failures = False, []
        with xtables_lock(self._lock_wait_s), self._recording_table_infos():
            # A family that fails (a kernel without IPv6 tables) does not prevent the other from being served.
            for family in Family:
                try:
                    changed |= self._apply_family(family, wanted)
                except KernelError as error:
                    failures.append(error)
        if failures:
            raise KernelError("; ".join(map(str, failures))) from failures[0]
        return changed

    def _apply_family(self, family: Family, wanted: RuleSet | None) -> bool:
        if wanted is None:
            want: Mapping[str, Chains] = {table: {} for table in OWN}
            needed = True
        else:
            want, needed = (
                iptables_chains.chains_of(wanted, family, self._rule_factory),
                iptables_chains.is_needed(wanted, family),
            )
        return any(
            [
                # Guards and refusals are added before the redirects that need them, and removed after them.
                self._move(
                    family, FILTER, lambda have: iptables_chains.union(have, want[FILTER]) if needed or have else {}
                ),
                self._move(family, NAT, lambda have: want[NAT] if needed or have else {}),
                self._move(family, MANGLE, lambda have: want[MANGLE] if needed or have else {}),
                self._move(family, FILTER, lambda have: want[FILTER] if needed or have else {}),
            ]
        )

    def _move(self, family: Family, name: str, goal: Callable[[Chains], Chains]) -> bool:
        """Change a table from its present rules to those that `goal` returns for them; True if that took a commit."""
        key = family, name
        for attempt in range(_ATTEMPTS):
            have = self._believed.pop(key, None)
            if have is None and not goal({}) and not _exists(family, name):
                have = {}
            if have is not None and not iptables_chains.difference(have, goal(have), table=name):
                self._believed[key] = have
                return False
            table = _open(family, name)
            try:
                surplus: list[tuple[str, Entry]] = []
                if have is None:
                    have, surplus = _read(table, family, name)
                difference = iptables_chains.difference(have, goal(have), table=name)
                if changed := bool(difference or surplus):
                    _carry_out(table, difference, surplus)
                    table.commit()
            except _iptc().IPTCError as error:
                if attempt == _ATTEMPTS - 1:
                    raise KernelError(
                        f"{family} table {name}: {_error_text(error)}; nothing was changed in it"
                    ) from error
                # A program that does not take the lock changed the table meanwhile, or the believed rules were wrong.
                log.warning(
                    "commit refused, reading the table again", family=str(family), table=name, reason=_error_text(error)
                )
                time.sleep(random.uniform(0.5, 1.5) * _RETRY_S * 2**attempt)
                continue
            finally:
                table.close()
            self._believed[key] = goal(have)
            return changed
        raise AssertionError("unreachable")


def _table_infos() -> dict[_Key, bytes]:
    """Return the sizes of the existing tables, as far as the kernel reports them."""
    found: dict[_Key, bytes] = {}
    for family in Family:
        for table in OWN:
            if _exists(family, table):
                with contextlib.suppress(OSError):
                    found[family, table] = info_of(family, table)
    return found


@cache
def _iptc() -> ModuleType:
    """python-iptables. Importing it loads a kernel module and runs two programs: never at our own import.

    It is an extra of the distribution, because it comes as source only and needs a C compiler.
    """
    try:
        return importlib.import_module("iptc")
    except ModuleNotFoundError as error:
        raise KernelError(
            "python-iptables is not installed: pip install 'kubeproxy[iptables]' (it needs a C compiler), "
            "or use --netfilter nftables"
        ) from error
    except Exception as error:  # it raises anything from OSError to its own
        raise KernelError(
            f"python-iptables cannot be loaded: {error}; install libxtables, libip4tc and libip6tc (iptables)"
        ) from error


def _error_text(error: Exception) -> str:
    """Return an error's text without the marks of the bytes that python-iptables puts into it."""
    return re.sub(r"b'([^']*)'", r"\1", str(error))


def _exists(family: Family, name: str) -> bool:
    """Return whether the kernel has this table. Opening one would make it, and tools would show it."""
    try:
        return name in _NAMES[family].read_text().split()
    except FileNotFoundError:
        return False
    except PermissionError:  # in a user namespace: only opening it would show
        return True


def _open(family: Family, name: str) -> Any:
    """Return a fresh snapshot of a table."""
    module = _iptc()
    try:
        table = (module.Table if family is Family.IPV4 else module.Table6)(name, autocommit=False)
        table.refresh()
        return table
    except module.IPTCError as error:
        text = _error_text(error)
        hint = (
            "it needs CAP_NET_ADMIN and CAP_NET_RAW"
            if "ermission" in text
            else "the kernel may have no legacy tables (CONFIG_NETFILTER_XTABLES_LEGACY): use --netfilter nftables"
        )
        raise KernelError(f"{family} table {name}: {text}; {hint}") from error


def _read(table: Any, family: Family, name: str) -> tuple[Chains, list[tuple[str, Entry]]]:
    """Our chains and the jumps to them in built-in ones. Also the surplus of rules that a chain has more than once."""
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


def _carry_out(table: Any, difference: Difference, surplus: list[tuple[str, Entry]]) -> None:
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
        # Our first jumps come before the NAT rules or the firewall of other programs.
        if table.builtin_chain(chain) and not iptables_chains.comes_last(entry):
            table.insert_entry(chain, rule, position.get(chain, 0))
            position[chain] = position.get(chain, 0) + 1
        elif iptables_chains.comes_first(entry):
            table.insert_entry(chain, rule, 0)
        else:
            table.append_entry(chain, rule)
    for chain in difference.drop:
        table.delete_chain(chain)
