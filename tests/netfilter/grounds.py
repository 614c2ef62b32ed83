"""Where a history takes place: with which adapter, on a host or without a kernel, and beside which fresh start."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from difflib import unified_diff
from types import TracebackType
from typing import Any, Protocol, Self

from kubeproxy.model import Address, Destination, Traffic
from kubeproxy.model import Protocol as Transport
from kubeproxy.netfilter.interface import Feature, Netfilter
from kubeproxy.netfilter.iptables.adapter import Iptables
from kubeproxy.netfilter.nftables.adapter import Nftables
from kubeproxy.netfilter.nftables.affinity import clients_of
from kubeproxy.netfilter.nftables.elements import Batch as Elements
from kubeproxy.netfilter.nftables.execute import NftCommands
from kubeproxy.netfilter.nftables.listing import clients_in
from kubeproxy.netfilter.nftables.transaction import Table
from kubeproxy.netfilter.ruleset import RuleSet
from kubeproxy.netfilter.with_routing import WithRouting
from kubeproxy.proxier import Periods, ProxierSettings
from kubeproxy.proxier.data_path_choice import USERSPACE_ONLY
from tests.netfilter.histories import ENDPOINTS
from tests.netfilter.same_rules import canonical, explained, listed
from tests.netfilter.stage import dump, settled
from tests.support.lab import Host


class Unsent(Nftables):
    """The nftables adapter without a kernel: every transaction succeeds."""

    def __init__(self) -> None:
        super().__init__()
        self._commands = _NoCommands()
        self._watching = True

    async def why_not(self, feature: Feature) -> str | None:
        """See `Netfilter.why_not`."""
        return None

    async def _read(self, *, slots: bool = True) -> Table | None:
        return None

    async def _forget_all_but(self, name: str, addresses: frozenset[Address]) -> None:
        """Do nothing, because there are no clients."""


class _NoCommands(NftCommands):
    async def run(self, *arguments: str, commands: str = "") -> bytes:
        await asyncio.sleep(0)
        return b""

    async def change_elements(self, changes: Sequence[Elements]) -> None:
        await asyncio.sleep(0)


class Ground(Protocol):
    """Where a history takes place."""

    def settings(self, settings: ProxierSettings) -> ProxierSettings:
        """Return the settings that are possible here."""

    def begin(self) -> tuple[Any, Netfilter]:
        """Return a new adapter, and the same as the proxier uses it."""

    async def check(self, adapter: Any, rules: RuleSet) -> None:
        """Compare the rules that the adapter has written with those that a new adapter writes for the same rule set."""

    def run(self, command: str) -> None:
        """Run a command of another program."""

    def learn(self, adapter: Any, rules: RuleSet) -> None:
        """Let the kernel learn clients of Services with session affinity."""


class NoKernel:
    """The nftables adapter alone, with what it believes to be in the kernel."""

    def settings(self, settings: ProxierSettings) -> ProxierSettings:
        """See `Ground.settings`."""
        return settings

    def begin(self) -> tuple[Unsent, Netfilter]:
        """See `Ground.begin`."""
        adapter = Unsent()
        return adapter, adapter

    async def check(self, adapter: Unsent, rules: RuleSet) -> None:
        """See `Ground.check`."""
        if adapter._believed is not None:
            found, wanted = (canonical(it, rules) for it in (adapter._believed, Table.of(rules)))
            found["flags"] = wanted["flags"]
            assert found == wanted, explained(found, wanted)

    def run(self, command: str) -> None:
        """Do nothing, because there is nothing to change."""

    def learn(self, adapter: Unsent, rules: RuleSet) -> None:
        """Do nothing, because there is no kernel."""


class _Hosts:
    """A host for the history, which this thread has entered, and another one for fresh starts."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._other = Host("fresh")
        self._thread = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._thread.shutdown()
        self._other.close()

    def run(self, command: str) -> None:
        """See `Ground.run`. The command may fail."""
        self._host.run(["nft", *command.split()], check=False)

    async def _fresh(self, make: Callable[[], Awaitable[Any]]) -> Any:
        def there() -> Any:
            with self._other.entered():
                return asyncio.run(make())  # type: ignore[arg-type]

        return await asyncio.get_running_loop().run_in_executor(self._thread, there)


class NftablesHosts(_Hosts):
    """The nftables adapter on a host. Without notifications, foreign changes are found by full syncs."""

    def __init__(self, host: Host, *, notified: bool = True) -> None:
        super().__init__(host)
        self._notified = notified

    def settings(self, settings: ProxierSettings) -> ProxierSettings:
        """See `Ground.settings`."""
        return settings if self._notified else replace(settings, periods=Periods(min_sync_s=0.1))

    def begin(self) -> tuple[Nftables, Netfilter]:
        """See `Ground.begin`."""
        adapter = Nftables()
        adapter._watching = not self._notified
        return adapter, WithRouting(adapter)

    async def check(self, adapter: Nftables, rules: RuleSet) -> None:
        """See `Ground.check`."""

        async def make() -> tuple[Table | None, dict[str, Any]]:
            other = Nftables()
            try:
                await other.cleanup()
                await other.apply(rules, verify=True)
                return await other._read(), listed(self._other, rules)
            finally:
                await other.close()

        have, (wanted, wanted_list) = await adapter._read(), await self._fresh(make)
        assert have is not None
        assert have.sound
        assert adapter._believed is None or adapter._believed == have
        found, wanted = (canonical(it, rules) for it in (have, wanted))
        assert found == wanted, explained(found, wanted)
        found_list = listed(self._host, rules)
        assert found_list == wanted_list, explained(found_list, wanted_list)
        for name, addresses in clients_of(rules.spreads).items():
            known = clients_in(await adapter._commands.read(lambda reader, name=name: reader.map(name)))  # type: ignore[misc]
            # Without an endpoint nothing leads to the map, and its clients are forgotten when endpoints come.
            assert not addresses or set(known.values()) <= addresses, (
                f"clients in {name} stay with an endpoint that left"
            )

    def learn(self, adapter: Nftables, rules: RuleSet) -> None:
        """See `Ground.learn`. The kernel does so without a notification."""
        if adapter._believed is None or (adapter._watch is not None and adapter._watch.look()):
            return
        lines = [
            f"add element inet kubeproxy {name} {{ {_client_of(address)} timeout 60s : {address} }}\n"
            for name, addresses in clients_of(rules.spreads).items()
            for address in sorted(addresses)
        ]
        self._host.run(["nft", "-f", "-"], input="".join(lines))
        if adapter._watch is not None:
            adapter._watch.look()


def _client_of(endpoint: Address) -> str:
    number = ENDPOINTS.index(endpoint) + 1
    return f"2001:db8::{number}" if ":" in endpoint else f"203.0.113.{number}"


class IptablesHosts(_Hosts):
    """The iptables adapter on a host. It has no kernel path."""

    def settings(self, settings: ProxierSettings) -> ProxierSettings:
        """See `Ground.settings`."""
        return replace(settings, data_path=USERSPACE_ONLY, rescue_group=None, periods=Periods(min_sync_s=0.1))

    def begin(self) -> tuple[Iptables, Netfilter]:
        """See `Ground.begin`."""
        adapter = Iptables()
        return adapter, WithRouting(adapter)

    async def check(self, adapter: Iptables, rules: RuleSet) -> None:
        """See `Ground.check`."""

        # The chains of a family stay, once it has had a Service.
        saved = {it: self._host.run([f"{it}-legacy-save"]).stdout for it in ("iptables", "ip6tables")}
        ever = [place for it, place in _EVERY_FAMILY.items() if "KUBE-" in saved[it]]

        async def make() -> None:
            other = Iptables()
            try:
                await other.cleanup()
                await other.apply(replace(rules, redirects={**rules.redirects, **dict.fromkeys(ever, 1)}), verify=True)
                await other.apply(rules, verify=False)
            finally:
                await other.close()

        await self._fresh(make)
        found, wanted = (settled(dump(it)) for it in (self._host, self._other))
        assert found == wanted, "\n".join(unified_diff(wanted.splitlines(), found.splitlines(), n=0))

    def run(self, command: str) -> None:
        """See `Ground.run`. Some rules are deleted whatever the command is."""
        table = "nat" if "map" in command or "chain" in command else "filter"
        self._host.run(["iptables-legacy", "-w", "-t", table, "-F"], check=False)

    def learn(self, adapter: Iptables, rules: RuleSet) -> None:
        """Do nothing, because the adapter has no session affinity."""


_EVERY_FAMILY = {
    "iptables": Traffic(Destination(Address("203.0.113.99"), Transport.TCP, 1)),
    "ip6tables": Traffic(Destination(Address("2001:db8::99"), Transport.TCP, 1)),
}
