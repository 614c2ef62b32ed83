"""The nftables adapter: one table of our own, changed by one transaction per apply."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import islice

import structlog

from kubeproxy.model import Address, Destination, Origin, Protocol, Scope, Target, Traffic
from kubeproxy.model.errors import KernelError
from kubeproxy.netfilter.interface import PAUSE_S, Feature
from kubeproxy.netfilter.nftables import transaction
from kubeproxy.netfilter.nftables.affinity import clients_of
from kubeproxy.netfilter.nftables.declarations import KINDS, TABLE
from kubeproxy.netfilter.nftables.elements import Replacement, batches
from kubeproxy.netfilter.nftables.execute import (
    NftCommands,
    NotFoundError,
    OccupiedError,
    TransactionTooLongError,
    refused,
)
from kubeproxy.netfilter.nftables.listing import clients_in, table_of
from kubeproxy.netfilter.nftables.table_change import table_change
from kubeproxy.netfilter.nftables.table_names import tables
from kubeproxy.netfilter.nftables.transaction import Table
from kubeproxy.netfilter.nftables.transaction_steps import DELETION, forgetting
from kubeproxy.netfilter.nftables.watch import TableWatch
from kubeproxy.netfilter.ruleset import DirectLink, Masquerade, Reach, RuleChange, RuleSet, Spread

log = structlog.get_logger(__name__)

_APART = 5_000
"""From this number of slots on, slots are sent by netlink and not through the program nft, which would need 280 MB for
those of 10,000 Services."""
_AT_ONCE = 2_000
"""The number of slots in one transaction. It takes some milliseconds, and fits into the socket of an unprivileged user
namespace."""
_RESIZING_S = 0.2
"""How long the kernel may take to resize a map."""
_ATTEMPTS = 3
"""The number of attempts: one based on the believed rules, one based on those in the kernel, and another one in case
another process changes the rules in between."""


class Nftables:
    """Keeps table ``inet kubeproxy`` equal to a rule set. This needs the program nft and CAP_NET_ADMIN."""

    name = "nftables"

    def __init__(self, *, nft: str = "nft", timeout_s: float = 30.0) -> None:
        self._commands = NftCommands(nft=nft, timeout_s=timeout_s)
        # The table believed to be in the kernel, or None if it is unknown.
        self._believed: Table | None = None
        # The rule set from which the believed table was made. Both are updated together by `change`.
        self._applied: RuleSet | None = None
        # The number of changes by other processes so far. If it grows while the table is read, the result is invalid.
        self._foreign_changes = 0
        # The subscription to notifications, made with the first transaction, or None if the kernel does not notify.
        self._watch: TableWatch | None = None
        self._watching = False
        # Whether the kernel accepts redirects with both Feature.TRANSPARENT and Feature.SOCKET_GUARD.
        self._takes_all = False
        self._takes_spreads = False
        # The addresses of endpoints that each map of clients may contain, by the name of the map. They are read with
        # the table, and set when clients are deleted.
        self._kept: dict[str, frozenset[Address]] = {}
        self._on_foreign_change: Callable[[], None] = lambda: None

    async def probe(self, feature: Feature | None = None) -> None:
        """Let the kernel check our table with this feature, without creating it.

        Raise KernelError with the kernel's reason if it refuses.
        """
        match feature:
            case None:
                await self._probe_redirects()
            case Feature.TRANSPARENT:
                if not self._takes_all:
                    await self._check(replace(_REDIRECTING, transparent=True))
            case Feature.SOCKET_GUARD:
                if not self._takes_all:
                    await self._check(replace(_REDIRECTING, guard_sockets=True))
            case Feature.SPREADS:
                # Check spreads of both families and protocols, with affinity and masquerading.
                if not self._takes_spreads:
                    await self._check(_SPREADING)
                    self._takes_spreads = True
            case Feature.RESCUE:
                await self._check(replace(_SPREADING, rescue=1))

    async def _probe_redirects(self) -> None:
        # Check all features at once, because each check starts a program and clients may be waiting. If that fails,
        # check them one by one.
        try:
            await self._check(replace(_REDIRECTING, transparent=True, guard_sockets=True))
        except KernelError:
            await self._check(_REDIRECTING)
        else:
            self._takes_all = True

    async def _check(self, rules: RuleSet) -> None:
        steps = transaction.difference(transaction.EMPTY, rules)
        await self._commands.run("-c", "-f", "-", commands=f"add table {TABLE}\n{''.join(steps)}")

    async def apply(self, wanted: RuleSet, *, verify: bool) -> bool:
        """See `Netfilter.apply`."""
        self._start_watching()
        self._notice()
        # If the kernel notifies of every foreign change, the believed table is right, and reading it again would take
        # long.
        have = None if verify and self._watch is None else self._believed
        if have is not None and wanted is self._applied:
            return False
        sound = True
        for attempt in range(_ATTEMPTS):
            believed, foreign_changes = have is not None, self._foreign_changes
            if have is None and (have := await self._read()) is not None:
                self._kept = dict(have.kept)
                have = replace(have, sound=have.sound and sound)
            steps, after, creation, slots = transaction.transition(have, wanted, apart=_APART)
            self._believed = None
            try:
                if creation:
                    await self._transact(creation)
                await self._add(slots)
                if steps:
                    await self._commit(steps)
            except KernelError as error:
                if attempt == _ATTEMPTS - 1:
                    raise
                # Slots that no rule draws are not read. If they are in the way, the table is made anew.
                have, sound = None, believed or not isinstance(error, OccupiedError)
                log.warning("transaction refused, reading the kernel's rules", believed=believed, reason=str(error))
                continue
            self._believed = after if foreign_changes == self._foreign_changes else None
            self._applied = wanted
            self._notice()
            await self._forget_clients(clients_of(wanted.spreads))
            return bool(steps)
        raise AssertionError("unreachable")

    async def _add(self, slots: Iterable[Replacement]) -> None:
        rest = iter(slots)
        while some := list(islice(rest, _AT_ONCE)):
            async with self._own_transaction():
                await self._commands.change_elements(batches(KINDS, some))

    async def change(self, change: RuleChange) -> bool:
        """See `Netfilter.change`."""
        self._notice()
        have, rules = self._believed, self._applied
        found = table_change(have, rules, change) if have is not None and rules is not None else None
        if have is None or found is None:
            return False
        if found.chains or found.elements:
            self._believed, foreign_changes = None, self._foreign_changes
            if found.chains:
                await self._transact(found.chain_commands)
            try:
                async with self._own_transaction():
                    await self._commands.change_elements(batches(KINDS, found.elements))
            except TransactionTooLongError:
                # No element has changed. The program nft can send the elements in parts. New chains are there already.
                self._believed = None if found.chains else have
                return False
            found.enter(have)
            self._believed = have if foreign_changes == self._foreign_changes else None
            self._notice()
        await self._forget_clients(clients_of(found.spreads))
        return True

    async def _forget_clients(self, wanted: Mapping[str, frozenset[Address]]) -> None:
        """Delete the clients whose endpoint in these maps is not among the given addresses, so that they choose again.

        Only the kernel adds clients, and only with addresses that have slots."""
        for name, addresses in wanted.items():
            kept = self._kept.get(name, frozenset())
            self._kept[name] = kept | addresses
            if not kept <= addresses:
                await self._forget_all_but(name, addresses)
            self._kept[name] = addresses

    async def _forget_all_but(self, name: str, addresses: frozenset[Address]) -> None:
        """Delete the clients in a map that have another endpoint address than these.

        Between the reading and the deletion the kernel may forget a client and learn it again with another endpoint.
        Then it refuses to delete what was read, so that the client keeps its new endpoint. As the other clients would
        keep the old one, all are read again.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            known = clients_in(await self._commands.read(lambda reader: reader.map(name)))
            stale = {client: address for client, address in known.items() if address not in addresses}
            if not stale:
                return
            try:
                await self._transact(forgetting(name, stale))
            except KernelError:
                if attempt == _ATTEMPTS:
                    raise
            else:
                log.info("clients choose another endpoint", map=name, count=len(stale))
                return

    async def reach(self, ours: RuleSet) -> Reach:
        """See `Netfilter.reach`."""
        have = await self._read(slots=False)
        return Reach(0, 0) if have is None else transaction.reach(have, ours)

    async def pause(self, for_s: float = PAUSE_S) -> bool:
        """See `Netfilter.pause`."""
        self._notice()
        have = self._believed or await self._read(slots=False)
        self._believed = None
        if have is None or not (steps := transaction.pause(have, for_s=for_s)):
            return False
        await self._commit(steps)
        return True

    async def has_rules(self) -> bool:
        """Return whether there is anything for `cleanup` to remove."""
        try:
            return TABLE in tables()
        except OSError as error:
            raise refused(error, "to list the tables") from error

    async def cleanup(self) -> bool:
        """See `Netfilter.cleanup`."""
        self._believed = None
        if not await self.has_rules():
            return False
        await self._transact(f"add table {TABLE}\n{DELETION}")
        return True

    def on_foreign_change(self, callback: Callable[[], None]) -> None:
        """See `Netfilter.on_foreign_change`. The kernel notifies at once."""
        self._on_foreign_change = callback
        self._start_watching()
        if self._watch is not None:
            asyncio.get_running_loop().add_reader(self._watch, self._notice)

    async def close(self) -> None:
        """See `Netfilter.close`."""
        if self._watch is not None:
            asyncio.get_running_loop().remove_reader(self._watch)
            self._watch.close()
            self._watch = None
        await self._commands.close()

    def _start_watching(self) -> None:
        if self._watching:
            return
        self._watching = True
        try:
            self._watch = TableWatch()
        except OSError as error:
            log.info("no notifications of nftables changes", reason=error.strerror)

    def _notice(self) -> None:
        """Read notifications. After a change by another process the believed table is invalid."""
        if self._watch is None or not self._watch.look():
            return
        self._believed = None
        self._foreign_changes += 1
        self._on_foreign_change()

    async def _read(self, *, slots: bool = True) -> Table | None:
        """Return the table in the kernel, or None if there is none. With `slots` false, the table has no slots. While
        the kernel resizes a map, as after a change of thousands of elements, a listing of that map may be
        incomplete."""
        found = await self._read_once(slots=slots)
        if found is None or found.sound:
            return found
        await asyncio.sleep(_RESIZING_S)
        return await self._read_once(slots=slots)

    async def _read_once(self, *, slots: bool) -> Table | None:
        if not await self.has_rules():
            return None
        try:
            return await self._commands.read(lambda reader: table_of(reader.read(), slots=slots))
        except NotFoundError:  # The table was deleted meanwhile.
            return None

    async def _commit(self, steps: Sequence[str]) -> None:
        try:
            await self._transact("".join(steps))
        except TransactionTooLongError:
            # Send the steps in small parts, because an unprivileged user namespace cannot enlarge the netlink buffer
            # for thousands of elements at once.
            rest = iter(steps)
            while batch := list(islice(rest, 2)):
                await self._transact("".join(batch))

    async def _transact(self, commands: str) -> None:
        async with self._own_transaction():
            await self._commands.run("-f", "-", commands=commands)

    @asynccontextmanager
    async def _own_transaction(self) -> AsyncIterator[None]:
        """Make the changes of this context one transaction, with errors as KernelError and notifications counted as
        ours."""
        if self._watch is None:
            yield
            return
        self._watch.begin()
        committed = False
        try:
            yield
            committed = True
        finally:
            self._watch.end(committed=committed)


def _probed(address: str, protocol: Protocol, endpoint: str) -> tuple[Destination, Spread]:
    targets = (Target(Address(endpoint), 80),)
    return Destination(Address(address), protocol, 80), Spread("probe", targets, targets, 1)


_SPREADS = dict(
    _probed(address, protocol, endpoint)
    for protocol in (Protocol.TCP, Protocol.UDP)
    for addresses, endpoint in ((("192.0.2.1", "0.0.0.0"), "192.0.2.2"), (("2001:db8::1", "::"), "2001:db8::2"))
    for address in addresses
)
_REDIRECTING = RuleSet(redirects={Traffic(destination, Origin.NODE): 1 for destination in _SPREADS})
"""A rule set for checking the kernel, with rules of every form that redirects can have."""
_SPREADING = replace(
    _REDIRECTING,
    spreads={
        Traffic(destination, origin): replace(spread, scope=scope)
        for origin, scope in ((Origin.NODE, Scope.CLUSTER), (Origin.ANYWHERE, Scope.EXTERNAL))
        for destination, spread in _SPREADS.items()
    },
    masquerades=dict.fromkeys(_SPREADS, Masquerade.OUTSIDE),
    hairpins={Address("192.0.2.2"), Address("2001:db8::2")},
    direct_links=frozenset({DirectLink(1, "lo", "192.0.2.0/24"), DirectLink(1, "lo", "2001:db8::/64")}),
)
"""A rule set for checking the kernel, with rules of every form that spreads can have."""
