"""The iptables adapter: kube-proxy's chains in the legacy tables, through python-iptables.

Of python-iptables, only the binding of libiptc is used, with which one commit replaces a whole table. The rest takes no
lock, may lose changes through its automatic commits, is not thread-safe, and reads rules through the process's standard
output. So all calls are made in one thread, each transaction holds the lock of iptables(8), and rules are bytes
(`kubeproxy.netfilter.iptables.entry`).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

import structlog

from kubeproxy.model import Family
from kubeproxy.model.errors import KernelError
from kubeproxy.netfilter.interface import PAUSE_S, Feature
from kubeproxy.netfilter.iptables import legacy_table, ruleset_chains
from kubeproxy.netfilter.iptables.chains import (
    FILTER,
    MANGLE,
    NAT,
    OWN,
    PROXY_DIVERT,
    PROXY_SOCKETS,
    Chains,
    RuleFactory,
    difference,
    union,
)
from kubeproxy.netfilter.iptables.entry import Entry
from kubeproxy.netfilter.iptables.lock import xtables_lock
from kubeproxy.netfilter.iptables.nat import reach
from kubeproxy.netfilter.ruleset import Reach, RuleChange, RuleSet

log = structlog.get_logger(__name__)

_ATTEMPTS = 4
_RETRY_S = 0.02
_POLL_S = 1.0
_NO_SPREADS = (
    "iptables rules grow with the endpoints of all Services, and a change replaces a whole table; nftables"
    " serves the kernel path"
)
P = ParamSpec("P")
T = TypeVar("T")


class Iptables:
    """Keeps kube-proxy's chains equal to a rule set. This needs CAP_NET_ADMIN, CAP_NET_RAW, the lock file, and a kernel
    with the legacy tables."""

    name = "iptables"

    def __init__(self, *, lock_wait_s: float = 10.0) -> None:
        self._lock_wait_s = lock_wait_s
        self._thread = ThreadPoolExecutor(1, "iptables")
        # The rules believed to be in the kernel, by table. The rules of a table without an entry are unknown. Used only
        # in the thread.
        self._believed: dict[legacy_table.Key, Chains] = {}
        self._rule_factory = RuleFactory()
        # The sizes of the tables after the last transaction or poll. Used only in the thread.
        self._table_infos: dict[legacy_table.Key, bytes] = {}
        self._on_foreign_change: Callable[[], None] = lambda: None
        self._poll_timer: asyncio.TimerHandle | None = None
        self._polling: asyncio.Future[bool] | None = None

    async def probe(self, feature: Feature | None = None) -> None:
        """Open the tables. For a feature that needs it, create a chain to which nothing jumps, and remove it again.

        Raise KernelError with the reason if that fails. (The kernel creates a table when it is opened.)
        """
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
        """See `Netfilter.apply`. Each table changes as a whole or not at all. The order of the tables ensures that
        clients are never redirected to an unguarded port."""
        return await self._in_thread(self._apply, wanted, verify)

    async def change(self, change: RuleChange) -> bool:
        """See `Netfilter.change`. This adapter does not support it."""
        return False

    async def reach(self, ours: RuleSet) -> Reach:
        """See `Netfilter.reach`."""
        families = [family for family in Family if legacy_table.exists(family, NAT)]
        return await self._in_thread(self._reach, families, ours) if families else Reach(0, 0)

    async def pause(self, for_s: float = PAUSE_S) -> bool:
        """See `Netfilter.pause`. A commit of table mangle adds the drops before the redirects are removed."""
        families = [family for family in Family if legacy_table.exists(family, NAT)]
        return bool(families) and await self._in_thread(self._pause, families, for_s)

    async def has_rules(self) -> bool:
        """Return whether there is anything for `cleanup` to remove."""
        return await self._in_thread(self._has_rules)

    def _has_rules(self) -> bool:
        with xtables_lock(self._lock_wait_s):
            for family in Family:
                for name in filter(partial(legacy_table.exists, family), OWN):
                    with legacy_table.opened(family, name) as table:
                        if any(legacy_table.read(table, family, name)):
                            return True
        return False

    async def cleanup(self) -> bool:
        """See `Netfilter.cleanup`."""
        if not any(legacy_table.exists(family, table) for family in Family for table in OWN):
            return False
        return await self._in_thread(self._apply, None, True)

    def on_foreign_change(self, callback: Callable[[], None]) -> None:
        """See `Netfilter.on_foreign_change`. The kernel does not notify of changes to these tables, so their size is
        polled every second. A rule replaced by one of the same length is noticed only by the next full sync."""
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
        # Import iptc before any other call in the thread. An import takes a lock that the event loop also takes, while
        # holding others, whenever it starts a program; so importing later could deadlock.
        legacy_table.iptc()
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(call, *arguments, **named))

    @contextlib.contextmanager
    def _recording_table_infos(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._table_infos = legacy_table.table_infos()

    def _has_changed(self) -> bool:
        now = legacy_table.table_infos()
        changed = any(self._table_infos.get(key) != info for key, info in now.items() if key in self._table_infos)
        gone = self._table_infos.keys() - now.keys()
        self._table_infos = now
        if changed or gone:
            self._believed.clear()
        return changed or bool(gone)

    def _probe(self) -> None:
        with xtables_lock(self._lock_wait_s):
            for name in (NAT, FILTER):
                with legacy_table.opened(Family.IPV4, name):
                    pass

    def _probe_transparent(self) -> None:
        probe = {PROXY_DIVERT: ruleset_chains.divert(Family.IPV4)[PROXY_DIVERT]}
        with xtables_lock(self._lock_wait_s):
            if self._move(Family.IPV4, MANGLE, lambda have: have or probe):
                self._move(Family.IPV4, MANGLE, lambda _: {})

    def _probe_socket_guard(self) -> None:
        probe = {PROXY_SOCKETS: frozenset({ruleset_chains.own_socket_rule(Family.IPV4)})}
        with xtables_lock(self._lock_wait_s):
            if self._move(Family.IPV4, FILTER, lambda have: {**probe, **have}):
                self._move(Family.IPV4, FILTER, lambda have: {it: have[it] for it in have if it not in probe})

    def _reach(self, families: Iterable[Family], ours: RuleSet) -> Reach:
        mine = others = 0
        for family in families:
            with legacy_table.opened(family, NAT) as table:
                have, _ = legacy_table.read(table, family, NAT)
            redirects = reach(have, ours, family)
            mine, others = mine + redirects.ours, others + redirects.others
        return Reach(mine, others)

    def _pause(self, families: Iterable[Family], for_s: float) -> bool:
        self._believed.clear()
        with xtables_lock(self._lock_wait_s), self._recording_table_infos():
            paused = [self._pause_family(family, math.ceil(time.time() + for_s)) for family in families]
        return any(paused)

    def _pause_family(self, family: Family, until: int) -> bool:
        with legacy_table.opened(family, NAT) as table:
            nat, _ = legacy_table.read(table, family, NAT)
        drops = ruleset_chains.pause(nat, family, until=until)
        if not drops:
            return False
        nothing = ruleset_chains.chains_of(RuleSet(), family)
        self._move(family, MANGLE, lambda have: union(ruleset_chains.without_pause(have, family), drops))
        self._move(family, NAT, lambda _: nothing[NAT])
        self._move(family, FILTER, lambda _: nothing[FILTER])
        return True

    def _apply(self, wanted: RuleSet | None, verify: bool) -> bool:
        if verify:
            self._believed.clear()
        changed, failures = False, []
        with xtables_lock(self._lock_wait_s), self._recording_table_infos():
            # If one family fails, as IPv6 does in a kernel without its tables, the other one is served nevertheless.
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
                ruleset_chains.chains_of(wanted, family, self._rule_factory),
                ruleset_chains.is_needed(wanted, family),
            )
        return any(
            [
                # Guards and refusals are added before the redirects that need them, and are removed after those
                # redirects.
                self._move(family, FILTER, lambda have: union(have, want[FILTER]) if needed or have else {}),
                self._move(family, NAT, lambda have: want[NAT] if needed or have else {}),
                self._move(family, MANGLE, lambda have: want[MANGLE] if needed or have else {}),
                self._move(family, FILTER, lambda have: want[FILTER] if needed or have else {}),
            ]
        )

    def _move(self, family: Family, name: str, goal: Callable[[Chains], Chains]) -> bool:
        """Change a table to the rules that `goal` returns for its present rules. Return True if a commit was needed."""
        key = family, name
        for attempt in range(_ATTEMPTS):
            have = self._believed.pop(key, None)
            if have is None and not goal({}) and not legacy_table.exists(family, name):
                have = {}
            if have is not None and not difference(have, goal(have), table=name):
                self._believed[key] = have
                return False
            try:
                with legacy_table.opened(family, name) as table:
                    surplus: list[tuple[str, Entry]] = []
                    if have is None:
                        have, surplus = legacy_table.read(table, family, name)
                    change = difference(have, goal(have), table=name)
                    if changed := bool(change or surplus):
                        legacy_table.carry_out(table, change, surplus)
                        table.commit()
            except legacy_table.iptc().IPTCError as error:
                if attempt == _ATTEMPTS - 1:
                    raise KernelError(
                        f"{family} table {name}: {legacy_table.error_text(error)}; nothing was changed in it"
                    ) from error
                # The believed rules were wrong, or a program that does not take the lock has changed the table
                # meanwhile.
                log.warning(
                    "commit refused, reading the table again",
                    family=str(family),
                    table=name,
                    reason=legacy_table.error_text(error),
                )
                time.sleep(random.uniform(0.5, 1.5) * _RETRY_S * 2**attempt)
                continue
            self._believed[key] = goal(have)
            return changed
        raise AssertionError("unreachable")
