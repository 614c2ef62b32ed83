"""Plays histories to a Proxier with a real adapter, and compares what came of it with what a fresh start makes of the
same objects."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from kubeproxy.model import Family, FrontendName, Scope, ServiceName, ServicePortName, Traffic
from kubeproxy.model.errors import KernelError
from kubeproxy.netfilter.nftables.adapter import Nftables
from kubeproxy.netfilter.nftables.execute import TransactionTooLongError
from kubeproxy.netfilter.nftables.transaction import Table
from kubeproxy.netfilter.ruleset import ProxyPort, RuleChange, RuleSet
from kubeproxy.proxier.data_path_choice import Wanted
from tests.netfilter.compared_flows import ComparedFlows
from tests.netfilter.grounds import Ground, NoKernel
from tests.netfilter.histories import FEW_PORTS, SLOW_START_S, Batch, World
from tests.netfilter.mirror import Mirror
from tests.netfilter.same_rules import explained, fields
from tests.proxier.fake_node import Node
from tests.support.rule_changes import changeable

QUIET_S = 40.0
"""Longer than the proxier waits before it tries again."""
Call = Callable[[], Awaitable[Any]]


class Play:
    """A world, and a proxier that follows it."""

    def __init__(self, world: World, ground: Ground) -> None:
        self._world, self._ground = world, ground
        self._world.settings = ground.settings(world.settings)
        self.counts: Counter[str] = Counter()
        """What has happened."""
        self._hindrances: list[Callable[[Call], Awaitable[Any]]] = []
        """What the next calls of the kernel meet."""
        self._begin()

    def _begin(self) -> None:
        self._adapter, self._netfilter = self._ground.begin()
        self._flows = ComparedFlows(lambda: self._node.proxier.kernel.in_force)
        self._node = Node(settings=self._world.settings, kernel=self._netfilter, conntrack=self._flows)
        self._mirror = Mirror()
        if isinstance(self._adapter, Nftables):
            self._hinder(self._adapter._commands, "run")
            self._hinder(self._adapter._commands, "change_elements")
        else:
            self._hinder(self._adapter, "_in_thread")
        self._follow(self._adapter, "change")
        self._follow(self._adapter, "apply")
        self._follow(self._node.data_plane, "send")

    def _hinder(self, of: Any, name: str) -> None:
        call = getattr(of, name)

        async def hindered(*arguments: Any, **named: Any) -> Any:
            hindrance = self._hindrances.pop(0) if self._hindrances else _let_pass
            return await hindrance(lambda: call(*arguments, **named))

        setattr(of, name, hindered)

    def _follow(self, of: Any, name: str) -> None:
        call = getattr(of, name)

        async def followed(*arguments: Any, **named: Any) -> Any:
            result = await call(*arguments, **named)
            if name == "send":
                self._mirror.handle(self._node.data_plane.sent)
                self._node.data_plane.sent.clear()
            self._check_redirects(f"after {name}")
            self.counts[name] += 1
            if name == "change" and isinstance(arguments[0], RuleChange) and not arguments[0].only_endpoints:
                self.counts["changes of Services" if result else "left to complete rules"] += 1
            return result

        setattr(of, name, followed)

    async def start(self) -> None:
        """Give the proxier all objects, and wait until they are in effect."""
        self._world.list(self._node.tracker)
        self._node.start()
        await self._settle()

    async def close(self) -> None:
        """End the proxier. The rules stay."""
        self.counts["stale flows"] += self._flows.stale
        self._mirror.close()
        await self._node.close()
        await self._netfilter.close()

    async def batch(self, batch: Batch) -> None:
        """Make the changes of a batch, wait until they are in effect, and compare."""
        if (in_force := self._node.proxier.kernel.in_force) is not None:
            self._ground.learn(self._adapter, in_force)
        kind, *arguments = batch.mishap
        self.counts[kind] += 1
        await getattr(self, f"_{kind}")(batch, *arguments)
        await self._rest()
        if kind != "nothing":
            self._node.data_plane.refuse.clear()
            for _ in range(4):
                await self._pass_time(QUIET_S)
            self._hindrances.clear()
        await self._settle()
        if any(it.slow_start_s for it in self._world.services.values()):
            await self._pass_time(2 * SLOW_START_S)
            await self._settle()
        await self._check()

    async def _rest(self) -> None:
        """Run until the proxier waits, for time or for changes."""
        async with asyncio.timeout(60):
            while True:
                assert not self._node.crashes, self._node.crashes
                if self._node.clock.idle:
                    return
                await asyncio.sleep(0 if isinstance(self._ground, NoKernel) else 0.0005)

    async def _pass_time(self, by_s: float) -> None:
        for _ in range(3):
            await asyncio.sleep(0)  # The kernel's notifications are read in the loop.
        self._node.clock.move(by_s)
        await self._rest()

    async def _settle(self) -> None:
        """Run until all changes are in effect."""
        kernel, rules = self._node.proxier.kernel, self._node.proxier._state.rules
        await self._rest()
        for _ in range(12):
            pending = self._node.proxier.view.snapshot().pending_since is not None
            if not pending and kernel.generation == rules.generation and rules.is_balanced:
                return
            await self._pass_time(QUIET_S if self._node.proxier.view.snapshot().failing else 1.0)
        raise AssertionError("a change is not in effect")

    def _take(self, batch: Batch) -> None:
        settings, ejected = self._world.settings, self._world.ejected
        for step in batch.steps:
            self._world.take(step, self._node.tracker)
        self._world.settings = self._ground.settings(self._world.settings)
        if self._world.settings != settings:
            self._node.proxier.use(self._world.settings)
        if self._world.ejected is not ejected:
            self._node.proxier.set_ejected(self._world.ejected)

    # What may go wrong.

    async def _nothing(self, batch: Batch) -> None:
        self._take(batch)

    async def _refused(self, batch: Batch, after: int, times: int) -> None:
        """The kernel refuses, after it has carried out some calls."""
        self._hindrances += [*[_let_pass] * after, *[_refuse] * times]
        self._take(batch)

    async def _unanswered(self, batch: Batch, after: int) -> None:
        """The kernel carries a call out, but its answer is lost."""
        self._hindrances += [*[_let_pass] * after, _lose_answer]
        self._take(batch)

    async def _too_long(self, batch: Batch, after: int) -> None:
        self._hindrances += [*[_let_pass] * after, _refuse_length]
        self._take(batch)

    async def _interrupted(self, batch: Batch, turns: int) -> None:
        """The proxier is cancelled, and begins again."""
        self._take(batch)
        for _ in range(turns):
            await asyncio.sleep(0)
        await self._node.interrupt()
        self._node.start()

    async def _foreign(self, batch: Batch, when: str, command: str) -> None:
        """Another program changes our rules."""

        async def meanwhile(call: Call) -> Any:
            self._ground.run(command)
            return await call()

        if when == "before":
            self._ground.run(command)
        elif when == "within":
            self._hindrances.append(meanwhile)
        self._take(batch)
        if when == "after":
            await self._rest()
            self._ground.run(command)

    async def _broken(self, batch: Batch) -> None:
        """The data plane takes no message for once."""
        self._node.data_plane.broken = "no worker answers"
        self._take(batch)

    async def _unopened(self, batch: Batch, name: ServiceName) -> None:
        """The data plane opens and changes no listener of a Service for a while."""
        ports = (ServicePortName(*name, port) for port in "xyz")
        names = (FrontendName(port, family, scope) for port in ports for family in Family for scope in Scope)
        self._node.data_plane.refuse.update(dict.fromkeys(names, "not today"))
        self._take(batch)

    async def _restarted(self, batch: Batch) -> None:
        """Another process takes the place of this one, and finds its rules."""
        await self.close()
        for step in batch.steps:
            self._world.take(step, self._node.tracker)
        self._world.settings = self._ground.settings(self._world.settings)
        self._begin()
        self._node.proxier.set_ejected(self._world.ejected)
        await self.start()

    # What must hold.

    def _check_redirects(self, when: str) -> None:
        """Check that each redirect leads to a listener that serves its destination, or to a refusal."""
        table, plane = getattr(self._adapter, "_believed", None), self._node.data_plane
        if not isinstance(table, Table):
            return
        listening = {ProxyPort(it.protocol, it.port): it for it in plane.listening.values()}
        joined = {(it.listener, to): name for name, it in plane.joined.items() for to in it.destinations}
        refusing = table.sets["refused"] | table.sets["dropped"]
        for (to, origin), number in table.redirects.items():
            port = ProxyPort(to.protocol, number)
            assert port in table.sets["guarded"], f"{when} {port} is not guarded"
            assert port in listening, f"{when} {to} is led to {number}, where nobody listens"
            if port not in refusing:
                listen = listening[port]
                name = joined.get((listen.frontend, to)) if listen.shared else listen.frontend
                assert name is not None, f"{when} {to} is led to {number}, which does not know it"
                assert plane.endpoints[name].endpoints, f"{when} {to} is led to {name}, which has no endpoint"
                slots = table.slots.get(Traffic(to, origin))
                assert slots is None or slots.comment == str(name.service_port), f"{when} {to} is led to two Services"

    async def _check(self) -> None:
        """Compare rules and listeners with what a fresh start makes of the world."""
        builder, in_force = self._node.proxier._state.rules, self._node.proxier.kernel.in_force
        builder._note_taken = lambda: None  # type: ignore[method-assign]
        rules = changeable(builder.ruleset())
        del builder._note_taken
        assert in_force == rules, explained(fields(in_force) if in_force else {}, fields(rules))
        await self._ground.check(self._adapter, rules)
        settings = self._world.settings
        found = {**_served(self._node, rules), "engine": self._mirror.check(self._node.data_plane)}
        few = settings.own_ports < 1000 or settings.port_range == FEW_PORTS or settings.data_path.slots < 1000
        sharing = any(it.shared for it in self._node.data_plane.listening.values())
        if few or sharing or "proxy ports" in str(found["problems"]):
            return  # Who gets one of few ports or slots depends on the history.
        # A node that has ever used the kernel path keeps its rules.
        path = replace(settings.data_path, wanted=Wanted.KERNEL) if builder._ever_kernel else settings.data_path
        other = Node(settings=replace(settings, data_path=path))
        other.clock.time = self._node.clock.time
        mirror = Mirror()
        try:
            other.proxier.set_ejected(self._world.ejected)
            self._world.list(other.tracker)
            await other.settle()
            other.proxier.use(settings)
            await other.settle()
            mirror.handle(other.data_plane.sent)
            wanted = {**_served(other, other.netfilter.kernel), "engine": mirror.check(other.data_plane)}
            assert found == wanted, explained(found, wanted)
        finally:
            mirror.close()
            await other.close()


async def _let_pass(call: Call) -> Any:
    return await call()


async def _refuse(call: Call) -> Any:
    raise KernelError("no memory")


async def _refuse_length(call: Call) -> Any:
    raise TransactionTooLongError("message too long")


async def _lose_answer(call: Call) -> Any:
    await call()
    raise KernelError("timed out")


def _served(node: Node, rules: RuleSet) -> dict[str, Any]:
    """Return what clients meet, with frontends in place of their own proxy ports."""
    plane = node.data_plane
    names = {ProxyPort(it.protocol, it.port): name for name, it in plane.listening.items()}
    return {
        "listening": {name: (it.protocol, it.address) for name, it in plane.listening.items()},
        "endpoints": dict(plane.endpoints),
        "redirects": {it: names.get(ProxyPort(it.destination.protocol, port)) for it, port in rules.redirects.items()},
        **{name: {names.get(it) for it in getattr(rules, name)} for name in ("proxy_ports", "refused", "dropped")},
        **{name: getattr(rules, name) for name in ("allowed_sources", "masquerades", "spreads", "hairpins", "hooks")},
        "problems": {
            # Which of the frontends of a service port is named is left open.
            name: {re.sub(r" \((external|local)\)", "", text) for text in texts}
            for name, texts in node.diary.problems.items()
        },
        "health": dict(node.diary.health),
    }
