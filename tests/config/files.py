"""Configuration files for tests, and their faults."""

from __future__ import annotations

from pathlib import Path

from kubeproxy.config.load import Loaded, load
from kubeproxy.model.errors import ConfigError

HEAD = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"


KUBEADM = """
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection: {acceptContentTypes: "", burst: 0, contentType: "", qps: 0,
  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf}
clusterCIDR: ""
configSyncPeriod: 0s
conntrack: {maxPerCore: null, min: null, tcpBeLiberal: false, tcpCloseWaitTimeout: null, tcpEstablishedTimeout: null,
  udpStreamTimeout: 0s, udpTimeout: 0s}
detectLocal: {bridgeInterface: "", interfaceNamePrefix: ""}
detectLocalMode: ""
enableProfiling: false
healthzBindAddress: ""
hostnameOverride: ""
iptables: {localhostNodePorts: null, masqueradeAll: false, masqueradeBit: null, minSyncPeriod: 0s, syncPeriod: 0s}
ipvs: {excludeCIDRs: null, minSyncPeriod: 0s, scheduler: "", strictARP: false, syncPeriod: 0s, tcpFinTimeout: 0s,
  tcpTimeout: 0s, udpTimeout: 0s}
logging: {flushFrequency: 0, options: {json: {infoBufferSize: "0"}, text: {infoBufferSize: "0"}}, verbosity: 0}
metricsBindAddress: ""
mode: ""
nftables: {masqueradeAll: false, masqueradeBit: null, minSyncPeriod: 0s, syncPeriod: 0s}
nodePortAddresses: null
oomScoreAdj: null
portRange: ""
showHiddenMetricsForVersion: ""
winkernel: {enableDSR: false, forwardHealthCheckVip: false, networkName: "", rootHnsEndpointName: "", sourceVip: ""}
"""
"""kubeadm's ConfigMap: zero values that mean defaults."""


def write(directory: Path, body: str, *, head: str = HEAD) -> str:
    """Write a file with this body and return its path."""
    path = directory / "config.yaml"
    path.write_text(head + body, encoding="utf-8")
    return str(path)


def loaded(directory: Path, body: str = "", **flags: str) -> Loaded:
    """Load a file with this body and these flags (`_` for `-`)."""
    given = {name.replace("_", "-"): [text] for name, text in flags.items()}
    return load({"config": [write(directory, body)], **given})


def of_flags(**flags: str) -> Loaded:
    """Load flags without a file."""
    return load({name.replace("_", "-"): [text] for name, text in flags.items()})


def faults(directory: Path, body: str = "", **flags: str) -> list[str]:
    """The faults of a file with this body, without the allowed values."""
    try:
        loaded(directory, body, **flags)
    except ConfigError as error:
        return [fault.partition("; allowed: ")[0] for fault in error.faults]
    return []
