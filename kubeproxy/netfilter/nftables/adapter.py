"""The nftables adapter: one table of our own, changed by one ``nft -f -`` per apply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import islice

import msgspec
import structlog

from kubeproxy.model.errors import KernelError
from kubeproxy.netfilter.interface import PAUSE_S
from kubeproxy.netfilter.nftables import table
from kubeproxy.netfilter.nftables.table import TABLE, Table
from kubeproxy.netfilter.nftables.watch import TableWatch
from kubeproxy.netfilter.ruleset import Reach, RuleSet
from kubeproxy.netfilter.subprocess import CommandFailed, run

log = structlog.get_logger(__name__)

_ATTEMPTS = 3
"""From the believed rules, from those in the kernel, and once more if another process changes them in between."""


class Nftables:
    """Keeps table ``inet kubeproxy`` equal to a rule set. Needs ``nft`` and CAP_NET_ADMIN."""

    name = "nftables"

    def __init__(self, *, nft: str = "nft", timeout_s: float = 30.0) -> None:
        self._nft = nft
        self._timeout_s = timeout_s
        # The table believed to be in the kernel; None: unknown.
        self._believed: Table | None = None
        # From the first transaction on; None then: the kernel does not notify.
        self._watch: TableWatch | None = None
        self._watching = False
        # Whether the kernel accepts every feature of our table.
        self._takes_all = False
        self._on_foreign_change: Callable[[], None] = lambda: None

    async def probe(self) -> None:
        """Have the kernel check our table without making it; KernelError with the reason if it refuses."""
        # All features at once: each check starts a program, and clients may be waiting. Singly if that fails.
        try:
            await self._check(RuleSet(transparent=True, guard_sockets=True))
        except KernelError:
            await self._check(RuleSet())
        else:
            self._takes_all = True

    async def probe_transparent(self) -> None:
        """Check a transparent rule set."""
        if not self._takes_all:
            await self._check(RuleSet(transparent=True))

    async def probe_socket_guard(self) -> None:
        """Check a rule set that guards sockets."""
        if not self._takes_all:
            await self._check(RuleSet(guard_sockets=True))

    async def _check(self, rules: RuleSet) -> None:
        steps = table.difference(table.EMPTY, rules)
        await self._run("-c", "-f", "-", commands=f"add table {TABLE}\n{''.join(steps)}")

    async def apply(self, wanted: RuleSet, *, verify: bool) -> bool:
        """See `Netfilter.apply`."""
        self._start_watching()
        self._notice()
        # The kernel notifies of every foreign change, so the believed table is true, and reading it takes long.
        have = None if verify and self._watch is None else self._believed
        for attempt in range(_ATTEMPTS):
            believed = have is not None
            steps = table.difference(have or await self._read(), wanted)
            self._believed = None
            try:
                if steps:
                    await self._commit(steps)
            except KernelError as error:
                if attempt == _ATTEMPTS - 1:
                    raise
                have = None
                log.warning("transaction refused, reading the kernel's rules", believed=believed, reason=str(error))
                continue
            self._believed = Table.of(wanted)
            self._notice()
            return bool(steps)
        raise AssertionError("unreachable")

    async def reach(self, ours: RuleSet) -> Reach:
        """See `Netfilter.reach`."""
        have = await self._read()
        return Reach(0, 0) if have is None else table.reach(have, ours)

    async def pause(self, for_s: float = PAUSE_S) -> bool:
        """See `Netfilter.pause`."""
        self._notice()
        have = self._believed or await self._read()
        self._believed = None
        if have is None or not (steps := table.pause(have, for_s=for_s)):
            return False
        await self._commit(steps)
        return True

    async def cleanup(self) -> bool:
        """See `Netfilter.cleanup`."""
        self._believed = None
        if f"table {TABLE}" not in (await self._run("list", "tables")).decode().splitlines():
            return False
        await self._transact(f"add table {TABLE}\n{table.DELETION}")
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

    def _start_watching(self) -> None:
        if self._watching:
            return
        self._watching = True
        try:
            self._watch = TableWatch()
        except OSError as error:
            log.info("no notifications of nftables changes", reason=error.strerror)

    def _notice(self) -> None:
        """Read notifications; a change by another process makes the believed table invalid."""
        if self._watch is None or not self._watch.look():
            return
        self._believed = None
        self._on_foreign_change()

    async def _read(self) -> Table | None:
        """The table in the kernel; None when there is none."""
        try:
            listing = await self._run("-j", "list", "table", *TABLE.split())
        except _NotFound:
            return None
        try:
            return table.parse(listing)
        except msgspec.MsgspecError as error:
            raise KernelError(
                f"`nft -j list table {TABLE}` printed what this version does not understand: {error}; check whether "
                f"`nft --version` was built with JSON, or delete the table by `nft delete table {TABLE}`"
            ) from error

    async def _commit(self, steps: Sequence[str]) -> None:
        try:
            await self._transact("".join(steps))
        except _TooLong:
            # An unprivileged user namespace cannot enlarge the netlink buffer for thousands of elements at once.
            rest = iter(steps)
            while batch := list(islice(rest, 2)):
                await self._transact("".join(batch))

    async def _transact(self, commands: str) -> None:
        if self._watch is None:
            await self._run("-f", "-", commands=commands)
            return
        self._watch.begin()
        committed = False
        try:
            await self._run("-f", "-", commands=commands)
            committed = True
        finally:
            self._watch.end(committed=committed)

    async def _run(self, *arguments: str, commands: str = "") -> bytes:
        try:
            return await run(self._nft, *arguments, commands=commands, timeout_s=self._timeout_s)
        except CommandFailed as error:
            if "Operation not permitted" in error.stderr or "you must be root" in error.stderr:
                raise KernelError(f"{_shorten(error)}; it needs CAP_NET_ADMIN (root, or the capability)") from error
            if "No such file or directory" in error.stderr:
                raise _NotFound(_shorten(error)) from error
            if "Message too long" in error.stderr:
                raise _TooLong(_shorten(error)) from error
            raise KernelError(_shorten(error)) from error


class _NotFound(KernelError):
    """The table or an element does not exist."""


class _TooLong(KernelError):
    """The transaction does not fit in the socket's buffer."""


def _shorten(error: CommandFailed) -> str:
    """The error without the command, which nft repeats and may have thousands of elements."""
    lines = [line for line in error.stderr.splitlines() if "Error" in line]
    return f"{error.command_line}: {'; '.join(lines[:3])}" if lines else str(error)
