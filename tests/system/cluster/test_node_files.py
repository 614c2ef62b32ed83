"""What is configured on a node is what its programs read."""

from __future__ import annotations

import json
import tomllib
from ipaddress import ip_address, ip_network
from pathlib import Path

from tests.system.cluster import node_files
from tests.system.cluster.certificates import Authority
from tests.system.cluster.layout import DNS_SERVICE, FIRST_SERVICE, PODS, SERVICES, Place, places


def test_containerd_gets_the_image_of_sandboxes_and_the_plugins() -> None:
    config = tomllib.loads(node_files.containerd("registry.example.com/pause:1", Path("/opt/cni/bin")))
    runtime = config["plugins"]["io.containerd.grpc.v1.cri"]
    assert runtime["sandbox_image"] == "registry.example.com/pause:1"
    assert runtime["cni"]["bin_dir"] == "/opt/cni/bin"
    assert runtime["containerd"]["runtimes"]["runc"]["runtime_type"] == "io.containerd.runc.v2"


def test_the_kubelet_gets_its_certificate_and_the_runtime() -> None:
    config = json.loads(node_files.kubelet(Place(2), Authority(Path("/pki"))))
    assert config["tlsCertFile"] == "/pki/node2.crt"
    assert config["containerRuntimeEndpoint"] == f"unix://{node_files.CONTAINERD_SOCKET}"
    assert config["clusterDNS"] == [DNS_SERVICE]


def test_pods_get_addresses_of_their_nodes_range() -> None:
    bridge, _ = json.loads(node_files.cni(Place(2)))["plugins"]
    assert bridge["ipam"]["ranges"] == [[{"subnet": "10.244.2.0/24"}]]
    assert bridge["hairpinMode"] is True


def test_ranges_do_not_overlap() -> None:
    nodes = places(9)
    ranges = [ip_network(node.pods) for node in nodes]
    assert all(it.subnet_of(ip_network(PODS)) for it in ranges)  # type: ignore[arg-type]
    assert len({*ranges}) == len({node.address for node in nodes}) == 9
    assert {ip_address(FIRST_SERVICE), ip_address(DNS_SERVICE)} <= {*ip_network(SERVICES)}
    assert len({node.zone for node in nodes}) == 3
