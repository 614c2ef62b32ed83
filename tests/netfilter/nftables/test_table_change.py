"""Spreads in a real kernel: changes of elements by netlink, and what happens when the kernel refuses one."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from kubeproxy.model import Address, Destination, Family, Origin, Protocol, Target, Traffic
from kubeproxy.model.errors import KernelError
from kubeproxy.netfilter.interface import Feature
from kubeproxy.netfilter.nftables import transaction
from kubeproxy.netfilter.nftables.adapter import Nftables
from kubeproxy.netfilter.nftables.execute import TransactionTooLongError
from kubeproxy.netfilter.nftables.reading import TableReader
from kubeproxy.netfilter.nftables.transaction import Table
from kubeproxy.netfilter.ruleset import Masquerade, ProxyPort, RuleChange, RuleSet, Spread
from tests.netfilter.stage import destination, node_port, rule_set
from tests.support.lab import Host
from tests.support.rule_changes import change_between, changeable

pytestmark = pytest.mark.netns

WEB = destination("10.96.0.1", Protocol.TCP)
DNS6 = destination("fd96::1", Protocol.UDP, 53)
NODE_PORT = node_port(Family.IPV4, Protocol.TCP, 30080)
FOUR = tuple(Target(Address(f"10.0.0.{number}"), 8080 + number % 2) for number in range(1, 5))
SIX = tuple(Target(Address(f"fd00::{number}"), 5353) for number in range(1, 4))
RULES = replace(
    rule_set({WEB: 7001, DNS6: 7002, NODE_PORT: 7001}, own={NODE_PORT: 7003}, node_addresses=("10.2.0.1",)),
    spreads={
        Traffic(WEB): Spread("default/web:http", FOUR, FOUR, 60),
        Traffic(NODE_PORT): Spread("default/web:http", FOUR[:2], FOUR[:2], 60),
        Traffic(NODE_PORT, Origin.NODE): Spread("default/web:http", FOUR, FOUR, 60),
        Traffic(DNS6): Spread("kube-system/dns", SIX, SIX),
    },
    masquerades={WEB: Masquerade.OUTSIDE, NODE_PORT: Masquerade.NODE},
    hairpins={FOUR[0].address, SIX[0].address},
    hooks={destination("10.0.0.1", Protocol.TCP, 10258)},
    hook_port=34567,
)


@pytest.fixture
def host() -> Iterator[Host]:
    """A host without rules; this thread is on it."""
    with Host("rules") as host, host.entered():
        yield host


@contextlib.asynccontextmanager
async def adapter(**settings: str) -> AsyncIterator[Nftables]:
    """An adapter that keeps to this thread's host."""
    nftables = Nftables(**settings)  # type: ignore[arg-type]
    try:
        yield nftables
    finally:
        await nftables.close()


async def read(nftables: Nftables) -> Table:
    """The table in the kernel."""
    found = await nftables._read()
    assert found is not None
    return found


async def test_the_kernel_has_what_was_applied_and_a_second_adapter_finds_nothing_to_do(host: Host) -> None:
    async with adapter() as first, adapter() as second:
        await first.probe(Feature.SPREADS)
        assert await first.apply(RULES, verify=True)
        assert await read(first) == Table.of(RULES)
        assert not await second.apply(RULES, verify=True)
        without = replace(RULES, spreads={}, masquerades={}, hairpins=set())
        assert await second.apply(without, verify=False)
        assert await read(second) == Table.of(without)


async def test_many_first_slots_are_in_the_kernel_before_the_rules_that_draw_them(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kubeproxy.netfilter.nftables.adapter._APART", 1)
    async with adapter() as nftables, adapter() as second:
        texts: list[str] = []
        run = nftables._commands.run

        async def refused_once(*arguments: str, commands: str = "") -> bytes:
            if commands:
                texts.append(commands)
                if len(texts) == 2:
                    raise KernelError("no more memory")
            return await run(*arguments, commands=commands)

        monkeypatch.setattr(nftables._commands, "run", refused_once)
        assert await nftables.apply(RULES, verify=False)
        creation, refused, again = texts
        assert "add map" in creation
        assert "redirects" in refused
        assert "add element inet kubeproxy tcp_slots4" not in refused
        assert again == refused, "the slots are added again, which changes nothing"
        assert await read(second) == Table.of(RULES)
        assert nftables._believed == Table.of(RULES), "every part was ours"
        await nftables.cleanup()
        begun = len(texts)
        assert await nftables.apply(RULES, verify=True)
        assert not any("add element inet kubeproxy tcp_slots4" in text for text in texts[begun:])
        assert not await second.apply(RULES, verify=True)


@pytest.mark.parametrize("apart", [1, 1000])
async def test_slots_that_no_rule_draws_stay_until_they_are_in_the_way(
    host: Host, monkeypatch: pytest.MonkeyPatch, apart: int
) -> None:
    monkeypatch.setattr("kubeproxy.netfilter.nftables.adapter._APART", apart)
    without = replace(RULES, spreads={}, masquerades={}, hairpins=set())
    async with adapter() as first, adapter() as second, adapter() as third:
        await first.apply(without, verify=True)
        strange = "".join(f"{WEB.address} . {WEB.port} . {number} : 10.9.9.9 . 9, " for number in (1, 99))
        host.run(["nft", "-f", "-"], input=f"add element inet kubeproxy tcp_slots4 {{ {strange} }}")
        assert await read(second) == Table.of(without)
        assert not await second.apply(without, verify=True)
        assert await second.apply(RULES, verify=True)
        assert await read(third) == Table.of(RULES)
        assert "10.9.9.9" not in host.run(["nft", "list", "map", "inet", "kubeproxy", "tcp_slots4"]).stdout


async def test_other_endpoints_leave_the_table_of_the_new_rules(host: Host) -> None:
    async with adapter() as nftables:
        assert not await nftables.change(RuleChange({Traffic(WEB): None})), "nothing is known of the kernel"
        await nftables.apply(RULES, verify=True)
        fewer = {
            Traffic(WEB): replace(RULES.spreads[Traffic(WEB)], targets=FOUR[1:]),
            Traffic(DNS6): replace(RULES.spreads[Traffic(DNS6)], targets=()),
        }
        assert await nftables.change(RuleChange(fewer))
        after = replace(RULES, spreads={**RULES.spreads, **fewer})
        believed = nftables._believed
        assert believed is not None
        assert await read(nftables) == believed
        assert not await nftables.apply(after, verify=True) or await read(nftables) == Table.of(after, after=believed)
        assert await nftables.change(RuleChange({Traffic(WEB): RULES.spreads[Traffic(WEB)]}))
        assert {FOUR[0]} <= set((await read(nftables)).slots[Traffic(WEB)].targets)


async def test_other_affinity_and_the_last_of_a_kind_take_complete_rules(host: Host) -> None:
    web, others = RULES.spreads[Traffic(WEB)], {to: it for to, it in RULES.spreads.items() if it.targets == SIX}
    async with adapter() as nftables:
        rules = changeable(RULES)
        await nftables.apply(rules, verify=True)
        for complete in (
            RuleChange({Traffic(WEB): replace(web, affinity_timeout_s=5)}),
            RuleChange({Traffic(WEB): replace(web, affinity_timeout_s=None)}),
            RuleChange({Traffic(WEB): replace(web, service_port="default/other:http")}),
            RuleChange({Traffic(WEB): None}, redirects={Traffic(WEB): None}),
            RuleChange(redirects={Traffic(NODE_PORT, Origin.NODE): None}),
            RuleChange(masquerades={NODE_PORT: None}),
        ):
            assert not await nftables.change(complete), complete
        rules = replace(rules, spreads=others)
        await nftables.apply(rules, verify=True)
        empty = RuleChange({to: replace(it, targets=(), endpoints=()) for to, it in others.items()})
        assert await nftables.change(empty)
        rules.enter(empty)
        assert not await nftables.change(RuleChange(dict.fromkeys(others), redirects={Traffic(DNS6): None}))


async def test_every_kind_of_element_is_in_the_kernel_as_the_program_nft_has_it(host: Host) -> None:
    """Families, protocols, node ports, ways of this node, affinity, comments; endpoints come, go and are replaced."""
    spreads, redirects = {}, {}
    for protocol in (Protocol.TCP, Protocol.UDP):
        for timeout_s in (None, 60):
            for number, (place, targets) in enumerate(
                (
                    (destination("10.96.0.9", protocol, 80 + (timeout_s or 0)), FOUR),
                    (destination("fd96::9", protocol, 80 + (timeout_s or 0)), SIX),
                    (node_port(Family.IPV4, protocol, 30080 + (timeout_s or 0)), FOUR),
                    (node_port(Family.IPV6, protocol, 30080 + (timeout_s or 0)), SIX),
                )
            ):
                name = f"default/{protocol}-{timeout_s}-{number}:http"
                for origin in Origin:
                    spreads[Traffic(place, origin)] = Spread(name, targets, targets, timeout_s)
                    redirects[Traffic(place, origin)] = 7001 + origin
    rules = RuleSet(redirects=redirects, spreads=spreads)

    def with_targets(targets: Callable[[tuple[Target, ...]], tuple[Target, ...]]) -> dict[Traffic, Spread | None]:
        return {each: replace(it, targets=targets(it.targets)) for each, it in spreads.items()}

    async with adapter() as nftables:
        await nftables.apply(rules, verify=True)
        for choose in (
            lambda known: known[1:],
            lambda known: (*known[:-1], replace_address(known[-1])),
            lambda known: (),
            lambda known: known,
        ):
            changes = with_targets(choose)
            assert await nftables.change(RuleChange(changes))
            assert await read(nftables) == nftables._believed
        moved = {FOUR[0].address: True, SIX[0].address: True}
        assert await nftables.change(RuleChange(hairpins=moved))
        assert await read(nftables) == nftables._believed
        assert await nftables.change(RuleChange(hairpins=dict.fromkeys(moved, False)))
        hooks = {destination(address, Protocol.TCP, 10258): True for address in ("10.0.0.2", "fd00::2")}
        assert await nftables.change(RuleChange(hooks={**dict.fromkeys(RULES.hooks, False), **hooks}))
        assert await read(nftables) == nftables._believed
        assert set().union(*(nftables._believed.sets[name] for name in ("hooks4", "hooks6"))) == set(hooks)
        gone = {traffic: None for traffic, it in spreads.items() if it.affinity_timeout_s is None}
        assert await nftables.change(RuleChange(gone))
        assert await read(nftables) == nftables._believed


def replace_address(target: Target) -> Target:
    """Another endpoint with the same port."""
    return target._replace(address=Address(f"{target.address}9"))


async def test_services_come_and_go_without_the_program(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both families, protocols, node ports, ways of this node, masquerading, refusals and drops."""

    def services(*numbers: int) -> RuleSet:
        redirects: dict[Traffic, int] = {}
        spreads: dict[Traffic, Spread] = {}
        masquerades: dict[Destination, Masquerade] = {}
        for number, protocol in product(numbers, (Protocol.TCP, Protocol.UDP)):
            port = 10_000 + 2 * number + (protocol is Protocol.UDP)
            for place, targets in (
                (destination(f"10.96.1.{number}", protocol), FOUR),
                (destination(f"fd96::1:{number}", protocol), SIX),
                (node_port(Family.IPV4, protocol, 30080 + number), FOUR),
                (node_port(Family.IPV6, protocol, 30080 + number), SIX),
            ):
                endpoints = targets[number % 3 :] if number % 4 else ()
                for origin in Origin:
                    redirects[Traffic(place, origin)] = port
                    spreads[Traffic(place, origin)] = Spread(f"default/web-{number}:x", endpoints, endpoints)
                masquerades[place] = Masquerade.NODE if number % 2 else Masquerade.OUTSIDE
        ports = {port: ProxyPort((Protocol.TCP, Protocol.UDP)[port % 2], port) for port in redirects.values()}
        empty = [it for port, it in ports.items() if not (port - 10_000) // 2 % 4]
        return RuleSet(
            redirects=redirects,
            spreads=spreads,
            masquerades=masquerades,
            proxy_ports=set(ports.values()),
            refused={*empty[::2]},
            dropped={*empty[1::2]},
            node_addresses=frozenset({Address("10.2.0.1"), Address("fd00:2::1")}),
            hairpins={it.address for it in FOUR[: len(numbers) % 3]},
        )

    async with adapter() as nftables:
        rules = services(1, 2, 3, 4)
        await nftables.apply(rules, verify=True)

        async def refuse(*arguments: str, commands: str = "") -> bytes:
            raise AssertionError(f"nft {arguments}: {commands}")

        monkeypatch.setattr(nftables._commands, "run", refuse)
        for numbers in ((1, 2, 3, 4, 5, 8), (2, 3, 5, 7), (3, 4, 6, 9), (3, 4), (1, 2, 3, 4)):
            change = change_between(rules, services(*numbers))
            assert await nftables.change(change)
            rules.enter(change)
            assert rules == services(*numbers)
            believed = nftables._believed
            assert believed is not None
            assert await read(nftables) == believed
            assert believed == Table.of(rules, after=believed) or {*Table.of(rules).chains} < {*believed.chains}
            assert not await nftables.apply(rules, verify=True)
        monkeypatch.undo()


async def test_ten_thousand_changes_are_one_transaction(host: Host) -> None:
    """More than a message holds, and more than a socket has room for by default."""
    places = [destination(f"10.97.{number >> 8}.{number & 255}", Protocol.TCP) for number in range(10_000)]
    spread = Spread("default/web:http", FOUR, FOUR)
    traffic = [Traffic(place) for place in places]
    rules = replace(rule_set(dict.fromkeys(places, 7001)), spreads=dict.fromkeys(traffic, spread))
    async with adapter() as nftables:
        await nftables.apply(rules, verify=True)
        assert nftables._watch is not None
        assert await nftables.change(RuleChange(dict.fromkeys(traffic, replace(spread, targets=FOUR[1:]))))
        believed = nftables._believed
        assert believed is not None, "the kernel's notifications count one transaction, which is ours"
        async with asyncio.timeout(30):
            while await read(nftables) != believed:  # a listing lacks elements while the kernel resizes the map
                await asyncio.sleep(0.05)


async def test_a_number_of_endpoints_that_is_new_costs_one_program_and_its_neighbours_none(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    spread = Spread("default/web:http", FOUR, FOUR)
    seven = tuple(Target(Address(f"10.0.1.{number}"), 80) for number in range(7))
    async with adapter() as nftables:
        await nftables.apply(replace(rule_set({WEB: 7001}), spreads={Traffic(WEB): spread}), verify=True)
        programs: list[tuple[str, ...]] = []
        run = nftables._commands.run

        async def counted(*arguments: str, commands: str = "") -> bytes:
            programs.append(arguments)
            return await run(*arguments, commands=commands)

        monkeypatch.setattr(nftables._commands, "run", counted)
        for targets, expected in ((FOUR[:3], 0), (seven, 1), (seven[:6], 0), (FOUR, 0), (seven, 0)):
            programs.clear()
            assert await nftables.change(
                RuleChange({Traffic(WEB): replace(spread, targets=targets, endpoints=targets)})
            )
            assert len(programs) == expected, f"{len(targets)} endpoints"
        assert await read(nftables) == nftables._believed


async def test_rules_that_the_adapter_has_applied_are_not_compared_again(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with adapter() as nftables:
        rules = replace(RULES, spreads=dict(RULES.spreads))
        await nftables.apply(rules, verify=True)
        fewer: dict[Traffic, Spread | None] = {Traffic(WEB): replace(RULES.spreads[Traffic(WEB)], targets=FOUR[1:])}
        assert await nftables.change(RuleChange(fewer))
        rules.spreads[Traffic(WEB)] = replace(RULES.spreads[Traffic(WEB)], targets=FOUR[1:])
        compared: list[RuleSet] = []
        transition = transaction.transition

        def recorded(have: Table | None, wanted: RuleSet, *, apart: int | None = None) -> transaction.Transition:
            compared.append(wanted)
            return transition(have, wanted, apart=apart)

        monkeypatch.setattr(transaction, "transition", recorded)
        assert not await nftables.apply(rules, verify=True)
        assert not compared
        host.run(["nft", "flush", "map", "inet", "kubeproxy", "udp_slots6"])
        assert await nftables.apply(rules, verify=True), "another program has changed them"
        assert compared
        assert await read(nftables) == nftables._believed


async def test_a_change_by_another_program_between_chain_and_elements_is_not_forgotten(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    seven = tuple(Target(Address(f"10.0.1.{number}"), 80) for number in range(7))
    more = {Traffic(WEB): Spread("default/web:http", seven, seven)}
    async with adapter() as nftables:
        await nftables.apply(
            replace(rule_set({WEB: 7001}), spreads={Traffic(WEB): Spread("w", FOUR, FOUR)}), verify=True
        )
        transact = nftables._transact

        async def followed(commands: str) -> None:
            await transact(commands)
            host.run(["nft", "flush", "map", "inet", "kubeproxy", "redirects4"])
            nftables._notice()

        monkeypatch.setattr(nftables, "_transact", followed)
        assert await nftables.change(RuleChange(more))
        assert nftables._believed is None
        monkeypatch.undo()
        wanted = replace(rule_set({WEB: 7001}), spreads=more)
        assert await nftables.apply(wanted, verify=True)
        assert await read(nftables) == nftables._believed


async def test_a_refused_change_is_an_error_and_leaves_the_kernel_as_it_was(host: Host) -> None:
    async with adapter() as nftables:
        await nftables.apply(RULES, verify=True)
        believed = nftables._believed
        assert believed is not None
        host.run(["nft", "flush", "map", "inet", "kubeproxy", "udp_slots6"])
        nftables._believed = believed  # as if the kernel had not notified yet
        nftables._notice = lambda: None  # type: ignore[method-assign]
        with pytest.raises(KernelError, match="nf_tables refuses"):
            await nftables.change(RuleChange({Traffic(DNS6): replace(RULES.spreads[Traffic(DNS6)], targets=SIX[:1])}))
        assert await nftables.apply(RULES, verify=True)
        assert await read(nftables) == Table.of(RULES)


async def test_a_change_is_an_error_without_the_privilege(host: Host) -> None:
    """The reason says what is missing. The next full transaction repeats the change."""
    async with adapter() as nftables:
        await nftables.apply(RULES, verify=True)

        class Refusing:
            def transact(self, batches: object) -> None:
                raise PermissionError(errno.EPERM, "Operation not permitted")

            def close(self) -> None:
                """Nothing to close."""

        nftables._commands._socket = Refusing()  # type: ignore[assignment]
        with pytest.raises(KernelError, match="CAP_NET_ADMIN"):
            await nftables.change(RuleChange({Traffic(WEB): replace(RULES.spreads[Traffic(WEB)], targets=FOUR[:1])}))
        assert nftables._believed is None


async def test_a_change_that_is_too_long_for_the_socket_is_left_to_the_program(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a user namespace, where the socket stays small."""

    async def too_long(changes: object) -> None:
        raise TransactionTooLongError("Message too long")

    fewer = {Traffic(DNS6): replace(RULES.spreads[Traffic(DNS6)], targets=SIX[1:])}
    async with adapter() as nftables:
        await nftables.apply(RULES, verify=True)
        with monkeypatch.context() as patched:
            patched.setattr(nftables._commands, "change_elements", too_long)
            assert not await nftables.change(RuleChange(fewer))
        assert await read(nftables) == nftables._believed
        assert await nftables.apply(replace(RULES, spreads={**RULES.spreads, **fewer}), verify=False)
        assert await read(nftables) == nftables._believed


@pytest.mark.parametrize("learned_anew", [False, True])
async def test_clients_of_an_endpoint_that_left_are_released(
    host: Host, learned_anew: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the kernel learns one of them anew after the clients have been read; that one keeps its endpoint."""
    name = "clients4-default/web/http-8081"
    async with adapter() as nftables:
        await nftables.apply(RULES, verify=True)
        commands, read = nftables._commands, nftables._commands.read

        def change(verb: str, elements: str) -> None:
            host.run(["nft", verb, "element", "inet", "kubeproxy", name, f"{{ {elements} }}"])
            assert nftables._watch is not None
            nftables._watch.look()  # the kernel adds clients without a notification

        async def read_and_learn(what: Callable[[TableReader], Any]) -> Any:
            found = await read(what)
            if learned_anew:
                monkeypatch.undo()
                change("delete", "10.9.9.9")
                change("add", "10.9.9.9 timeout 60s : 10.0.0.3")
            return found

        change("add", "10.9.9.9 timeout 60s : 10.0.0.1, 10.9.9.7 timeout 60s : 10.0.0.1")
        change("add", "10.9.9.8 timeout 60s : 10.0.0.3")
        monkeypatch.setattr(commands, "read", read_and_learn)
        left = replace(RULES.spreads[Traffic(WEB)], targets=FOUR[1:])
        own = replace(RULES.spreads[Traffic(NODE_PORT, Origin.NODE)], targets=FOUR[1:])
        port = replace(RULES.spreads[Traffic(NODE_PORT)], targets=FOUR[1:2])
        changes = {Traffic(WEB): left, Traffic(NODE_PORT): port, Traffic(NODE_PORT, Origin.NODE): own}
        assert await nftables.change(RuleChange(changes))
        listed = json.loads(host.run(["nft", "-j", "list", "map", "inet", "kubeproxy", name]).stdout)
        clients = {element["elem"]["val"]: endpoint for element, endpoint in listed["nftables"][1]["map"]["elem"]}
        assert clients == {"10.9.9.8": "10.0.0.3", **({"10.9.9.9": "10.0.0.3"} if learned_anew else {})}
