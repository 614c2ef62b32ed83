"""`kubeproxy.rescue.guardian`: which silent endpoints are ejected, and what keeps the rules at work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from ipaddress import ip_address, ip_network
from typing import cast

import pytest

from kubeproxy.model import Address, Destination, Protocol, Target
from kubeproxy.netfilter.nftables.rescue_sets import RescueSets
from kubeproxy.netfilter.routing.route_watch import Lost, Prefix
from kubeproxy.rescue import dials as dials_module
from kubeproxy.rescue import flow_release, lost_routes
from kubeproxy.rescue import guardian as guardian_module
from kubeproxy.rescue.dials import DIALS_MAX
from kubeproxy.rescue.ejector import Ejector
from kubeproxy.rescue.fair_turns import Tenants
from kubeproxy.rescue.guardian import FEW, LOST_AT_ONCE, Guardian
from kubeproxy.rescue.probe import Outcome
from kubeproxy.rescue.process import RescueProcess


class Endpoints(Ejector):
    """The states of endpoints, which knows all endpoints, and dials of which the silent ones fail."""

    def __init__(self, silent: Sequence[Target], *, reason: str = "silent") -> None:
        self.silent = frozenset(silent)
        self.reason = reason
        self._ejected: list[tuple[Protocol, Target]] = []
        self.tried: list[Target] = []
        self.dialing = self.dialing_most = 0
        self.freed: list[Target] = []
        self.guardian: Guardian | None = None

    def of(self, protocol: Protocol) -> list[Target]:
        """The ejected endpoints."""
        return [target for of, target in self._ejected if of is protocol]

    @property
    def left_out(self) -> list[Target]:
        """Of TCP."""
        return self.of(Protocol.TCP)

    def knows(self, protocol: Protocol, target: Target) -> bool:
        return True

    def translates(self, destination: Destination) -> bool:
        return True

    def is_ejected(self, protocol: Protocol, target: Target) -> bool:
        return (protocol, target) in self._ejected

    async def failed(self, protocol: Protocol, target: Target, reason: str) -> None:
        assert reason == self.reason
        self._ejected.append((protocol, target))

    async def answered(self, protocol: Protocol, target: Target) -> None:
        raise AssertionError("no endpoint is probed")

    def unanswered(self, protocol: Protocol, target: Target) -> None:
        raise AssertionError("no endpoint is probed")

    def tenants(self, protocol: Protocol, target: Target) -> Tenants:
        return frozenset({"default"})

    def endpoints(self) -> Iterator[tuple[Protocol, Target]]:
        return ((protocol, it) for protocol in Protocol for it in self.silent)

    def endpoints_in(self, prefixes: Collection[Prefix]) -> list[tuple[Protocol, Target]]:
        return [
            (protocol, it)
            for protocol in Protocol
            for it in self.silent
            if any(ip_address(it.address) in prefix for prefix in prefixes)
        ]

    def due(self) -> list[tuple[Protocol, Target, Tenants]]:
        return []

    def dialed(self, protocol: Protocol, target: Target) -> None:
        raise AssertionError("no endpoint is probed")

    async def dial(self, target: Target) -> Outcome:
        self.tried.append(target)
        self.dialing += 1
        self.dialing_most = max(self.dialing_most, self.dialing)
        await asyncio.sleep(0)
        self.dialing -= 1
        return Outcome(target not in self.silent, 0.001)

    async def free(
        self, targets: Sequence[Target], protocol: Protocol, *, is_ours: Callable[[Destination], bool]
    ) -> dict[Target, list[object]]:
        assert is_ours == self.translates
        self.freed += targets
        return {}


def pods(count: int) -> list[Target]:
    return [Target(Address(f"10.0.{number // 250}.{number % 250}"), 80) for number in range(count)]


async def found_silent(
    monkeypatch: pytest.MonkeyPatch,
    endpoints: Endpoints,
    silent: Sequence[Target],
    *,
    late: bool = False,
    made: Guardian | None = None,
) -> None:
    """Have a guardian, a new one by default, find endpoints silent in one look, and finish what follows."""
    monkeypatch.setattr(dials_module, "dial", endpoints.dial)
    monkeypatch.setattr(flow_release, "delete_flows_to", endpoints.free)

    def on_crash(name: str, error: BaseException) -> None:
        raise error

    made = made or Guardian(endpoints, on_group=lambda group: None, in_force=lambda group: True, on_crash=on_crash)
    endpoints.guardian = made
    before = asyncio.all_tasks()
    made._found_silent(silent, late=late)
    while begun := asyncio.all_tasks() - before:
        await asyncio.gather(*begun)


async def test_a_few_are_ejected_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = pods(FEW)
    endpoints = Endpoints(silent=())
    await found_silent(monkeypatch, endpoints, silent)
    assert sorted(endpoints.left_out) == sorted(silent)
    assert not endpoints.tried
    assert sorted(endpoints.freed) == sorted(silent)


async def test_many_are_dialed_first_and_those_that_answer_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    found = pods(1000)
    dead = found[::10]
    endpoints = Endpoints(silent=dead)
    await found_silent(monkeypatch, endpoints, found)
    assert sorted(endpoints.left_out) == sorted(dead)
    assert sorted(endpoints.tried) == sorted(found), "each once"
    assert 1 < endpoints.dialing_most <= DIALS_MAX
    assert sorted(endpoints.freed) == sorted(found), "their clients do not wait for the dials"


async def test_one_that_a_dial_has_reached_is_not_taken_away_by_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is silent to some clients only. Their packets are sent again all the same."""
    (pod,) = pods(1)
    endpoints = Endpoints(silent=())
    await found_silent(monkeypatch, endpoints, [pod], late=True)
    made = endpoints.guardian
    assert made is not None
    assert endpoints.tried == [pod]
    for _ in range(3):
        await found_silent(monkeypatch, endpoints, [pod], made=made)
    assert not endpoints.left_out
    assert endpoints.freed == [pod] * 4


async def test_a_late_look_ejects_none_without_a_dial(monkeypatch: pytest.MonkeyPatch) -> None:
    well, dead = pods(2)
    endpoints = Endpoints(silent=[dead])
    await found_silent(monkeypatch, endpoints, [well, dead], late=True)
    assert endpoints.left_out == [dead]
    assert sorted(endpoints.tried) == sorted([well, dead])


class Works:
    """A process that works, and a set of the rules that counts its renewals."""

    well = True
    group = 1

    def __init__(self) -> None:
        self.renewed = 0

    def renew_alive(self) -> None:
        self.renewed += 1

    def remove_alive(self) -> None:
        raise AssertionError("it works")


async def test_rules_that_are_made_anew_are_kept_alive_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that makes the table anew leaves the set empty that keeps the rescue at work."""
    monkeypatch.setattr(guardian_module, "RENEW_S", 1e9)
    works, programmed_at = Works(), 1.0
    guardian = Guardian(
        Endpoints(silent=()),
        on_group=lambda group: None,
        in_force=lambda group: True,
        on_crash=lambda task, error: None,
        programmed_at=lambda: programmed_at,
    )
    guardian._elements = cast(RescueSets, works)
    guardian._process = cast(RescueProcess, works)
    keeping = asyncio.create_task(guardian._keep_alive())
    async with asyncio.timeout(30):
        while works.renewed == 0:
            await asyncio.sleep(0.01)
        programmed_at = 2.0
        while works.renewed == 1:
            await asyncio.sleep(0.01)
    keeping.cancel()
    assert works.renewed == 2


def guardian_of(endpoints: Endpoints, crashes: list[BaseException]) -> Guardian:
    """A guardian with rules that are in force, and the place for what its tasks end by."""
    return Guardian(
        endpoints,
        on_group=lambda group: None,
        in_force=lambda group: True,
        on_crash=lambda task, error: crashes.append(error),
    )


class Routes:
    """Routes of which some go, once."""

    def __init__(self, gone: str, *, notified: bool) -> None:
        self._gone = ip_network(gone)
        self._lost = Lost({self._gone} if notified else set(), more=not notified)

    def look(self) -> Lost:
        lost, self._lost = self._lost, Lost(set(), more=False)
        return lost

    def has_route(self, address: Address) -> bool:
        return ip_address(address) not in self._gone

    def close(self) -> None:
        pass


@pytest.mark.parametrize("notified", [True, False])
@pytest.mark.parametrize("count", [2, 3 * LOST_AT_ONCE])
async def test_endpoints_without_a_route_are_ejected_however_many(
    monkeypatch: pytest.MonkeyPatch, count: int, notified: bool
) -> None:
    lost, left = pods(count), [Target(Address("10.9.9.9"), 80)]
    endpoints = Endpoints(silent=[*lost, *left], reason="unreachable")
    routes = Routes("10.0.0.0/16", notified=notified)
    monkeypatch.setattr(dials_module, "dial", endpoints.dial)
    monkeypatch.setattr(flow_release, "delete_flows_to", endpoints.free)
    monkeypatch.setattr(guardian_module, "RouteWatch", lambda: routes)
    monkeypatch.setattr(guardian_module, "has_route", routes.has_route)
    monkeypatch.setattr(lost_routes, "without_route", lambda them: {it for it in them if not routes.has_route(it)})
    crashes: list[BaseException] = []
    guardian = guardian_of(endpoints, crashes)
    watching = asyncio.create_task(guardian._watch_routes())
    async with asyncio.timeout(30):
        while len(endpoints.of(Protocol.TCP)) < count or len(endpoints.of(Protocol.UDP)) < count:
            guardian._dials.next()  # as the probes do
            await asyncio.sleep(0.01)
    watching.cancel()
    assert sorted(endpoints.of(Protocol.TCP)) == sorted(endpoints.of(Protocol.UDP)) == sorted(lost)
    assert not set(endpoints.tried) & set(left), "its route is found"
    assert endpoints.dialing_most <= DIALS_MAX
    assert not crashes


async def test_an_endpoint_with_another_route_is_taken_for_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A default route that goes and comes back has lost nothing; and a policy may keep this node away."""
    lost = pods(3)
    endpoints = Endpoints(silent=lost, reason="silent")
    monkeypatch.setattr(dials_module, "dial", endpoints.dial)
    monkeypatch.setattr(guardian_module, "has_route", lambda address: True)
    crashes: list[BaseException] = []
    guardian = guardian_of(endpoints, crashes)
    guardian._have_lost([(protocol, target) for protocol in Protocol for target in lost])
    async with asyncio.timeout(30):
        while len(endpoints.left_out) < len(lost):
            await asyncio.sleep(0.01)
    assert not endpoints.of(Protocol.UDP)
    assert not crashes
