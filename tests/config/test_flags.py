"""Flags: the field of each, and which flags override the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kubeproxy.config.describe import text_of
from kubeproxy.config.fields import fields, flatten
from kubeproxy.config.flags import flags
from kubeproxy.config.load import load
from kubeproxy.model.errors import ConfigError
from tests.config.files import loaded, of_flags

SAMPLES = {
    "feature-gates": "A=true", "kubeconfig": "/k", "kube-api-content-type": "a/b", "kube-api-qps": "7",
    "kube-api-burst": "7", "logging-format": "json", "log-flush-frequency": "7s", "v": "7", "vmodule": "a=7",
    "hostname-override": "node", "bind-address": "192.0.2.7", "healthz-bind-address": "192.0.2.7:7",
    "metrics-bind-address": "192.0.2.7:8", "bind-address-hard-fail": "true", "profiling": "true",
    "show-hidden-metrics-for-version": "1.7", "proxy-mode": "ipvs", "iptables-masquerade-bit": "7",
    "masquerade-all": "true", "iptables-localhost-nodeports": "false", "iptables-sync-period": "7s",
    "iptables-min-sync-period": "7s", "ipvs-sync-period": "7s", "ipvs-min-sync-period": "7s", "ipvs-scheduler": "wrr",
    "ipvs-exclude-cidrs": "10.0.0.0/8,11.0.0.0/8", "ipvs-strict-arp": "true", "ipvs-tcp-timeout": "7s",
    "ipvs-tcpfin-timeout": "7s", "ipvs-udp-timeout": "7s", "network-name": "n", "source-vip": "v",
    "enable-dsr": "true", "root-hnsendpoint-name": "r", "forward-healthcheck-vip": "true",
    "detect-local-mode": "NodeCIDR", "pod-bridge-interface": "b", "pod-interface-name-prefix": "p",
    "cluster-cidr": "10.0.0.0/8", "nodeport-addresses": "primary,10.0.0.0/8", "oom-score-adj": "-7",
    "conntrack-max-per-core": "7", "conntrack-min": "7", "conntrack-tcp-timeout-established": "7s",
    "conntrack-tcp-timeout-close-wait": "7s", "conntrack-tcp-be-liberal": "true", "conntrack-udp-timeout": "7s",
    "conntrack-udp-timeout-stream": "7s", "config-sync-period": "7s", "proxy-port-range": "7-8", "udp-timeout": "7s",
    "windows-service": "true", "master": "https://a", "kubernetes": "never", "manifests": "/a,b", "recursive": "true",
    "default-namespace": "n", "namespace": "n", "netfilter": "none", "dial-timeouts": "7s,8s",
    "keepalive-period": "7s", "shutdown-grace": "7s", "cleanup-on-exit": "true", "workers": "3",
    "orphan-grace": "7s", "half-closed-timeout": "7s", "access-log": "/a", "udp-sessions": "7", "public-status": "true",
    "preserve-client-address": "local", "node-addresses": "192.0.2.7,2001:db8::7", "node-zone": "z",
    "denied-endpoint-cidrs": "node,10.0.0.0/8", "external-address-cidrs": "192.0.2.0/24,2001:db8::/32",
    "external-ports-on-node": "53,8000-8080", "reserved-ports": "7,9-11", "node-port-conflict": "keep",
    "takeover": "force", "state-dir": "/run/mine", "strict-manifests": "true", "data-path": "auto",
    "userspace-fallback": "never", "drain-reports": "true", "scheduler": "maglev", "drain-hook-port": "0",
    "slot-memory-mib": "7",
}  # fmt: skip
"""For each flag with a field a value that differs from the default, in its printed form."""

NEEDED = {"userspace-fallback": {"data-path": "kernel"}}
"""Flags without which another is refused."""

WITH_FIELD = [
    name for name, flag in flags().items() if fields().get(flag.path, None) and fields()[flag.path].flag == name
]


def _changed(values: dict[str, Any]) -> dict[str, str]:
    return {path: text_of(value) for path, value in values.items() if value != fields()[path].default}


def _as_printed(name: str) -> str:
    if name == "vmodule":
        return text_of(of_flags(vmodule="a=7").configuration.logging.vmodule)
    return SAMPLES[name]


@pytest.mark.parametrize("name", WITH_FIELD)
def test_a_flag_sets_its_field_and_no_other(name: str) -> None:
    # Some flags need a matching period; the sample periods match this one.
    also = {"iptables-sync-period": "30s", **NEEDED.get(name, {})}
    found = flatten(load({**{key: [text] for key, text in also.items()}, name: [SAMPLES[name]]}).configuration)
    needed = {flags()[key].path: text for key, text in NEEDED.get(name, {}).items()}
    assert _changed(found) == {flags()[name].path: _as_printed(name), **needed}


OVERRIDING = {
    "takeover", "state-dir", "strict-manifests", "data-path", "userspace-fallback", "drain-reports", "drain-hook-port",
    "slot-memory-mib",
    "hostname-override", "v", "logging-format", "log-flush-frequency", "vmodule",
    "master", "kubernetes", "manifests", "recursive", "default-namespace", "namespace", "netfilter", "dial-timeouts",
    "keepalive-period", "shutdown-grace", "cleanup-on-exit", "udp-sessions", "workers", "orphan-grace",
    "half-closed-timeout", "access-log", "preserve-client-address", "public-status",
    "node-addresses", "node-zone", "denied-endpoint-cidrs", "external-address-cidrs", "external-ports-on-node",
    "reserved-ports", "node-port-conflict", "scheduler",
}  # fmt: skip


@pytest.mark.parametrize("name", WITH_FIELD)
def test_with_a_file_only_some_flags_have_an_effect(tmp_path: Path, name: str) -> None:
    needed = NEEDED.get(name, {})
    found = loaded(tmp_path, "", **needed, **{name: SAMPLES[name]})
    ignored = f"ignored because of --config: {flags()[name].dashed}"
    if name in OVERRIDING:
        changed = _changed(flatten(found.configuration))
        assert changed.pop(flags()[name].path) == _as_printed(name)
        assert changed == {flags()[key].path: text for key, text in needed.items()}
        assert ignored not in found.warnings
    else:
        assert _changed(flatten(found.configuration)) == {}
        assert found.warnings == (ignored,)


def test_an_overriding_flag_replaces_the_value_of_the_file(tmp_path: Path) -> None:
    body = "hostnameOverride: of-file\nlogging: {verbosity: 3}\nkubeproxy: {shutdownGrace: 1s, netfilter: none}"
    found = loaded(tmp_path, body, hostname_override="Of-Flag", shutdown_grace="2s").configuration
    assert found.hostname_override == "of-flag"
    assert found.logging.verbosity == 3
    assert (str(found.kubeproxy.shutdown_grace), found.kubeproxy.netfilter) == ("2s", "none")
    assert loaded(tmp_path, body, hostname_override="").configuration.hostname_override == "of-file"


def test_one_warning_lists_ignored_flags(tmp_path: Path) -> None:
    found = loaded(tmp_path, "", proxy_mode="ipvs", healthz_port="0", udp_timeout="1s")
    assert found.warnings == ("ignored because of --config: --proxy-mode, --udp-timeout, --healthz-port",)
    assert found.configuration.healthz_bind_address.served


def test_the_last_repetition_counts_but_lists_and_maps_grow() -> None:
    found = load(
        {
            "oom-score-adj": ["1", "2"],
            "manifests": ["/a,b", "/c"],
            "nodeport-addresses": ["10.0.0.0/8", "primary"],
            "feature-gates": ["A=true,B=false", "A=false"],
        }
    ).configuration
    assert found.oom_score_adj == 2
    assert found.kubeproxy.manifests.paths == ("/a,b", "/c")
    assert found.node_port_addresses == ("10.0.0.0/8", "primary")
    assert found.feature_gates == {"A": False, "B": False}


@pytest.mark.parametrize(
    ("given", "healthz"),
    [
        ({"healthz-port": "7"}, "0.0.0.0:7"),
        ({"healthz-port": "0"}, "0.0.0.0:0"),
        ({"healthz-bind-address": ""}, "0.0.0.0:0"),
        ({"healthz-bind-address": "", "healthz-port": "7"}, "0.0.0.0:0"),
        ({"healthz-bind-address": "192.0.2.1"}, "192.0.2.1:10256"),
        ({"healthz-bind-address": "192.0.2.1", "healthz-port": "7"}, "192.0.2.1:7"),
        ({"healthz-bind-address": "192.0.2.1:8", "healthz-port": "7"}, "192.0.2.1:8"),
        ({"healthz-bind-address": "192.0.2.1:8", "healthz-port": "0"}, "192.0.2.1:0"),
        ({"healthz-bind-address": "0::1", "healthz-port": "7"}, "[::1]:7"),
        ({"healthz-bind-address": "[::1]:8", "healthz-port": "7"}, "[::1]:8"),
        ({"bind-address": "::", "healthz-port": "7"}, "[::]:7"),
    ],
)
def test_the_deprecated_port_flags(given: dict[str, str], healthz: str) -> None:
    assert str(of_flags(**given).configuration.healthz_bind_address) == healthz


def test_zero_on_the_command_line() -> None:
    found = of_flags(iptables_min_sync_period="0", kube_api_qps="0", bind_address="", shutdown_grace="0").configuration
    assert found.iptables.min_sync_period.nanoseconds == 1
    assert found.client_connection.qps == 5
    assert found.bind_address == "0.0.0.0"
    assert found.kubeproxy.shutdown_grace.nanoseconds == 0


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"iptables-sync-period": "0"}, '--iptables-sync-period: found "0"'),
        ({"oom-score-adj": "low"}, '--oom-score-adj: found "low"'),
        ({"oom-score-adj": "1.0"}, '--oom-score-adj: found "1.0"'),
        ({"kube-api-qps": "nan"}, "--kube-api-qps: found nan"),
        ({"profiling": "yes"}, '--profiling: found "yes"'),
        ({"feature-gates": "A"}, '--feature-gates: found "A"'),
        ({"feature-gates": "A=x"}, '--feature-gates.A: found "x"'),
        ({"vmodule": "a"}, '--vmodule: found "a"'),
        ({"vmodule": "a=b"}, '--vmodule[0].verbosity: found "b"'),
        ({"dial-timeouts": ""}, "--dial-timeouts: found a list of 0"),
        ({"dial-timeouts": "1s,2"}, '--dial-timeouts[1]: found "2"'),
        ({"nodeport-addresses": "10.0.0.1"}, '--nodeport-addresses[0]: found "10.0.0.1"'),
        ({"denied-endpoint-cidrs": "node,10.0.0.1"}, '--denied-endpoint-cidrs[1]: found "10.0.0.1"'),
        ({"external-address-cidrs": "10.0.0.0/33"}, '--external-address-cidrs[0]: found "10.0.0.0/33"'),
        ({"external-ports-on-node": "443,0"}, '--external-ports-on-node[1]: found "0"'),
        ({"external-ports-on-node": "9-8"}, '--external-ports-on-node[0]: found "9-8"'),
        ({"node-port-conflict": "no"}, '--node-port-conflict: found "no"'),
        ({"reserved-ports": "http"}, '--reserved-ports[0]: found "http"'),
        ({"healthz-port": "65536"}, "--healthz-port: found 65536"),
        ({"healthz-bind-address": "localhost:1"}, '--healthz-bind-address: found "localhost:1"'),
        ({"hostname-override": " "}, '--hostname-override: found " "'),
        ({"init-only": "2"}, '--init-only: found "2"'),
        ({"log-file-max-size": "-1"}, "--log-file-max-size: found -1"),
        ({"logtostderr": "maybe"}, '--logtostderr: found "maybe"'),
        ({"version": "short"}, '--version: found "short"'),
        ({"cleanup": "2"}, '--cleanup: found "2"'),
        ({"v": "x"}, '-v: found "x"'),
    ],
)
def test_wrong_values(given: dict[str, str], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        of_flags(**given)
    assert [fault.partition("; allowed")[0] for fault in caught.value.faults] == [expected]


def test_no_two_flags_share_a_name_with_underscores() -> None:
    assert len({name.replace("-", "_") for name in flags()}) == len(flags())
