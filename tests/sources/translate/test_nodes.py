"""Translation of Nodes: recorded ones, and every wrong value."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from kubeproxy.kubernetes import api_types
from kubeproxy.kubernetes.invalid_field import Fault
from kubeproxy.model import Address, Node
from kubeproxy.sources import translate
from tests.support.apiserver.recordings import exchange, stream

ADDRESSES = (Address("10.9.0.11"), Address("fd00:9::11"), Address("203.0.113.11"))
PODS = ("10.1.0.0/24", "fd00:1::/64")
MOVED = (Address("10.9.0.12"), Address("203.0.113.11"))


def translated(item: object) -> tuple[Node | None, list[Fault]]:
    return translate.node(msgspec.json.decode(msgspec.json.encode(item), type=api_types.Node))


def node(*addresses: tuple[str | None, str | None], **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "node-a", **metadata},
        "status": {"addresses": [{"type": kind, "address": address} for kind, address in addresses]},
    }


@pytest.mark.parametrize("version", ["v1.36", "v1.20"])
def test_a_recorded_node(version: str) -> None:
    recorded = exchange(f"{version}/node/list-own.json")
    assert recorded is not None
    (item,) = recorded.json["items"]
    uid = item["metadata"]["uid"]
    assert translated(item) == (
        Node(
            name="node-a",
            addresses=ADDRESSES,
            zone="zone-a",
            uid=uid,
            pod_cidrs=tuple(item["spec"]["podCIDRs"]),
        ),
        [],
    )


@pytest.mark.parametrize(
    ("spec", "found", "faults"),
    [
        ({"podCIDR": "10.3.1.0/24"}, ("10.3.1.0/24",), []),
        (
            {"podCIDR": "10.3.1.0/24", "podCIDRs": ["10.3.1.0/24", "fd00:3::/64"]},
            ("10.3.1.0/24", "fd00:3::/64"),
            [],
        ),
        ({"podCIDRs": []}, (), []),
        ({"podCIDRs": ["10.3.1.0/24", "x"]}, ("10.3.1.0/24",), ["spec.podCIDRs[1]"]),
    ],
)
def test_the_blocks_of_its_pods(spec: dict[str, Any], found: tuple[str, ...], faults: list[str]) -> None:
    result, seen = translated({**node(), "spec": spec})
    assert result is not None
    assert result.pod_cidrs == found
    assert [fault.path for fault in seen] == faults


def test_a_recorded_node_with_a_deletion_taint() -> None:
    recorded = exchange("v1.36/node/get-tainted-deleting.json")
    assert recorded is not None
    uid = recorded.json["metadata"]["uid"]
    wanted = Node(name="node-a", addresses=MOVED, zone="zone-b", eligible=False, uid=uid, pod_cidrs=PODS)
    assert translated(recorded.json) == (wanted, [])


def test_the_recorded_changes_of_a_node() -> None:
    events = [msgspec.json.decode(line) for line in stream("v1.36/watch/own-node.ndjson").lines]
    seen = [(event["type"], translated(event["object"])[0]) for event in events if event["type"] != "BOOKMARK"]
    wanted = [
        ("MODIFIED", ADDRESSES, "zone-a", True),
        ("MODIFIED", ADDRESSES, "zone-b", True),
        ("MODIFIED", ADDRESSES, "zone-b", False),
        *[("MODIFIED", MOVED, "zone-b", False)] * 3,
        ("DELETED", MOVED, "zone-b", False),
        ("ADDED", (), "zone-a", True),
        ("MODIFIED", ADDRESSES, "zone-a", True),
    ]
    assert [(kind, replace(found, uid="", pod_cidrs=())) for kind, found in seen if found is not None] == [
        (kind, Node("node-a", addresses, zone, eligible)) for kind, addresses, zone, eligible in wanted
    ]
    assert all(found is not None and found.uid for _, found in seen)


def test_internal_addresses_come_first_and_each_once() -> None:
    item = node(
        ("Hostname", "node-a"),
        ("ExternalIP", "203.0.113.1"),
        ("InternalIP", "2001:DB8:0::1"),
        ("InternalIP", "192.0.2.1"),
        ("InternalDNS", "node-a.example"),
        ("ExternalIP", "192.0.2.1"),
    )
    assert translated(item) == (
        Node(name="node-a", addresses=(Address("2001:db8::1"), Address("192.0.2.1"), Address("203.0.113.1"))),
        [],
    )


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("node-a", "'node-a' is no plain IP address"),
        ("", "'' is no plain IP address"),
        (None, "missing is no plain IP address"),
        ("fe80::1%eth0", "'fe80::1%eth0' is no plain IP address"),
        ("0.0.0.0", "0.0.0.0 is the unspecified address, no InternalIP"),
        ("ff02::1", "ff02::1 is a multicast or broadcast address, no InternalIP"),
        ("169.254.0.1", "169.254.0.1 is a link-local address, no InternalIP"),
    ],
)
def test_a_wrong_address_does_not_affect_the_others(address: str | None, message: str) -> None:
    item = node(("InternalIP", address), ("InternalIP", "192.0.2.1"))
    assert translated(item) == (
        Node(name="node-a", addresses=(Address("192.0.2.1"),)),
        [Fault("status.addresses[0].address", message)],
    )


@pytest.mark.parametrize(
    ("taints", "eligible"),
    [
        (None, True),
        ([], True),
        ([None, {}], True),
        ([{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}], True),
        ([{"key": "x"}, {"key": "ToBeDeletedByClusterAutoscaler", "effect": "PreferNoSchedule"}], False),
    ],
)
def test_taints(taints: object, eligible: bool) -> None:
    assert translated({**node(), "spec": {"taints": taints}})[0] == Node(name="node-a", eligible=eligible)


def test_a_node_that_is_being_deleted_is_not_eligible() -> None:
    found, _ = translated(node(deletionTimestamp="2026-11-20T23:40:10Z"))
    assert found == Node(name="node-a", eligible=False)


@pytest.mark.parametrize("item", [{}, {"metadata": None, "spec": None, "status": None}, {"metadata": {"name": "Ö"}}])
def test_a_node_without_a_name_is_refused(item: object) -> None:
    found, faults = translated(item)
    assert found is None
    assert [fault.path for fault in faults] == ["metadata.name"]


def test_a_node_with_only_a_name() -> None:
    assert translated({"metadata": {"name": "node-a.example", "labels": None}}) == (Node(name="node-a.example"), [])
