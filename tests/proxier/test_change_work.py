"""One change of Services or endpoints is the same work among many Services as among few."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from kubeproxy.model import Family, Protocol
from kubeproxy.netfilter.conntrack.stale_flows import Transition
from kubeproxy.netfilter.nftables.table_change import TableChange, table_change
from kubeproxy.netfilter.nftables.transaction import Table
from kubeproxy.netfilter.ruleset import RuleSet, part
from kubeproxy.proxier import NodeFacts
from kubeproxy.proxier.data_path_choice import DataPathPolicy, Wanted
from kubeproxy.proxier.port_system_calls import PortSystemCalls
from kubeproxy.proxier.settings import DEFAULTS
from kubeproxy.proxier.state import ProxierState
from kubeproxy.proxier.tracker import Tracker
from tests.proxier.builders import endpoint_slice, service
from tests.support.doubles.data_plane import FakePortReserver
from tests.support.work import Work, work_of

SOURCE = "kubernetes"
FEW, MANY = 150, 1500
ENDPOINTS = "10.0.0.1 10.0.0.2 10.0.0.3"


class Host:
    """So many Services in force, on the path that is wanted: the state, the rules, and the table in the kernel."""

    def __init__(self, services: int, wanted: Wanted) -> None:
        self.tracker = Tracker([SOURCE])
        facts = NodeFacts(forwarding=frozenset(Family))
        settings = replace(DEFAULTS, facts=facts, data_path=DataPathPolicy(wanted))
        self.state = ProxierState(PortSystemCalls(FakePortReserver()), settings)
        names = [f"s{number}" for number in range(services)]
        self.tracker.replace_slices(SOURCE, [endpoint_slice(name, ENDPOINTS) for name in names])
        self.tracker.replace_services(SOURCE, [self.service(number) for number in range(services)])
        self._step()
        self.rules: RuleSet = self.state.rules.ruleset()
        self.state.applied(self.state.rules.generation)
        self._step()
        self.table = Table.of(self.rules)
        self.new = services

    @staticmethod
    def service(number: int):  # type: ignore[no-untyped-def]
        return service(f"s{number}", f"10.{100 + (number >> 16)}.{number >> 8 & 255}.{number & 255}")

    def _step(self) -> None:
        self.state.absorb(self.tracker.take(self.tracker.untaken))
        while (step := self.state.next_step(16)) is not None:
            self.state.done(step, {})

    def put_in_force(self) -> TableChange:
        """One round: from the changed objects to the elements, and to the flows to look at."""
        self._step()
        self.state.problems()
        change = self.state.rules.take_change(self.rules)
        assert change is not None
        found = table_change(self.table, self.rules, change)
        assert found is not None
        before = part(self.rules, change)
        found.enter(self.table)
        self.rules.enter(change)
        Transition(before, part(self.rules, change)).families  # noqa: B018
        self.state.applied(self.state.rules.generation)
        self._step()
        return found

    def add(self) -> TableChange:
        self.tracker.put_slice(SOURCE, endpoint_slice(f"s{self.new}", ENDPOINTS))
        self.tracker.put_service(SOURCE, self.service(self.new))
        return self.put_in_force()

    def remove(self) -> TableChange:
        self.tracker.remove_service(SOURCE, self.service(self.new).name)
        return self.put_in_force()

    def change_endpoints(self) -> TableChange:
        self.tracker.put_slice(SOURCE, endpoint_slice("s7", "10.0.0.1 10.0.0.9 10.0.0.3"))
        return self.put_in_force()


@pytest.mark.parametrize("wanted", [Wanted.USERSPACE, Wanted.KERNEL])
def test_a_change_is_the_same_work_among_ten_times_as_many_services(wanted: Wanted) -> None:
    few, many = Host(FEW, wanted), Host(MANY, wanted)
    acts: list[tuple[str, Callable[[Host], TableChange]]] = [
        ("once, for what is cached", Host.add),
        ("and the same", Host.remove),
        ("one Service more", Host.add),
        ("one Service less", Host.remove),
        ("one endpoint for another", Host.change_endpoints),
    ]
    for what, act in acts:
        work: list[Work] = []
        elements: list[int] = []
        for host in (few, many):
            found, took = work_of(lambda act=act, host=host: act(host))  # type: ignore[misc]
            work.append(took)
            elements.append(len(found.elements))
        assert elements[0] == elements[1]
        if what.startswith(("once", "and")):
            continue
        assert work[1].steps <= 1.1 * work[0].steps, f"{what}: {work}"
        assert work[1].bytes <= 1.5 * work[0].bytes + 10_000, f"{what}: {work}"
    assert many.rules == many.state.rules.ruleset()
    assert {to.protocol for to, _ in many.rules.redirects} == {Protocol.TCP}
