"""A written configuration is read back to an equal one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kubeproxy.config.dump import dump, go_data
from kubeproxy.config.load import load
from kubeproxy.config.schema import Configuration
from tests.config.files import of_flags, write

FLAGS: dict[str, st.SearchStrategy[str]] = {
    "bind-address": st.sampled_from(["0.0.0.0", "::", "192.0.2.1", ""]),
    "healthz-bind-address": st.sampled_from(["", "::1", "127.0.0.1", "127.0.0.1:5", "[::]:0"]),
    "metrics-bind-address": st.sampled_from(["", "192.0.2.1"]),
    "healthz-port": st.sampled_from(["0", "7"]),
    "metrics-port": st.sampled_from(["0", "8"]),
    "iptables-sync-period": st.sampled_from(["1s", "90m", "1.5s"]),
    "iptables-min-sync-period": st.sampled_from(["0", "0s", "1ms"]),
    "kube-api-qps": st.sampled_from(["0", "1.25"]),
    "kube-api-burst": st.sampled_from(["0", "3"]),
    "log-flush-frequency": st.sampled_from(["0", "3s"]),
    "udp-timeout": st.sampled_from(["250ms", "1h"]),
    "proxy-port-range": st.sampled_from(["", "0", "300-2000", "300+10", "300"]),
    "feature-gates": st.sampled_from(["A=true", "A=true,B=false", ""]),
    "vmodule": st.sampled_from(["a*=3,b=0", ""]),
    "nodeport-addresses": st.sampled_from(["primary", "10.0.0.0/8,localhost"]),
    "cluster-cidr": st.sampled_from(["10.0.0.0/8", "10.0.0.0/8,fd00::/8"]),
    "hostname-override": st.sampled_from(["Node-1 ", "007", "yes", ""]),
    "kubeconfig": st.text(st.characters(exclude_categories=["Cc"]), max_size=8),
    "manifests": st.text(st.characters(exclude_categories=["Cc"]), min_size=1, max_size=8),
    "dial-timeouts": st.sampled_from(["1s", "250ms,1h"]),
    "node-addresses": st.sampled_from(["192.0.2.1", "192.0.2.1,2001:db8::1"]),
    "node-zone": st.sampled_from(["", "eu-1.a_B"]),
    "preserve-client-address": st.sampled_from(["never", "local"]),
    "data-path": st.sampled_from(["userspace", "kernel", "auto"]),
    "denied-endpoint-cidrs": st.sampled_from(["", "node", "10.0.0.0/8,fd00::/8"]),
    "external-ports-on-node": st.sampled_from(["", "443", "1-65535"]),
    "reserved-ports": st.sampled_from(["", "22,80-90"]),
    "conntrack-udp-timeout": st.sampled_from(["0", "90s"]),
    "shutdown-grace": st.sampled_from(["0", "1m"]),
}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(flags=st.fixed_dictionaries({}, optional=FLAGS))
def test_any_configuration_is_read_back_equal(tmp_path: Path, flags: dict[str, Any]) -> None:
    original = load({name: [text] for name, text in flags.items()}).configuration
    again = load({"config": [write(tmp_path, dump(original), head="")]})
    assert again.configuration == original


def test_the_defaults_are_read_back_without_a_warning(tmp_path: Path) -> None:
    again = load({"config": [write(tmp_path, dump(Configuration()), head="")]})
    assert (again.configuration, again.warnings) == (Configuration(), ())


def test_durations_are_written_as_durations() -> None:
    assert "  syncPeriod: 1m30s\n" in dump(of_flags(iptables_sync_period="90s").configuration)


def test_configz_has_go_field_names() -> None:
    shown = go_data(of_flags(feature_gates="someGate=true", bind_address="192.0.2.1").configuration)
    assert shown["BindAddress"] == "192.0.2.1"
    assert shown["ClientConnection"]["ContentType"] == "application/vnd.kubernetes.protobuf"
    assert shown["FeatureGates"] == {"someGate": True}
    assert {"apiVersion", "ApiVersion", "kind", "Kind"}.isdisjoint(shown)


def test_configz_names_have_the_notation_of_go() -> None:
    shown = go_data(Configuration())
    for path in (
        "ClientConnection.QPS",
        "IPTables.MasqueradeBit",
        "IPTables.LocalhostNodePorts",
        "IPVS.ExcludeCIDRs",
        "IPVS.StrictARP",
        "IPVS.TCPFinTimeout",
        "IPVS.UDPTimeout",
        "NFTables.MinSyncPeriod",
        "Winkernel.EnableDSR",
        "Winkernel.SourceVip",
        "DetectLocal.InterfaceNamePrefix",
        "OOMScoreAdj",
        "ClusterCIDR",
        "NodePortAddresses",
        "UDPIdleTimeout",
        "Conntrack.TCPBeLiberal",
        "Conntrack.TCPCloseWaitTimeout",
        "Conntrack.UDPStreamTimeout",
        "ConfigSyncPeriod",
        "WindowsRunAsService",
        "Logging.flushFrequency",
        "Kubeproxy.Manifests.DefaultNamespace",
    ):
        found: Any = shown
        for name in path.split("."):
            found = found[name]


def test_configz_shows_no_credentials() -> None:
    shown = go_data(of_flags(manifests="https://user:secret@example.com/a@b").configuration)
    assert shown["Kubeproxy"]["Manifests"]["Paths"] == ["https://xxxxx@example.com/a@b"]
