"""Keeps the kernel equal to the rules of the serving frontends: first netfilter, then its conntrack entries.

Only one round at a time calls this; `Proxier` holds the lock.
"""

from __future__ import annotations

import math
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol as Interface

import structlog

from kubeproxy.model import Protocol
from kubeproxy.model.errors import KubeproxyError
from kubeproxy.netfilter.conntrack.stale_flows import Conntrack, NoConntrack
from kubeproxy.netfilter.interface import Netfilter
from kubeproxy.netfilter.ruleset import RuleChange, RuleSet, part
from kubeproxy.proxier.clock import Clock
from kubeproxy.proxier.reports import Part, Reports
from kubeproxy.proxier.ruleset_builder import RuleSetBuilder
from kubeproxy.proxier.sync_schedule import Schedule

log = structlog.get_logger(__name__)


class Rivals(Interface):
    """Other proxies on this node that do not speak our takeover protocol."""

    def rival_lives(self) -> bool:
        """Return whether a younger proxy is alive."""

    def yield_to_rival(self) -> None:
        """Leave the rules to a younger proxy, because they already redirect to it."""


class NoRivals:
    """The implementation for a node without other proxies."""

    def rival_lives(self) -> bool:
        """Return False."""
        return False

    def yield_to_rival(self) -> None:
        """Do nothing."""


class Handover(Interface):
    """The two steps in which another instance hands its rules over to this one."""

    def transaction(self) -> AbstractAsyncContextManager[None]:
        """Return the context for a transaction. While the handover is not complete, the other instance does not touch
        the rules in this context, and maintains them again if the transaction fails."""

    async def complete(self) -> None:
        """Complete the handover: the rules now redirect to this instance, and conntrack entries of the other one are
        deleted. Raise KernelError if the other instance refuses. Then it maintains its rules again, and the handover
        starts again with the next transaction."""


class NoHandover:
    """The implementation if no other instance hands rules over. The handover is always complete."""

    def transaction(self) -> AbstractAsyncContextManager[None]:
        """Return a context that does nothing."""
        return nullcontext()

    async def complete(self) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """The parts of the kernel that the proxier changes, and the other processes that may change them."""

    netfilter: Netfilter
    conntrack: Conntrack = NoConntrack()  # noqa: RUF009 - it has no state
    rivals: Rivals = NoRivals()  # noqa: RUF009 - it has no state
    handover: Handover = NoHandover()  # noqa: RUF009 - it has no state


class KernelSync:
    """Makes netfilter transactions, and deletes stale conntrack entries."""

    def __init__(
        self, kernel: Kernel, rules: RuleSetBuilder, schedule: Schedule, clock: Clock, reports: Reports
    ) -> None:
        self._netfilter = kernel.netfilter
        self._conntrack = kernel.conntrack
        self._rivals = kernel.rivals
        self._handover = kernel.handover
        self._rules = rules
        self._schedule = schedule
        self._clock = clock
        self._reports = reports
        self.in_force: RuleSet | None = None
        """The rules of the last successful transaction, or None before the first one."""
        self.generation = 0
        """The generation of `in_force`."""
        self.programmed_at: float | None = None
        """When the last transaction succeeded, by the proxier's clock, or None before the first one."""
        self._requested = 0
        """The generation of the rules in the last attempted transaction, successful or not."""
        self._follows = False
        """Whether the rules in force are those that netfilter was last given. Otherwise it gets complete rules."""
        self._reconciled: RuleSet | None = None
        """The rules with which the conntrack entries last agreed, or None if that is unknown."""
        self._handed_over = False
        """Whether the last attempt to complete the handover succeeded."""
        self._held = False
        self._stopped = False
        self._foreign_changes = 0
        self._suspicious = False
        """Whether another process has changed our rules since they were last checked."""

    @property
    def name(self) -> str:
        """Return the name of the packet filter's adapter."""
        return self._netfilter.name

    def reports_to(self, group: int) -> bool:
        """Return whether the rules in force report failed connections to this NFLOG group."""
        return self.in_force is not None and self.in_force.rescue == group and not self._stopped

    # When the next transaction is due.

    def next_at(self) -> float:
        """Return when the next transaction is due, or infinity if none is."""
        if self._held:
            return math.inf
        if self.programmed_at is None and Part.DATA_PLANE in self._reports.failing:
            return math.inf  # Without listeners there are no rules yet. Those of an earlier run may still work.
        generation = self._rules.generation
        return self._schedule.next_at(pending=generation != self.generation, new=generation != self._requested)

    def hold(self, on: bool) -> None:
        """Stop transactions. With `on` false resume them, beginning with a full sync."""
        self._held = on
        if not on:
            self._schedule.require_full_sync()

    def note_foreign_change(self) -> bool:
        """Record that another process may have changed our rules. Return whether the change is to be undone."""
        self._foreign_changes += 1
        self._reconciled = None  # Flows may have begun while the rules were changed or missing.
        if self._held or self._stopped:
            return False  # The change is that of a new instance, which takes over the rules.
        log.warning("rules changed by another process, restoring")
        self._suspicious = True
        self._schedule.foreign_change(self._clock.now())
        return True

    # Transactions.

    async def apply(self) -> bool:
        """Update netfilter in one transaction, and return whether that succeeded. The caller has to call `reconcile`
        next."""
        started_at = self._clock.now()
        full = self._schedule.full_due(started_at)
        if (full or self._suspicious) and await self._has_lost_to_rival():
            return False
        self._schedule.started(started_at, full=full)
        try:
            changed = await self._change_services()
            if full or not changed:
                changed |= await self._replace(full=full)
        except KubeproxyError as error:
            self._schedule.failed(self._clock.now())
            self._reports.failed(Part.NETFILTER, error)
            return False
        ended_at = self.programmed_at = self._clock.now()
        self._schedule.succeeded(ended_at, full=full)
        self._reports.recovered(Part.NETFILTER)
        self._reports.observer.programmed(duration_s=ended_at - started_at, full=full, changed=changed)
        return True

    async def _change_services(self) -> bool:
        """Make the changes of Services in the rules in force, and return whether that was done. The cost does not grow
        with the number of all Services."""
        in_force, generation = self.in_force, self._rules.generation
        if in_force is None or not (self._follows and self._handed_over) or generation == self.generation:
            return False
        change = self._rules.take_change(in_force)
        if change is None:
            return False
        self._requested, self._follows = generation, False
        if not await self._netfilter.change(change):
            return False
        self._follows, self.generation = True, generation
        await self._enter(change, in_force)
        return True

    async def _replace(self, *, full: bool) -> bool:
        """Give netfilter the complete rules, and return whether the kernel had others."""
        generation, ruleset = self._rules.generation, self._ruleset()
        self._requested, self._follows = generation, False
        async with self._handover.transaction():
            changed = await self._netfilter.apply(ruleset, verify=full)
        self._follows, self.in_force, self.generation = True, ruleset, generation
        if changed and (ruleset is self._reconciled or ruleset == self._reconciled):
            self._reconciled = None  # Another process had changed our rules, so flows may have begun without them.
        return changed

    def _ruleset(self) -> RuleSet:
        """Return the wanted rules. If they are equal to the rules in force, return the same object."""
        if self.in_force is not None and self._rules.generation == self.generation and self._rules.is_balanced:
            return self.in_force
        return self._rules.ruleset()

    async def _has_lost_to_rival(self) -> bool:
        """Return whether the rules redirect mostly to a younger proxy. The two proxies cannot talk to each other. If
        the older one restored its rules, the younger one would restore its own, so the older one yields."""
        if self.in_force is None:
            return False
        try:
            lost = False
            if self._rivals.rival_lives():
                reach = await self._netfilter.reach(self.in_force)
                lost = reach.others > reach.ours
        except (KubeproxyError, OSError) as error:
            log.warning("cannot read redirects", reason=str(error))
            return False
        self._suspicious = False
        if lost:
            self._held = True
            self._rivals.yield_to_rival()
        return lost

    async def reconcile(self) -> None:
        """Delete the conntrack entries that contradict the rules in force.

        If that fails, the rules stay in force, and the entries are checked again after the next transaction."""
        ruleset = self.in_force
        if ruleset is None or ruleset is self._reconciled:
            return
        started_at, foreign_changes = self._clock.now(), self._foreign_changes
        try:
            deleted = await self._delete_stale(ruleset)
        except KubeproxyError as error:
            self._reports.conntrack_failed(error)
            return
        self._reconciled = ruleset if foreign_changes == self._foreign_changes else None
        self._reports.recovered(Part.CONNTRACK)
        self._reports.observer.reconciled(duration_s=self._clock.now() - started_at, deleted=deleted)

    async def _delete_stale(self, ruleset: RuleSet) -> int:
        """Delete the stale entries and return their number. Then complete the handover, even if the deletion failed,
        because the deletion will be tried again."""
        try:
            deleted = await self._conntrack.reconcile(self._reconciled, ruleset)
        except KubeproxyError:
            await self._complete_handover()
            raise
        await self._complete_handover()
        return deleted

    async def _complete_handover(self) -> None:
        self._handed_over = False
        await self._handover.complete()
        self._handed_over = True

    async def rebalance(self) -> None:
        """Change endpoints of the kernel path within the rules in force. If that fails, the next transaction makes the
        change."""
        if self.in_force is None or self._held or self._stopped:
            return
        in_force, change = self.in_force, self._rules.take_unbalanced(self.in_force)
        if not change:
            return
        done = False
        try:
            done = self._handed_over and await self._netfilter.change(change)
        except KubeproxyError as error:
            self._schedule.require_full_sync()
            self._reports.failed(Part.NETFILTER, error)
        finally:  # The change is not lost if the task is cancelled meanwhile.
            if not done:
                self._rules.require_rules()
        if done:
            await self._enter(change, in_force)

    async def _enter(self, change: RuleChange, in_force: RuleSet) -> None:
        """Record a change that the kernel has made, and delete the conntrack entries that contradict it: those of UDP,
        and unanswered ones of TCP that are older than their Service."""
        looked_at = change
        if change.only_endpoints:
            datagrams = {it: spread for it, spread in change.spreads.items() if it.destination.protocol is Protocol.UDP}
            looked_at = RuleChange(datagrams)
        before = part(in_force, looked_at)
        in_force.enter(change)
        reconciled = self._reconciled
        if not looked_at or reconciled is None:
            return
        started_at = self._clock.now()
        self._reconciled = None  # If the deletion fails or is cancelled, the next one looks at all entries.
        try:
            deleted = await self._conntrack.reconcile(before, part(in_force, looked_at))
        except KubeproxyError as error:
            self._reports.conntrack_failed(error)
            return
        self._reconciled = reconciled
        self._reports.observer.reconciled(duration_s=self._clock.now() - started_at, deleted=deleted)

    async def leads_here(self) -> bool:
        """Return whether the kernel still has redirects to this instance. Raise KernelError if the rules cannot be
        read."""
        return self.in_force is not None and (await self._netfilter.reach(self.in_force)).ours > 0

    # The end of the process.

    def stop(self) -> None:
        """Make no further change, except by `cleanup` and `pause`."""
        self._stopped = True

    async def cleanup(self) -> None:
        """Remove the rules, and the conntrack entries of their UDP redirects.

        Without its entry, a client that keeps sending from the same socket reaches the next instance."""
        await self._netfilter.cleanup()
        if self.in_force is not None:
            try:
                await self._conntrack.reconcile(self.in_force, RuleSet())
            except KubeproxyError as error:
                log.warning("cannot delete UDP flows", reason=str(error))

    async def pause(self) -> None:
        """Drop clients' first packets until a new instance serves (`Netfilter.pause`)."""
        await self._netfilter.pause()

    async def forget_ended(self, *, ours: bool) -> None:
        """Delete the conntrack entries of ended connections to our proxy ports (`ours`), or otherwise to those of an
        earlier process.

        A client that uses its port again would match such an entry, and be rejected. A failure is logged.
        """
        if self.in_force is None:
            return
        try:
            await self._conntrack.forget_ended(self.in_force, ours=ours)
        except KubeproxyError as error:
            log.warning("cannot delete flows of ended connections", reason=str(error))
