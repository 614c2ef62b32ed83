"""Loading file and flags to a configuration or to all faults."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from kubeproxy.config.fields import build, fields, flatten
from kubeproxy.config.load import load, read
from kubeproxy.config.schema import API_VERSION, KIND, Configuration
from kubeproxy.config.typed_values import Diagnostics
from kubeproxy.config.value_types import Duration
from kubeproxy.model.errors import ConfigError
from tests.config.files import HEAD, KUBEADM, faults, loaded, of_flags, write


def test_the_file_of_kubeadm_means_all_defaults(tmp_path: Path) -> None:
    found = loaded(tmp_path, KUBEADM)
    assert found.warnings == ()
    assert found.configuration == build({"clientConnection.kubeconfig": "/var/lib/kube-proxy/kubeconfig.conf"})


def test_no_file_and_no_flags_mean_all_defaults() -> None:
    assert of_flags().configuration == Configuration()


def test_a_pointer_field_can_be_zero(tmp_path: Path) -> None:
    found = loaded(tmp_path, "oomScoreAdj: 0\nconntrack: {min: 0, tcpEstablishedTimeout: 0s}\n").configuration
    assert (found.oom_score_adj, found.conntrack.min, found.conntrack.tcp_established_timeout.nanoseconds) == (0, 0, 0)


def test_zero_means_zero_in_our_own_settings(tmp_path: Path) -> None:
    assert loaded(tmp_path, "kubeproxy: {shutdownGrace: 0s}").configuration.kubeproxy.shutdown_grace == Duration(0)
    assert loaded(tmp_path, "kubeproxy: {shutdownGrace: 0}").configuration.kubeproxy.shutdown_grace == Duration(0)


def test_json_with_tabs_is_read(tmp_path: Path) -> None:
    text = f'{{\t"apiVersion": "{API_VERSION}",\n\t"kind": "{KIND}",\n\t"oomScoreAdj": 5}}'
    assert load({"config": [write(tmp_path, text, head="")]}).configuration.oom_score_adj == 5


NEITHER = "{path}: found what is neither YAML nor JSON"


def test_every_type_is_read(tmp_path: Path) -> None:
    found = loaded(
        tmp_path,
        """
bindAddress: 192.0.2.1
healthzBindAddress: 192.0.2.1
portRange: 300+10
clusterCIDR: 10.0.0.0/8,fd00::/8
nodePortAddresses: [192.0.2.0/24, primary]
featureGates: {A: true, B: false}
clientConnection: {qps: 7, burst: 9}
logging: {vmodule: [{filePattern: proxier, verbosity: 9}], flushFrequency: 5000000000, format: json}
kubeproxy: {dialTimeouts: [1s, 2s], netfilter: none, manifests: {paths: [/a, "-"], recursive: yes}}
""",
    ).configuration
    assert found.bind_address == "192.0.2.1"
    assert str(found.healthz_bind_address) == "192.0.2.1:10256"
    assert (found.port_range.first, found.port_range.last) == (300, 310)
    assert found.cluster_cidr == "10.0.0.0/8,fd00::/8"
    assert found.node_port_addresses == ("192.0.2.0/24", "primary")
    assert found.feature_gates == {"A": True, "B": False}
    assert (found.client_connection.qps, found.client_connection.burst) == (7.0, 9)
    assert [(item.file_pattern, item.verbosity) for item in found.logging.vmodule] == [("proxier", 9)]
    assert found.logging.flush_frequency.seconds == 5
    assert found.logging.format == "json"
    assert [step.seconds for step in found.kubeproxy.dial_timeouts] == [1, 2]
    assert found.kubeproxy.netfilter == "none"
    assert (found.kubeproxy.manifests.paths, found.kubeproxy.manifests.recursive) == (("/a", "-"), True)


def test_an_ipv6_bind_address_applies_to_the_servers(tmp_path: Path) -> None:
    found = loaded(tmp_path, 'bindAddress: "::"').configuration
    assert (str(found.healthz_bind_address), str(found.metrics_bind_address)) == ("[::]:10256", "[::1]:10249")
    kept = loaded(tmp_path, 'bindAddress: "::"\nhealthzBindAddress: 127.0.0.1').configuration
    assert (str(kept.healthz_bind_address), str(kept.metrics_bind_address)) == ("127.0.0.1:10256", "[::1]:10249")


WRONG = """
bindAddress: 300.0.0.1
mode: fast
oomScoreAdj: 1001
portRange: 5-1
enableProfiling: "true"
hostnameOverride: 12
nodePortAddresses: [10.0.0.0/8, 10.0.0.0]
featureGates: {A: 1}
iptables: [1]
clientConnection: {qps: -1, burst: 1.5}
udpIdleTimeout: 5
configSyncPeriod: -1s
logging: {vmodule: {a: 1}, verbosity: -1}
conntrack: {min: many}
kubeproxy: {netfilter: ebpf, dialTimeouts: [], manifests: {paths: /a, namespace: A_b}, udpSessions: 0,
  preserveClientAddress: always, nodeAddresses: [node-a], nodeZone: -a}
"""


def test_each_fault_is_one_line(tmp_path: Path) -> None:
    assert faults(tmp_path, WRONG) == [
        'bindAddress: found "300.0.0.1"',
        'mode: found "fast"',
        "oomScoreAdj: found 1001",
        'portRange: found "5-1"',
        'enableProfiling: found "true"',
        "hostnameOverride: found 12",
        'nodePortAddresses[1]: found "10.0.0.0"',
        "featureGates.A: found 1",
        "iptables: found a list of 1",
        "clientConnection.qps: found -1",
        "clientConnection.burst: found 1.5",
        "udpIdleTimeout: found 5",
        'configSyncPeriod: found "-1s"',
        "logging.vmodule: found a map",
        "logging.verbosity: found -1",
        'conntrack.min: found "many"',
        'kubeproxy.netfilter: found "ebpf"',
        "kubeproxy.dialTimeouts: found a list of 0",
        'kubeproxy.manifests.paths: found "/a"',
        'kubeproxy.manifests.namespace: found "A_b"',
        "kubeproxy.udpSessions: found 0",
        'kubeproxy.preserveClientAddress: found "always"',
        'kubeproxy.nodeAddresses[0]: found "node-a"',
        'kubeproxy.nodeZone: found "-a"',
    ]


def test_a_fault_has_the_allowed_values(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, "mode: fast\noomScoreAdj: 1001\nhostnameOverride: 12\nkubeproxy: {dialTimeouts: []}")
    assert caught.value.faults == (
        'mode: found "fast"; allowed: empty, iptables, ipvs, kernelspace, nftables or userspace',
        "oomScoreAdj: found 1001; allowed: a whole number from -1000 to 1000",
        "hostnameOverride: found 12; allowed: text (put it in quotes)",
        "kubeproxy.dialTimeouts: found a list of 0; allowed: a list of at least 1: a duration greater than 0 with its"
        " unit, such as 30s, 1m30s or 250ms",
    )


def test_faults_of_flags_and_file_are_reported_together(tmp_path: Path) -> None:
    assert faults(tmp_path, "mode: fast", netfilter="ebpf", udp_timeout="x") == [
        '--udp-timeout: found "x"',
        '--netfilter: found "ebpf"',
        'mode: found "fast"',
    ]


def test_unknown_and_double_fields_cause_warnings_with_a_suggestion(tmp_path: Path) -> None:
    body = "oomScoreAdjust: 1\niptables:\n  syncperiod: 1s\n  minSyncPeriod: 2s\n  minSyncPeriod: 3s\nzzz: 1\n"
    found = loaded(tmp_path, body + "logging: {vmodule: [{filepattern: a}]}\n")
    assert found.warnings[:5] == (
        "line 7: field 'minSyncPeriod' is given twice; the last one counts",
        "oomScoreAdjust: unknown field, ignored; did you mean oomScoreAdj?",
        "iptables.syncperiod: unknown field, ignored; did you mean syncPeriod?",
        "zzz: unknown field, ignored",
        "logging.vmodule[0].filepattern: unknown field, ignored; did you mean filePattern?",
    )
    assert found.configuration.iptables.min_sync_period == Duration.parse("3s")


def test_double_fields_in_json_cause_warnings(tmp_path: Path) -> None:
    text = f'{{"apiVersion": "{API_VERSION}", "kind": "{KIND}", "oomScoreAdj": 1, "oomScoreAdj": 2}}'
    found = load({"config": [write(tmp_path, text, head="")]})
    assert found.warnings == ("field 'oomScoreAdj' is given twice; the last one counts",)
    assert found.configuration.oom_score_adj == 2


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ("", ["{path}: found nothing"]),
        ("[1, 2]", ["{path}: found a list of 2"]),
        ("kind: KubeProxyConfiguration", ["apiVersion: found nothing"]),
        (
            "apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration",
            ['apiVersion: found "kubeproxy.config.k8s.io/v1alpha2"'],
        ),
        ("apiVersion: v1\nkind: Service", ['apiVersion: found "v1"', 'kind: found "Service"']),
        ("a: [", [NEITHER + " (line 1: expected the node content, but found '<stream end>')"]),
        ("a: !!bool 3", [NEITHER + " (a value with the wrong type (KeyError: '3'))"]),
        ("[" * 5000, [NEITHER + " (nested deeper than 50 levels)"]),
        ("a: 1\n---\nb: 2\n", [NEITHER + " (line 2: but found another document)"]),
    ],
)  # fmt: skip
def test_a_file_that_is_no_configuration(tmp_path: Path, head: str, expected: list[str]) -> None:
    path = write(tmp_path, "", head=head)
    with pytest.raises(ConfigError) as caught:
        load({"config": [path]})
    found = [fault.partition("; allowed: ")[0] for fault in caught.value.faults]
    assert found == [line.format(path=path) for line in expected]


@pytest.mark.parametrize("tail", ["---\n", "---", "--- \n\n---\n", "...\n", "...\n---\n"])
def test_a_separator_at_the_end_starts_no_further_document(tmp_path: Path, tail: str) -> None:
    assert loaded(tmp_path, f"oomScoreAdj: 3\n{tail}").configuration.oom_score_adj == 3


def test_dates_are_text_as_in_kubernetes(tmp_path: Path) -> None:
    assert loaded(tmp_path, "hostnameOverride: 2026-01-02").configuration.hostname_override == "2026-01-02"


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for path, seen in (("none", "No such file or directory"), (".", "Is a directory"), ("binary", "not UTF-8")):
        with pytest.raises(ConfigError, match=seen):
            load({"config": [str(tmp_path / path)]})


@pytest.mark.timeout(20)
def test_an_endless_device_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, seen in ((tmp_path / "pipe", "nothing"), (Path("/dev/zero"), "more than 1000000 characters")):
        with pytest.raises(ConfigError, match=seen):
            load({"config": [str(path)]})


def test_a_file_may_be_a_pipe_of_another_program() -> None:
    """As with `--config=<(program)` in a shell."""
    reading, writing = os.pipe()

    def write() -> None:
        with open(writing, "w") as pipe:
            pipe.write(HEAD + "bindAddress: 10.0.0.1\n")

    writer = Timer(0.1, write)
    writer.start()
    found = load({"config": [f"/dev/fd/{reading}"]}).configuration
    writer.join()
    os.close(reading)
    assert found.bind_address.address == "10.0.0.1"


def test_one_warning_lists_settings_without_effect(tmp_path: Path) -> None:
    found = loaded(tmp_path, "mode: ipvs\nipvs: {scheduler: rr, syncPeriod: 31s}\n", log_dir="/var")
    assert found.warnings == ("accepted, but without effect: ipvs.syncPeriod, mode, --log-dir",)


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["0", "5s", "::", "300-2000"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def _nest(path: str, value: Any) -> dict[str, Any]:
    head, _, rest = path.partition(".")
    return {head: _nest(rest, value) if rest else value}


@settings(max_examples=300, deadline=None)
@given(
    path=st.sampled_from(sorted({*fields(), *(path.rpartition(".")[0] or path for path in fields())})), value=ANYTHING
)
def test_any_value_is_accepted_or_a_fault_of_one_line(path: str, value: Any) -> None:
    diagnostics = Diagnostics()
    document = {"apiVersion": API_VERSION, "kind": KIND, **_nest(path, value)}
    found = read(yaml.safe_dump(document), diagnostics, name="config.yaml")
    assert all(line.startswith(path) and line.isprintable() for line in (*diagnostics.faults, *diagnostics.warnings))
    if not diagnostics.faults:
        assert flatten(build(found)).keys() == fields().keys()


@settings(max_examples=300, deadline=None)
@given(st.text() | st.text(alphabet="{}[]:,-&*!?|>'\"%@`# \n\tab01.~<=").map(lambda text: HEAD + text))
def test_any_text_gives_a_configuration_or_faults(text: str) -> None:
    diagnostics = Diagnostics()
    read(text, diagnostics, name="config.yaml")
    assert all(line.isprintable() for line in (*diagnostics.faults, *diagnostics.warnings))


def test_huge_numbers_are_faults(tmp_path: Path) -> None:
    huge = "0x" + "f" * 8000
    body = f"oomScoreAdj: {huge}\nclientConnection: {{qps: {huge}, burst: .inf}}\nportRange: {huge}\n? {huge}\n: 1\n"
    assert faults(tmp_path, body) == [
        "oomScoreAdj: found a very large number",
        "clientConnection.qps: found a very large number",
        "clientConnection.burst: found inf",
        "portRange: found a very large number",
    ]
