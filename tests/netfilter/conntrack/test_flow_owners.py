"""Which frontend a flow belongs to."""

from __future__ import annotations

import socket

import pytest

from kubeproxy.model import (
    NODE_PORTS,
    Address,
    Destination,
    Family,
    FrontendName,
    Protocol,
    Scope,
    ServicePortName,
    Target,
    Traffic,
)
from kubeproxy.netfilter.conntrack.flow_owners import FlowOwners
from kubeproxy.netfilter.conntrack.flow_records import NEW, FlowRecord, records
from kubeproxy.netfilter.ruleset import RuleChange, RuleSet, Spread
from tests.netfilter.conntrack.flow_messages import flow
from tests.support.traffic import from_anywhere, from_node

PORT = ServicePortName("default", "web", "http")
ALL = FrontendName(PORT, Family.IPV4)
LOCAL = FrontendName(PORT, Family.IPV4, Scope.EXTERNAL)
NODE, POD, OTHER = Address("192.168.0.1"), Target(Address("10.3.0.2"), 8080), Target(Address("10.3.1.2"), 8080)
VIP = Destination(Address("10.96.0.10"), Protocol.TCP, 80)
NODE_PORT = Destination(NODE_PORTS[Family.IPV4], Protocol.TCP, 30080)
EXTERNAL = Destination(Address("192.0.2.1"), Protocol.TCP, 80)


def spread(*endpoints: Target) -> Spread:
    return Spread("default/web:http", endpoints, endpoints)


def one(
    destination: tuple[str, int] = ("10.96.0.10", 80), target: Target = POD, source: str = "10.2.0.2", **more: int
) -> FlowRecord:
    (found,) = records(flow((source, 50000), destination, target, **more), NEW)  # type: ignore[arg-type]
    return found


def holder(traffic: Traffic) -> FrontendName | None:
    return LOCAL if traffic == Traffic(EXTERNAL) else ALL


RULES = RuleSet(
    spreads={
        **from_anywhere({VIP: spread(POD, OTHER), NODE_PORT: spread(POD), EXTERNAL: spread(POD)}),
        **from_node({EXTERNAL: spread(POD, OTHER)}),
    },
    node_addresses=frozenset({NODE}),
    internal_sources=frozenset({"10.3.0.0/16"}),
)


@pytest.fixture
def owners() -> FlowOwners:
    made = FlowOwners(holder, lambda: frozenset({NODE}))
    made.use(RULES)
    return made


def test_flows_to_endpoints_of_spread_destinations_are_ours(owners: FlowOwners) -> None:
    assert owners.of(one()) == ALL
    assert owners.of(one(target=OTHER)) == ALL
    assert owners.of(one((NODE, 30080))) == ALL


@pytest.mark.parametrize(
    "strange",
    [
        one(("10.96.0.11", 80)),
        one(("10.96.0.10", 81)),
        one(protocol=socket.IPPROTO_UDP),
        one(target=Target(NODE, 34001)),
        one(target=Target(POD.address, 8081)),
        one((NODE, 30081)),
        one(("192.168.0.2", 30080)),
    ],
    ids=["address", "port", "protocol", "userspace path", "endpoint's port", "node port", "address of another node"],
)
def test_all_others_are_not(owners: FlowOwners, strange: FlowRecord) -> None:
    assert owners.of(strange) is None


def test_under_a_local_policy_the_client_decides(owners: FlowOwners) -> None:
    external = ("192.0.2.1", 80)
    assert owners.of(one(external)) == LOCAL
    for source in ("10.3.0.9", NODE, "127.0.0.1"):
        assert owners.of(one(external, source=source)) == ALL
    # Only clients of this node and pods are led there.
    assert owners.of(one(external, OTHER)) == ALL


def test_an_endpoint_that_has_gone_keeps_its_flows(owners: FlowOwners) -> None:
    assert owners.of(one(target=OTHER)) == ALL
    without = RuleSet(spreads={Traffic(VIP): spread(POD)}, node_addresses=RULES.node_addresses)
    owners.use(without)
    assert owners.of(one(target=OTHER)) == ALL
    owners.forget_unused()
    owners.use(RuleSet())  # the Service has gone, too
    assert owners.of(one(target=OTHER)) == ALL
    assert owners.of(one(target=Target(Address("10.3.2.2"), 8080))) is None
    owners.use(RuleSet())
    owners.forget_unused()  # no flow has been seen since
    assert owners.of(one(target=OTHER)) is None


def test_services_that_change_in_the_same_rules_are_seen() -> None:
    names = {Traffic(VIP): ALL}
    rules = RuleSet(spreads={Traffic(VIP): spread(POD)}, redirects={Traffic(VIP): 7001})
    owners = FlowOwners(names.get, frozenset)
    owners.use(rules)
    assert owners.of(one()) == ALL
    names[Traffic(VIP)] = LOCAL
    owners.use(rules)
    assert owners.of(one()) == ALL, "nothing is looked up again"
    rules.enter(RuleChange({Traffic(VIP): spread(POD)}, redirects={Traffic(VIP): 7002}))
    owners.use(rules)
    assert owners.of(one()) == LOCAL


def test_a_flow_of_no_rules_is_nobodys() -> None:
    assert FlowOwners(holder, frozenset).of(one()) is None
