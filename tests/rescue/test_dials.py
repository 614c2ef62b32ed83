"""`kubeproxy.rescue.dials`: which endpoint is dialed next, and what follows."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator

import pytest

from kubeproxy.model import Address, Destination, Protocol, Target
from kubeproxy.netfilter.routing.route_watch import Prefix
from kubeproxy.rescue import dials as dials_module
from kubeproxy.rescue.dials import DIALS_MAX, Dials
from kubeproxy.rescue.ejector import Ejector
from kubeproxy.rescue.fair_turns import Tenants
from kubeproxy.rescue.probe import Outcome
from kubeproxy.rescue.protocol import Reason
from kubeproxy.runtime.tasks import TaskSet

POD = Target(Address("10.9.0.1"), 80)
"""An endpoint of a tenant that has no other."""


def silent(count: int = 1000) -> list[Target]:
    """Endpoints of another tenant, on purpose."""
    return [Target(Address(f"10.0.{number // 250}.{number % 250}"), 80) for number in range(count)]


class Endpoints(Ejector):
    """The states of endpoints that a test sets, and dials that end when the test ends them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waiting: list[Target] = []
        """Ejected and due."""
        self.aside: set[Target] = set()
        self.began: list[Target] = []
        self.open: dict[Target, asyncio.Future[Outcome]] = {}
        self.noted: list[tuple[str, Target]] = []
        self.gone: set[Target] = set()
        monkeypatch.setattr(dials_module, "dial", self.dial)
        self.tasks = TaskSet(self._on_crash)
        self.made = Dials(self, self.tasks, on_answered=lambda target, took_s: self.noted.append(("reached", target)))

    @staticmethod
    def _on_crash(name: str, error: BaseException) -> None:
        raise error

    def knows(self, protocol: Protocol, target: Target) -> bool:
        return target not in self.gone

    def translates(self, destination: Destination) -> bool:
        return True

    def is_ejected(self, protocol: Protocol, target: Target) -> bool:
        return target in self.aside

    async def failed(self, protocol: Protocol, target: Target, reason: str) -> None:
        self.noted.append((reason, target))

    async def answered(self, protocol: Protocol, target: Target) -> None:
        self.noted.append(("back", target))

    def unanswered(self, protocol: Protocol, target: Target) -> None:
        self.noted.append(("still silent", target))

    def tenants(self, protocol: Protocol, target: Target) -> Tenants:
        return frozenset({"well" if target == POD else "hostile"})

    def due(self) -> list[tuple[Protocol, Target, Tenants]]:
        return [(Protocol.TCP, target, self.tenants(Protocol.TCP, target)) for target in self.waiting]

    def dialed(self, protocol: Protocol, target: Target) -> None:
        self.waiting.remove(target)

    def endpoints(self) -> Iterator[tuple[Protocol, Target]]:
        return iter(())

    def endpoints_in(self, prefixes: Collection[Prefix]) -> list[tuple[Protocol, Target]]:
        return []

    async def dial(self, target: Target) -> Outcome:
        self.began.append(target)
        self.open[target] = asyncio.get_running_loop().create_future()
        return await self.open[target]

    async def end(self, target: Target, *, answered: bool) -> None:
        """End a dial."""
        self.open[target].set_result(Outcome(answered, 0.9))
        await self.settle()

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


async def test_a_failure_is_confirmed_although_all_dials_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else would have it dialed before the endpoint fails another client, and then as little."""
    made = Endpoints(monkeypatch)
    made.made.confirm(silent(), Reason.SILENT)
    await made.settle()
    assert len(made.began) == DIALS_MAX
    made.made.confirm([POD], Reason.REFUSED)
    await made.end(made.began[0], answered=False)
    made.made.next()  # as at each look of the guardian
    await made.settle()
    assert made.began[DIALS_MAX:] == [POD], "before those that have waited longer"
    await made.end(POD, answered=False)
    assert made.noted[-1] == ("refused", POD)
    await made.tasks.close()


async def test_an_ejected_endpoint_is_dialed_although_others_fill_the_dials(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Endpoints(monkeypatch)
    made.waiting = silent(500)
    made.made.next()
    made.made.confirm(silent()[500:], Reason.SILENT)
    await made.settle()
    made.waiting.append(POD)
    await made.end(made.began[0], answered=False)
    made.made.next()
    await made.settle()
    assert made.began[DIALS_MAX:] == [POD]
    await made.end(POD, answered=True)
    assert made.noted[-2:] == [("reached", POD), ("back", POD)]
    await made.tasks.close()


async def test_what_left_while_it_waited_is_not_dialed(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Endpoints(monkeypatch)
    made.made.confirm(silent(DIALS_MAX), Reason.SILENT)
    made.made.confirm([POD], Reason.REFUSED)
    await made.settle()
    made.gone.add(POD)
    await made.end(made.began[0], answered=False)
    made.made.next()
    await made.settle()
    assert POD not in made.began
    await made.tasks.close()


async def test_one_that_was_just_reached_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Endpoints(monkeypatch)
    made.made.confirm([POD], Reason.REFUSED)
    await made.settle()
    await made.end(POD, answered=True)
    made.made.confirm([POD], Reason.REFUSED)
    await made.settle()
    assert made.began == [POD]
    assert made.noted == [("reached", POD)]


async def test_one_that_was_just_reached_is_dialed_if_its_route_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A route that goes is reported once."""
    made = Endpoints(monkeypatch)
    made.made.confirm([POD], Reason.REFUSED)
    await made.settle()
    made.made.confirm([POD], Reason.UNREACHABLE, anew=True)
    assert made.began == [POD], "not twice at once"
    await made.end(POD, answered=True)
    made.made.next()  # as at each look of the guardian
    await made.settle()
    assert made.began == [POD, POD]
    await made.end(POD, answered=False)
    assert made.noted == [("reached", POD), ("unreachable", POD)]
    await made.tasks.close()
