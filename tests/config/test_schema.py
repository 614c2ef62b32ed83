"""Fields and defaults are kube-proxy's; our own settings are in one group; derived values."""

from __future__ import annotations

import pytest

from kubeproxy.config.describe import text_of
from kubeproxy.config.field_info import Effect
from kubeproxy.config.fields import build, fields, flatten
from kubeproxy.config.schema import Configuration

KUBE_PROXY = """
featureGates feature-gates
clientConnection.kubeconfig kubeconfig
clientConnection.acceptContentTypes -
clientConnection.contentType kube-api-content-type application/vnd.kubernetes.protobuf
clientConnection.qps kube-api-qps 5
clientConnection.burst kube-api-burst 10
logging.format logging-format text
logging.flushFrequency log-flush-frequency 5s
logging.verbosity v 0
logging.vmodule vmodule
logging.options.text.splitStream - false
logging.options.text.infoBufferSize - 0
logging.options.json.splitStream - false
logging.options.json.infoBufferSize - 0
hostnameOverride hostname-override
bindAddress bind-address 0.0.0.0
healthzBindAddress healthz-bind-address 0.0.0.0:10256
metricsBindAddress metrics-bind-address 127.0.0.1:10249
bindAddressHardFail bind-address-hard-fail false
enableProfiling profiling false
showHiddenMetricsForVersion show-hidden-metrics-for-version
mode proxy-mode
iptables.masqueradeBit iptables-masquerade-bit 14
iptables.masqueradeAll masquerade-all false
iptables.localhostNodePorts iptables-localhost-nodeports true
iptables.snatNodeInternalIP - false
iptables.syncPeriod iptables-sync-period 30s
iptables.minSyncPeriod iptables-min-sync-period 1s
ipvs.syncPeriod ipvs-sync-period 30s
ipvs.minSyncPeriod ipvs-min-sync-period 0s
ipvs.scheduler ipvs-scheduler
ipvs.excludeCIDRs ipvs-exclude-cidrs
ipvs.strictARP ipvs-strict-arp false
ipvs.tcpTimeout ipvs-tcp-timeout 0s
ipvs.tcpFinTimeout ipvs-tcpfin-timeout 0s
ipvs.udpTimeout ipvs-udp-timeout 0s
nftables.masqueradeBit - 14
nftables.masqueradeAll - false
nftables.syncPeriod - 30s
nftables.minSyncPeriod - 1s
winkernel.networkName network-name
winkernel.sourceVip source-vip
winkernel.enableDSR enable-dsr false
winkernel.rootHnsEndpointName root-hnsendpoint-name
winkernel.forwardHealthCheckVip forward-healthcheck-vip false
detectLocalMode detect-local-mode
detectLocal.bridgeInterface pod-bridge-interface
detectLocal.interfaceNamePrefix pod-interface-name-prefix
clusterCIDR cluster-cidr
nodePortAddresses nodeport-addresses
oomScoreAdj oom-score-adj -999
conntrack.maxPerCore conntrack-max-per-core 32768
conntrack.min conntrack-min 131072
conntrack.tcpEstablishedTimeout conntrack-tcp-timeout-established 24h0m0s
conntrack.tcpCloseWaitTimeout conntrack-tcp-timeout-close-wait 1h0m0s
conntrack.tcpBeLiberal conntrack-tcp-be-liberal false
conntrack.udpTimeout conntrack-udp-timeout 0s
conntrack.udpStreamTimeout conntrack-udp-timeout-stream 0s
configSyncPeriod config-sync-period 15m0s
portRange proxy-port-range
udpIdleTimeout udp-timeout 1m0s
windowsRunAsService windows-service false
"""
"""Path, flag, default. The one difference: udpIdleTimeout is 250ms in kube-proxy."""


def test_fields_flags_and_defaults_are_kube_proxys() -> None:
    ours = {path: (field.flag or "-", text_of(field.default)) for path, field in fields().items() if not field.ours}
    theirs = {}
    for line in KUBE_PROXY.strip().splitlines():
        path, flag, *default = line.split()
        theirs[path] = (flag, " ".join(default))
    assert ours == theirs


def test_our_own_settings_are_in_one_group_with_a_flag_each() -> None:
    ours = [field for field in fields().values() if field.ours]
    assert len(ours) > 5
    assert all(field.flag for field in ours)
    assert all(field.effect is not Effect.NONE for field in ours)


def test_no_two_fields_share_a_flag() -> None:
    names = [field.flag for field in fields().values() if field.flag]
    assert len(names) == len(set(names))


def test_a_configuration_built_of_nothing_has_the_defaults() -> None:
    assert build({}) == Configuration()
    assert flatten(Configuration()) == {path: field.default for path, field in fields().items()}


def test_build_is_the_inverse_of_flatten() -> None:
    values = flatten(Configuration()) | {"oomScoreAdj": 7, "kubeproxy.manifests.recursive": True}
    configuration = build(values)
    assert configuration.oom_score_adj == 7
    assert configuration.kubeproxy.manifests.recursive
    assert flatten(configuration) == values


@pytest.mark.parametrize(
    ("netfilter", "mode", "order"),
    [
        ("auto", "", ("nftables", "iptables")),
        ("auto", "userspace", ("nftables", "iptables")),
        ("auto", "nftables", ("nftables", "iptables")),
        ("auto", "iptables", ("iptables", "nftables")),
        ("auto", "ipvs", ("nftables", "iptables")),
        ("nftables", "iptables", ("nftables",)),
        ("iptables", "", ("iptables",)),
        ("none", "iptables", ()),
    ],
)
def test_the_mode_orders_adapters_if_netfilter_is_auto(netfilter: str, mode: str, order: tuple[str, ...]) -> None:
    assert build({"kubeproxy.netfilter": netfilter, "mode": mode}).netfilter_order == order


def test_mode_nftables_uses_its_own_periods() -> None:
    from kubeproxy.config.value_types import Duration, PositiveDuration

    settings = {
        "nftables.syncPeriod": PositiveDuration.parse("9s"),
        "nftables.minSyncPeriod": Duration.parse("2s"),
    }
    there, elsewhere = build({**settings, "mode": "nftables"}), build(settings)
    assert (there.sync_period_s, there.min_sync_period_s) == (9, 2)
    assert (elsewhere.sync_period_s, elsewhere.min_sync_period_s) == (30, 1)
