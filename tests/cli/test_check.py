"""``kubeproxy check``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kubeproxy.cli import main
from tests.config.files import KUBEADM, write

KUBECONFIG = """
apiVersion: v1
kind: Config
clusters:
- cluster: {certificate-authority: /var/run/secrets/kubernetes.io/serviceaccount/ca.crt, server: "https://192.0.2.1:6443"}
  name: default
contexts:
- context: {cluster: default, namespace: default, user: default}
  name: default
current-context: default
users:
- name: default
  user: {tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token}
"""
"""The other file of kubeadm's ConfigMap."""
SERVICE = """
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}
"""


def test_a_good_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.status_of(["check", "--config", write(tmp_path, "ipvs: {strictARP: true}")]) == 0
    out, err = capsys.readouterr()
    assert out == "configuration is valid\n"
    first, second = err.splitlines()
    assert first == "warning: accepted, but without effect: ipvs.strictARP"
    assert second.startswith("warning: kubeproxy.manifests.paths: found no source of Services")


def test_every_fault_of_a_configuration_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "mode: a\nbindAddress: b\nkubeproxy:\n  workers: many\n  novelty: 1\nmode: b\n"
    file = write(tmp_path, text)
    first = Path(file).read_text().splitlines().index("mode: a") + 1
    assert main.status_of(["check", "--config", file, "--oom-score-adj=x"]) == 64
    found = capsys.readouterr().err.splitlines()
    assert sorted(line.partition(": found")[0] for line in found) == sorted(
        [
            f"{file}:{first + 5}: error: mode",
            f"{file}:{first + 1}: error: bindAddress",
            f"{file}:{first + 3}: error: kubeproxy.workers",
            "kubeproxy: --oom-score-adj",
        ]
    )


def test_every_likely_mistake_of_a_configuration_has_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, "mode: iptables\nkubeproxy:\n  novelty: 1\nmode: nftables\n")
    first = Path(file).read_text().splitlines().index("mode: iptables") + 1
    assert main.status_of(["check", "--config", file]) == 0
    warnings = capsys.readouterr().err.splitlines()
    assert f"{file}:{first + 2}: warning: kubeproxy.novelty: unknown field, ignored" in warnings
    assert f"{file}:{first + 3}: warning: field 'mode' is given twice; the last one counts" in warnings


def test_good_manifests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "web.yaml").write_text(SERVICE)
    assert main.status_of(["check", "--manifests", str(tmp_path)]) == 0
    assert capsys.readouterr().out == (
        "configuration and manifests are valid: 1 Service and 0 EndpointSlices in 1 manifest\n"
    )


def test_faulty_manifests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "web.yaml").write_text(SERVICE.replace("port: 80", "port: 65536"))
    (tmp_path / "other.yaml").write_text("a: [")
    assert main.status_of(["check", "--manifests", str(tmp_path)]) == 64
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 2
    assert "web.yaml" in err
    assert "other.yaml" in err


def test_an_enforced_namespace_applies_to_manifests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "web.yaml").write_text(SERVICE)
    assert main.status_of(["check", "--manifests", str(tmp_path), "--namespace", "other"]) == 64
    assert "other" in capsys.readouterr().err


MISTAKES = """\
apiVersion: v1
kind: service
metadata: {name: lower}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  clusterIP: 10.96.0.10
  sessionAfinity: ClientIP
  externalIP: [192.0.2.1]
  ports:
    - name: http
      port: 80
      nodeport: 30080
---
apiVersion: v1
kind: Service
metadata: {name: twin}
spec:
  clusterIP: 10.96.0.10
  ports: [{name: http, port: 80}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: unlabelled}
addressType: IPv4
endpoints: [{addresses: [10.0.0.1]}]
---
apiVersion: v1
kind: List
items:
  - apiVersion: discovery.k8s.io/v1
    kind: EndpointSlice
    metadata: {name: dangling, labels: {kubernetes.io/service-name: wbe}}
    addressType: IPv4
    ports: [{name: http, port: 80}]
    endpoints: [{addresses: [10.0.0.1]}]
  - apiVersion: discovery.k8s.io/v1
    kind: EndpointSlice
    metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
    addressType: IPv4
    ports: [{name: htpp, port: 80}]
    endpoints:
      - addresses: [10.0.0.1]
        nodename: node-1
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: d}
"""

FOUND = [
    "2: warning: kind: 'service' is not served, and ignored; did you mean Service?",
    "10: warning: Service default/web: spec.sessionAfinity: unknown field, ignored; did you mean sessionAffinity?",
    "11: warning: Service default/web: spec.externalIP: unknown field, ignored; did you mean externalIPs?",
    "15: warning: Service default/web: spec.ports[0].nodeport: unknown field, ignored; did you mean nodePort?",
    "26: warning: EndpointSlice default/unlabelled: metadata: no label kubernetes.io/service-name, so these endpoints"
    " belong to no Service and are ignored",
    "46: warning: EndpointSlice default/web-1: endpoints[0].nodename: unknown field, ignored; did you mean nodeName?",
    "35: warning: EndpointSlice default/dangling: metadata: no manifest defines Service default/wbe, so these endpoints"
    " are not used; did you mean web?",
    "43: warning: EndpointSlice default/web-1: ports: a port 'htpp' (TCP) is no port of Service default/web;"
    " there is 'http' (TCP)",
    "13: warning: Service default/web: spec.ports[0]: no EndpointSlice has a port 'http' (TCP);"
    " there is 'htpp' (TCP); clients are refused",
    "21: warning: Service default/twin: spec.clusterIP: 10.96.0.10:80 (TCP) is of Service default/web, too;"
    " only one of the two gets it",
]


def test_the_usual_mistakes_are_warnings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "web.yaml"
    file.write_text(MISTAKES)
    assert main.status_of(["check", "--manifests", str(file)]) == 0
    out, err = capsys.readouterr()
    assert err.splitlines() == [f"{file}:{line}" for line in FOUND]
    assert out.strip().endswith(
        "valid: 2 Services and 2 EndpointSlices in 1 manifest;"
        " ignored: 1 v1 service, 1 EndpointSlice without a Service, 1 apps/v1 Deployment"
    )
    assert main.status_of(["check", "--strict", "--manifests", str(file)]) == 64
    assert capsys.readouterr().err.splitlines()[-1] == "kubeproxy: 10 warnings, and --strict is given"


def test_a_mistyped_restriction_is_a_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "web.yaml"
    file.write_text(MISTAKES.replace("externalIP: [192.0.2.1]", "loadBalancerSourceRange: [10.0.0.0/8]"))
    assert main.status_of(["check", "--manifests", str(file)]) == 64
    assert (
        f"{file}:11: error: Service default/web: spec.loadBalancerSourceRange: unknown field, refused;"
        " did you mean loadBalancerSourceRanges?"
    ) in capsys.readouterr().err.splitlines()


def test_strict_passes_what_is_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "web.yaml").write_text(SERVICE)
    assert main.status_of(["check", "--strict", "--manifests", str(tmp_path)]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("kind: Service\nmetadata:\n\tname: x\n", "3: error: a tab; YAML indents with spaces"),
        (
            "# {{ not this }}\nkind: Service\nspec:\n  clusterIP: {{ .Values.ip }}\n",
            "4: error: '{{ .Values.ip }}' looks like a template that is not rendered",
        ),
        (SERVICE.replace("port: 80", "port: 0"), "5: error: Service default/web: spec.ports[0].port: 0; allowed:"),
        (
            '{"apiVersion": "v1",\n "kind": "Service",\n "metadata": {"name": "a"},\n "spec": {"clusterIP": "x"}}',
            "4: error: Service default/a: spec.clusterIP: 'x'",
        ),
    ],
    ids=["a tab", "a template", "a value", "JSON"],
)
def test_a_fault_has_its_line(tmp_path: Path, text: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "web.yaml"
    file.write_text(text)
    assert main.status_of(["check", "--manifests", str(file)]) == 64
    assert f"{file}:{line}" in capsys.readouterr().err


def test_nothing_to_check_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.status_of(["check", "--strict", "--manifests", str(tmp_path)]) == 64
    assert f"{tmp_path}: warning: no manifest in this directory" in capsys.readouterr().err
    assert main.status_of(["check", "--strict"]) == 64
    assert "found no source of Services" in capsys.readouterr().err


def test_the_config_map_of_kubeadm_needs_no_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With every field that kubeadm writes, most of them zero; and the kubeconfig that stands beside it."""
    for name in ("ca.crt", "token"):
        (tmp_path / name).write_text("x")
    kubeconfig = KUBECONFIG.replace("/var/run/secrets/kubernetes.io/serviceaccount", str(tmp_path))
    text = KUBEADM.replace("/var/lib/kube-proxy", str(tmp_path))
    (tmp_path / "kubeconfig.conf").write_text(kubeconfig)
    assert main.status_of(["check", "--strict", "--config", write(tmp_path, text)]) == 0
    assert capsys.readouterr() == ("configuration is valid\n", "")
    (tmp_path / "kubeconfig.conf").unlink()
    file = write(tmp_path, text)
    assert main.status_of(["check", "--config", file]) == 64
    (fault,) = capsys.readouterr().err.splitlines()
    line = Path(file).read_text().partition("clientConnection")[0].count("\n") + 1
    assert re.match(rf"{file}:({line}|{line + 1}): error: clientConnection.kubeconfig: .*no such file", fault)


def test_files_that_the_configuration_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write(tmp_path, "clientConnection: {kubeconfig: /etc/nope}\nkubeproxy: {accessLog: /nope/dir/log}")
    assert main.status_of(["check", "--config", config]) == 64
    assert capsys.readouterr().err.splitlines() == [
        f"{config}:3: error: clientConnection.kubeconfig: /etc/nope: no such file; allowed: a kubeconfig",
        f"{config}:4: error: kubeproxy.accessLog: found /nope/dir/log (No such file or directory);"
        " allowed: a file in a directory that exists",
    ]
