"""docs/migration.md agrees with the code and covers every setting of kube-proxy."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.generators.migration import DIFFERENT, Verdict, entries, insert
from kubeproxy.config.fields import fields
from kubeproxy.config.flags import flags

DOCUMENT = Path(__file__).parents[2] / "docs" / "migration.md"

FLAGS = """
    --config --write-config-to --cleanup --cleanup-ipvs --version --init-only
    --kubeconfig --master --kube-api-content-type --kube-api-qps --kube-api-burst --hostname-override
    --bind-address --bind-address-hard-fail --healthz-bind-address --healthz-port --metrics-bind-address --metrics-port
    --profiling --show-hidden-metrics-for-version --feature-gates --proxy-mode --proxy-port-range --udp-timeout
    --iptables-sync-period --iptables-min-sync-period --iptables-masquerade-bit --masquerade-all
    --iptables-localhost-nodeports --config-sync-period --cluster-cidr --detect-local-mode --nodeport-addresses
    --pod-bridge-interface --pod-interface-name-prefix --oom-score-adj
    --conntrack-max-per-core --conntrack-min --conntrack-tcp-timeout-established --conntrack-tcp-timeout-close-wait
    --conntrack-tcp-be-liberal --conntrack-udp-timeout --conntrack-udp-timeout-stream
    --ipvs-sync-period --ipvs-min-sync-period --ipvs-scheduler --ipvs-exclude-cidrs --ipvs-strict-arp
    --ipvs-tcp-timeout --ipvs-tcpfin-timeout --ipvs-udp-timeout
    --windows-service --network-name --source-vip --enable-dsr --root-hnsendpoint-name --forward-healthcheck-vip
    -v --vmodule --logging-format --log-flush-frequency --logtostderr --alsologtostderr --log-dir --log-file
    --log-file-max-size --stderrthreshold --skip-headers --skip-log-headers --add-dir-header --one-output
    --log-backtrace-at
"""
"""The flags of kube-proxy from 1.20 to 1.36, without --help. Source: its command reference, `kube-proxy --help`."""

FIELDS = """
    featureGates clientConnection.kubeconfig clientConnection.acceptContentTypes clientConnection.contentType
    clientConnection.qps clientConnection.burst logging.format logging.flushFrequency logging.verbosity logging.vmodule
    logging.options.text.splitStream logging.options.text.infoBufferSize logging.options.json.splitStream
    logging.options.json.infoBufferSize hostnameOverride bindAddress healthzBindAddress metricsBindAddress
    bindAddressHardFail enableProfiling showHiddenMetricsForVersion mode iptables.masqueradeBit iptables.masqueradeAll
    iptables.localhostNodePorts iptables.snatNodeInternalIP iptables.syncPeriod iptables.minSyncPeriod
    ipvs.syncPeriod ipvs.minSyncPeriod ipvs.scheduler ipvs.excludeCIDRs ipvs.strictARP ipvs.tcpTimeout
    ipvs.tcpFinTimeout ipvs.udpTimeout nftables.masqueradeBit nftables.masqueradeAll nftables.syncPeriod
    nftables.minSyncPeriod winkernel.networkName winkernel.sourceVip winkernel.enableDSR winkernel.rootHnsEndpointName
    winkernel.forwardHealthCheckVip detectLocalMode detectLocal.bridgeInterface detectLocal.interfaceNamePrefix
    clusterCIDR nodePortAddresses oomScoreAdj conntrack.maxPerCore conntrack.min conntrack.tcpEstablishedTimeout
    conntrack.tcpCloseWaitTimeout conntrack.tcpBeLiberal conntrack.udpTimeout conntrack.udpStreamTimeout
    configSyncPeriod portRange udpIdleTimeout windowsRunAsService
"""
"""The fields of KubeProxyConfiguration v1alpha1 in the same versions (kube-proxy/config/v1alpha1/types.go)."""


def test_the_document_is_current() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text == insert(text), "run: python -m docs.generators.migration docs/migration.md"


def test_tables_need_their_place() -> None:
    with pytest.raises(ValueError, match="settings: begin"):
        insert("no place\n")


def test_every_flag_of_kube_proxy_is_in_it_once() -> None:
    listed = [entry.flag for entry in entries() if entry.flag]
    assert sorted(listed) == sorted(set(listed))
    assert set(FLAGS.split()) - set(listed) == set()


def test_every_field_of_kube_proxy_is_in_it_and_none_of_ours() -> None:
    listed = {entry.field for entry in entries() if entry.field}
    assert listed - {"kubeproxy.master"} == set(FIELDS.split())


def test_every_documented_difference_exists_and_has_an_effect() -> None:
    assert [path for path in DIFFERENT if path not in fields()] == []
    assert {entry.field for entry in entries() if entry.verdict is Verdict.DIFFERENT} >= set(DIFFERENT)


def test_every_accepted_flag_is_listed_or_our_own() -> None:
    ours = {flags()[field.flag].dashed for field in fields().values() if field.ours and field.flag}
    assert {flag.dashed for flag in flags().values()} - ours <= {entry.flag for entry in entries()}
