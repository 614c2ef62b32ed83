"""Bad input gives one log line with its place, and affects no other Service."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import yaml

from tests.support.lab.daemon import KUBEPROXY, METRICS
from tests.system.e2e import kernel_state
from tests.system.e2e.stage import QUICK, VIP, Object, Stage, ask, endpoints, service, until
from tests.system.e2e.traffic import Traffic

pytestmark = pytest.mark.netns

HEAD = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

ARGUMENTS: dict[str, tuple[list[str], list[str]]] = {
    "no source": ([], ["kubeproxy.manifests.paths: found no source of Services"]),
    "no such flag": (["--manifest=/a"], ["--manifest"]),
    "no value": (["--manifests"], ["--manifests"]),
    "an argument": (["--manifests=/a", "what"], ["what"]),
    "a duration": (["--manifests=/a", "--iptables-sync-period=30"], ["--iptables-sync-period: found"]),
    "an address": (["--manifests=/a", "--bind-address=10.2.0.256"], ["--bind-address: found"]),
    "a port": (["--manifests=/a", "--healthz-bind-address=127.0.0.1:70000"], ["--healthz-bind-address: found"]),
    "a range": (["--manifests=/a", "--proxy-port-range=200-100"], ["--proxy-port-range: found"]),
    "a choice": (["--manifests=/a", "--netfilter=ebtables"], ["--netfilter: found"]),
    "a truth": (["--manifests=/a", "--cleanup-on-exit=maybe"], ["--cleanup-on-exit: found"]),
    "periods": (
        ["--manifests=/a", "--iptables-sync-period=1s", "--iptables-min-sync-period=2s"],
        ["iptables.minSyncPeriod: found"],
    ),
    "several at once": (
        ["--manifests=/a", "--dial-timeouts=0s", "--shutdown-grace=-1s", "--oom-score-adj=5000"],
        ["--dial-timeouts", "--oom-score-adj: found", "--shutdown-grace: found"],
    ),
    "a kubeconfig that is not there": (
        ["--kubeconfig=/no/such"],
        ["clientConnection.kubeconfig: /no/such: no such file; allowed: a kubeconfig"],
    ),
    "a master": (["--master=http://a b"], ["kubeproxy.master: found"]),
    "a namespace": (["--manifests=/a", "--namespace=A_B"], ["--namespace: found"]),
    "a file that is not there": (["--config=/no/such"], ["/no/such"]),
}


def test_wrong_arguments(stage: Stage) -> None:
    refuse(stage, ARGUMENTS)


FILES: dict[str, tuple[str, list[str]]] = {
    "no YAML": ("{", ["line"]),
    "not ours": ("apiVersion: v1\nkind: Pod\n", ["apiVersion: found", "kind: found"]),
    "a list": ("- 1\n", ["found"]),
    "several at once": (
        HEAD + "bindAddress: here\niptables: {syncPeriod: soon}\nkubeproxy: {netfilter: 7, manifests: {paths: 3}}\n",
        ["bindAddress: found", "iptables.syncPeriod: found", "kubeproxy.manifests.paths", "kubeproxy.netfilter: found"],
    ),
    "servers on one port": (
        HEAD + "healthzBindAddress: 127.0.0.1:10249\nkubeproxy: {manifests: {paths: [/a]}}\n",
        ["metricsBindAddress: found"],
    ),
}


def test_wrong_files(stage: Stage, tmp_path: Path) -> None:
    cases: dict[str, tuple[list[str], list[str]]] = {}
    for name, (text, lines) in FILES.items():
        path = tmp_path / f"{name}.yaml"
        path.write_text(text)
        cases[name] = ([f"--config={path}"], lines)
    refuse(stage, cases)


def refuse(stage: Stage, cases: Mapping[str, tuple[list[str], list[str]]]) -> None:
    """`kubeproxy run` ends with status 64, prints exactly these lines and changes nothing."""
    before, listening = kernel_state.ruleset(stage.node), kernel_state.listening(stage.node)

    def start(arguments: list[str]) -> CompletedProcess[str]:
        return stage.node.run([KUBEPROXY, "run", *arguments], check=False)

    with ThreadPoolExecutor(4) as pool:
        ends = pool.map(start, [arguments for arguments, _ in cases.values()])
    for (case, (_, lines)), done in zip(cases.items(), ends, strict=True):
        assert done.returncode == 64, (case, done.stderr)
        assert "Traceback" not in done.stderr, (case, done.stderr)
        assert done.stdout == "", case
        said = [line for line in done.stderr.splitlines() if not line.startswith("warning: ") and " info " not in line]
        assert len(said) == len(lines), (case, said)
        for line in lines:
            assert any(line in seen for seen in said), (case, line, said)
    assert (kernel_state.ruleset(stage.node), kernel_state.listening(stage.node)) == (before, listening)


def bad(**spec: object) -> Object:
    """A Service with an invalid spec."""
    found = service("bad", "10.96.0.66")
    found["spec"] |= spec
    return found


def port(**fields: object) -> Object:
    """A Service with one port that has these fields."""
    return bad(ports=[{"name": "http", **fields}])


LONG = "x" * 253

MANIFESTS: dict[str, tuple[str | list[Object], str]] = {
    "broken": ("kind: Service\n  metadata: [", "line"),
    "tabs": ("kind:\tService\n\tname: x", ""),
    "binary": ("\x00\x01\x02", ""),
    "ip": ([bad(clusterIP="10.96.0.666", clusterIPs=["10.96.0.666"])], "spec.clusterIP"),
    "twice": ([bad(ports=[{"name": "a", "port": 80}, {"name": "a", "port": 81}])], "spec.ports[1].name"),
    "same": ([bad(ports=[{"name": "a", "port": 80}, {"name": "b", "port": 80}])], "spec.ports[1]"),
    "zero": ([port(port=0)], "spec.ports[0].port"),
    "big": ([port(port=65536)], "spec.ports[0].port"),
    "word": ([port(port="http")], "spec.ports[0].port"),
    "sctp": ([port(port=80, protocol="SCTP")], "SCTP"),
    "icmp": ([port(port=80, protocol="ICMP")], "spec.ports[0].protocol"),
    "ports": ([bad(ports="80")], "spec.ports"),
    "name": ([bad() | {"metadata": {"name": LONG}}], "metadata.name"),
    "nameless": ([bad() | {"metadata": {}}], "metadata.name"),
    "slice": ([bad(), endpoints("bad", ["fd00::1"])], "endpoints[0].addresses"),
    "loop": ([bad(), endpoints("bad", ["127.0.0.1"])], "endpoints[0].addresses"),
    "pod": ([{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}], "Pod"),
}


def test_bad_manifests_beside_good_ones(stage: Stage) -> None:
    stage.write_service(range(4))
    daemon = stage.daemon(QUICK)
    stage.await_answers(0, 1, 2, 3)
    with Traffic(stage.client) as traffic:
        for name, (content, mark) in MANIFESTS.items():
            text = content if isinstance(content, str) else yaml.safe_dump_all(content)
            file = stage.manifests / f"bad-{name}.yaml"
            log = len(daemon.log())
            file.write_text(text)

            def logged(log: int = log, file: Path = file, mark: str = mark) -> bool:
                lines = [line for line in daemon.log()[log:].splitlines() if str(file) in line or "default/bad" in line]
                return any(mark in line for line in lines)

            until(logged, f"{name}: a line that names {file} and {mark}")
            traffic.more(5)
            file.unlink()
        traffic.more(20)
    assert traffic.failures == []
    assert "Traceback" not in daemon.log()


def test_one_faulty_document_of_a_file_and_the_last_good_version(stage: Stage) -> None:
    good = [service(), endpoints("web", [0]), service("second", "10.96.0.20"), endpoints("second", [1])]
    stage.write("both", *good)
    daemon = stage.daemon(QUICK)
    stage.await_answers(1, address=("10.96.0.20", 80))
    broken = yaml.safe_load(yaml.safe_dump(good[2]))
    broken["spec"]["ports"][0]["port"] = 0
    stage.write("both", service(), endpoints("web", [2]), broken, good[3])
    stage.await_answers(2)
    assert ask(stage.client, ("10.96.0.20", 80)) == "pod-1", "its last good version goes on"
    assert "spec.ports[0].port" in daemon.log()
    place = f"manifests: fault in {stage.manifests / 'both.yaml'} document 3"
    until(lambda: place in daemon.get("/statusz", address=METRICS).body, "the head of the status has it")
    assert place in daemon.get("/readyz").body
    assert 'kubeproxy_degraded{reason="manifests"} 1.0' in daemon.get("/metrics", address=METRICS).body
    assert daemon.get("/healthz").status == 200
    stage.write("both", service(), endpoints("web", [2]), good[2], endpoints("second", [3]))
    stage.await_answers(3, address=("10.96.0.20", 80))
    until(lambda: "degraded" not in daemon.get("/statusz", address=METRICS).body, "the status is healthy again")


def test_null_where_a_list_belongs_and_a_thousand_endpoints(stage: Stage) -> None:
    empty = endpoints("web", [])
    empty["endpoints"] = None
    stage.write("web", service(), empty)
    stage.daemon(QUICK)
    stage.await_refusal()
    many = [f"10.4.{number // 250}.{1 + number % 250}" for number in range(999)]
    stage.write("web", service(), endpoints("web", [0, *many]))
    # The other 999 addresses do not exist: the node sends their packets to the client host, which drops them.
    until(lambda: (VIP, 80) in kernel_state.redirects(stage.node), "the Service has its rule")
    stage.write_service([0])
    stage.await_answers(0)


def test_a_directory_that_disappears_and_comes_back(stage: Stage, tmp_path: Path) -> None:
    directory = tmp_path / "manifests"
    directory.mkdir()
    text = yaml.safe_dump_all([service(), endpoints("web", [0])])
    (directory / "web.yaml").write_text(text)
    daemon = stage.daemon(QUICK, manifests=directory)
    stage.await_answers(0)
    with Traffic(stage.client) as traffic:
        shutil.rmtree(directory)
        until(lambda: f"{directory}" in daemon.log().splitlines()[-1], "the log names the directory")
        traffic.more()
        directory.mkdir()
        traffic.more()
        (directory / "web.yaml").write_text(text.replace("10.3.0.2", "10.3.1.2"))
        until(lambda: "pod-1" in traffic.answers, "the new manifest is in effect")
    assert traffic.failures == []


def test_a_configmap_volume_is_swapped(stage: Stage, tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    for pod in (0, 1):
        (volume / f"..{pod}").mkdir(parents=True)
        text = yaml.safe_dump_all([service(), endpoints("web", [pod])])
        (volume / f"..{pod}" / "web.yaml").write_text(text)
    (volume / "..data").symlink_to("..0")
    (volume / "web.yaml").symlink_to("..data/web.yaml")
    stage.daemon(QUICK, manifests=volume)
    stage.await_answers(0)
    with Traffic(stage.client) as traffic:
        for pod in (1, 0, 1):
            (volume / "..new").symlink_to(f"..{pod}")
            (volume / "..new").rename(volume / "..data")
            stage.await_answers(pod)
    assert traffic.failures == []
