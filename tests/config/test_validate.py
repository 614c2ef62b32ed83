"""Faults between fields, and checks that depend on the host."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubeproxy.config.validate import require_source, uses_kubernetes
from kubeproxy.model.errors import ConfigError
from tests.config.files import faults, of_flags

POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("iptables: {syncPeriod: 1s, minSyncPeriod: 2s}", ["iptables.minSyncPeriod: found 2s"]),
        ("iptables: {syncPeriod: 2s, minSyncPeriod: 2s}", []),
        ("nftables: {syncPeriod: 500ms}", ["nftables.minSyncPeriod: found 1s"]),
        ("ipvs: {syncPeriod: 1s, minSyncPeriod: 2s}", []),
        ("mode: ipvs\nipvs: {syncPeriod: 1s, minSyncPeriod: 2s}", ["ipvs.minSyncPeriod: found 2s"]),
        ("detectLocalMode: BridgeInterface", ["detectLocal.bridgeInterface: found nothing"]),
        ("detectLocalMode: BridgeInterface\nclusterCIDR: 10.3.0.0/16\ndetectLocal: {bridgeInterface: br0}", []),
        ("detectLocalMode: InterfaceNamePrefix", ["detectLocal.interfaceNamePrefix: found nothing"]),
        ("detectLocalMode: NodeCIDR", []),
        ("metricsBindAddress: 127.0.0.1:10256", ["metricsBindAddress: found 127.0.0.1:10256"]),
        ("metricsBindAddress: 127.0.0.1:5\nhealthzBindAddress: 192.0.2.1:5", []),
        ("metricsBindAddress: 127.0.0.1:0\nhealthzBindAddress: 127.0.0.1:0", []),
        ("kubeproxy: {keepalivePeriod: 500ms}", ["kubeproxy.keepalivePeriod: found 500ms"]),
        ("kubeproxy: {keepalivePeriod: 10h}", ["kubeproxy.keepalivePeriod: found 10h0m0s"]),
        ("kubeproxy: {manifests: {paths: [/a, '', /a]}}",
         ["kubeproxy.manifests.paths[1]: found nothing", 'kubeproxy.manifests.paths[2]: found "/a" again']),
        ("kubeproxy: {userspaceFallback: never, dataPath: kernel}", []),
        ("kubeproxy: {userspaceFallback: never, dataPath: kernel, netfilter: nftables}", []),
        ("kubeproxy: {userspaceFallback: never}", ["kubeproxy.dataPath: found userspace"]),
        ("kubeproxy: {userspaceFallback: never, dataPath: auto, netfilter: iptables}",
         ["kubeproxy.dataPath: found auto", "kubeproxy.netfilter: found iptables"]),
        ("kubeproxy: {master: 'not a url'}", ['kubeproxy.master: found "not a url"']),
        ("kubeproxy: {master: 'ftp://a'}", ['kubeproxy.master: found "ftp://a"']),
        ("kubeproxy: {master: 'https://192.0.2.1:6443'}", []),
        ("kubeproxy: {master: '192.0.2.1:8080'}", []),
        ("kubeproxy: {nodeAddresses: [192.0.2.1, '2001:DB8::1']}", []),
        ("kubeproxy: {nodeAddresses: ['2001:DB8::1', '2001:db8:0::1']}",
         ['kubeproxy.nodeAddresses[1]: found "2001:db8::1" again']),
        ("kubeproxy: {nodeAddresses: [127.0.0.1, 0.0.0.0, '::', 'fe80::1', 'ff02::1']}",
         [f'kubeproxy.nodeAddresses[{place}]: found "{address}"'
          for place, address in enumerate(("127.0.0.1", "0.0.0.0", "::", "fe80::1", "ff02::1"))]),
    ],
)  # fmt: skip
def test_faults_between_fields(tmp_path: Path, body: str, expected: list[str]) -> None:
    assert faults(tmp_path, body) == expected


@pytest.mark.parametrize(
    ("flags", "environ", "expected"),
    [
        ({}, {}, False),
        ({}, POD, True),
        ({"manifests": "/a"}, {}, False),
        ({"kubeconfig": "/k"}, {}, True),
        ({"master": "https://a"}, {}, True),
        ({"kubernetes": "never", "kubeconfig": "/k"}, POD, False),
        ({"kubernetes": "always"}, {}, True),
    ],
)
def test_an_api_server_is_used_if_one_is_configured_or_in_a_pod(
    flags: dict[str, str], environ: dict[str, str], expected: bool
) -> None:
    assert uses_kubernetes(of_flags(**flags).configuration, environ) is expected


def test_a_source_of_services_is_required() -> None:
    require_source(of_flags(manifests="/a").configuration, {})
    require_source(of_flags().configuration, POD)
    with pytest.raises(ConfigError, match="no source"):
        require_source(of_flags(kubernetes="never").configuration, POD)


@pytest.mark.parametrize(("timeout", "warned"), [("250ms", True), ("999ms", True), ("1s", False), ("1m", False)])
def test_a_short_udp_timeout_causes_a_warning(timeout: str, warned: bool) -> None:
    found = of_flags(udp_timeout=timeout).warnings
    assert [line.partition(" loses")[0] for line in found] == [f"udpIdleTimeout: {timeout}"] * warned
    assert all(line.endswith("remove it for the default of 1m0s") for line in found)


@pytest.mark.parametrize(
    ("external", "reserved", "clash"),
    [
        ("1-65535", "22,10250-10256", "22, 10250-10256"),
        ("443", "22", ""),
        ("80,10256-10300", "10250-10256", "10250-10256"),
    ],
)
def test_ports_both_permitted_and_reserved_cause_a_warning(external: str, reserved: str, clash: str) -> None:
    warnings = of_flags(external_ports_on_node=external, reserved_ports=reserved).warnings
    assert [it.rpartition(": ")[2] for it in warnings] == ([clash] if clash else [])
