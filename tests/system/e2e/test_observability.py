"""The view of an operator on a running daemon: metrics, health, access log, and the process of each port."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.lab import Daemon, Network
from tests.support.lab.daemon import HEALTHZ, KUBEPROXY, METRICS, environment
from tests.support.lab.web import get
from tests.system.e2e.api import ApiHost
from tests.system.e2e.stage import TARGET, VIP, Stage, ask, endpoints, service, until

pytestmark = pytest.mark.netns

LOGFMT = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\S*)')


class Scrape:
    """The samples of one GET of /metrics."""

    def __init__(self, daemon: Daemon) -> None:
        answer = daemon.get("/metrics", address=METRICS)
        assert answer.status == 200
        self._samples = [sample for family in text_string_to_metric_families(answer.body) for sample in family.samples]

    def __call__(self, name: str, **labels: str) -> float:
        """The sum of all samples with this name and at least these labels."""
        found = [s.value for s in self._samples if s.name == name and labels.items() <= s.labels.items()]
        assert found, f"no {name} {labels}"
        return sum(found)

    def has(self, name: str, **labels: str) -> bool:
        """Whether there is such a sample."""
        return any(s.name == name and labels.items() <= s.labels.items() for s in self._samples)


def lines(path: Path) -> list[dict[str, str]]:
    return [dict(LOGFMT.findall(line)) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("workers", [0, 2])
def test_traffic_is_counted_and_written_down(stage: Stage, tmp_path: Path, workers: int) -> None:
    dead, path = Network.pod_v4(0), tmp_path / "access.log"
    stage.write_service([0])
    stage.write_service([f"{dead[:-1]}99"], name="dead", vip="10.96.0.11")
    stage.write_service([1], name="unused", vip="10.96.0.12")
    daemon = stage.daemon(f"--workers={workers}", f"--access-log={path}", "--dial-timeouts=200ms,200ms")
    for _ in range(5):
        assert ask(stage.client, (VIP, 80)) == "pod-0"
    with pytest.raises(OSError):
        ask(stage.client, ("10.96.0.11", 80))
    until(lambda: len(lines(path)) == 6, "a line for each connection")

    scrape = Scrape(daemon)
    assert scrape("kubeproxy_connections_accepted_total", service="web", port="http") == 5
    assert scrape("kubeproxy_connections_failed_total", service="web") == 0
    assert scrape("kubeproxy_connections_failed_total", service="dead") == 1
    assert scrape("kubeproxy_connections_active", service="web") == 0
    assert scrape("kubeproxy_forwarded_bytes_total", service="web", direction="in") == 5 * len("name\n")
    assert scrape("kubeproxy_forwarded_bytes_total", service="web", direction="out") == 5 * len("pod-0")
    assert scrape("kubeproxy_endpoints_ejected", service="dead") == 1
    assert scrape("kubeproxy_connections_accepted_total", service="unused") == 0
    assert not scrape.has("kubeproxy_connections_active", service="unused")
    assert scrape("kubeproxy_dial_duration_seconds_count") == 5
    assert scrape("kubeproxy_worker_up") == max(1, workers)
    assert scrape("kubeproxy_descriptors_limit") > 0
    assert scrape("kubeproxy_loop_lag_seconds_count") > 0
    assert scrape("kubeproxy_netfilter_apply_duration_seconds_count", adapter="nftables") >= 1
    assert scrape("kubeproxy_sync_proxy_rules_duration_seconds_count", ip_family="IPv4") >= 1
    assert scrape.has("kubeproxy_worker_cpu_seconds_total") == (workers > 0)

    *served, failed = lines(path)
    for line in served:
        assert line["service"] == "default/web"
        assert line["client"].startswith("10.2.0.2:")
        assert line["endpoint"] == f"{Network.pod_v4(0)}:{TARGET}"
        assert (line["bytes_in"], line["bytes_out"], line["end"]) == ("5", "5", "closed")
    assert failed["service"] == "default/dead"
    assert failed["endpoint"] == "-"
    assert int(failed["attempts"]) >= 1


def test_the_access_log_follows_its_name_and_ends_with_the_last_connection(stage: Stage, tmp_path: Path) -> None:
    stage.write_service([0])
    path, rotated = tmp_path / "access.log", tmp_path / "access.log.1"
    daemon = stage.daemon(f"--access-log={path}", "--logging-format=json")
    ask(stage.client, (VIP, 80))
    until(lambda: path.exists() and path.read_text().count("\n") == 1, "a line")
    path.rename(rotated)
    daemon.process.send_signal(signal.SIGHUP)
    ask(stage.client, (VIP, 80))
    assert daemon.terminate() == 0
    (line,) = path.read_text().splitlines()
    assert json.loads(line)["end"] == "closed"
    assert rotated.read_text().count("\n") == 1
    for entry in map(json.loads, daemon.log().splitlines()):
        assert {"ts", "caller", "msg", "level"} <= entry.keys()


def test_counters_outlive_a_worker(stage: Stage) -> None:
    stage.write_service([0])
    daemon = stage.daemon("--workers=2")
    for _ in range(20):
        ask(stage.client, (VIP, 80))
    before = Scrape(daemon)
    assert before("kubeproxy_connections_accepted_total", service="web") == 20
    children = Path(f"/proc/{daemon.process.pid}/task/{daemon.process.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)
    until(lambda: Scrape(daemon)("kubeproxy_worker_restarts_total") == 1, "it is replaced")
    until(lambda: Scrape(daemon)("kubeproxy_worker_up") == 2, "its replacement serves")
    after = Scrape(daemon)
    for name in ("kubeproxy_connections_accepted_total", "kubeproxy_forwarded_bytes_total"):
        assert after(name, service="web") == before(name, service="web")
    assert after("kubeproxy_dial_duration_seconds_count") == before("kubeproxy_dial_duration_seconds_count")
    ask(stage.client, (VIP, 80))
    assert Scrape(daemon)("kubeproxy_connections_accepted_total", service="web") == 21


def test_the_metrics_servers_pages(stage: Stage) -> None:
    stage.write_service([0])
    daemon = stage.daemon("--iptables-min-sync-period=2s")
    assert daemon.get("/healthz", address=METRICS).body == "ok"
    assert daemon.get("/proxyMode", address=METRICS).body == "userspace"
    configuration = json.loads(daemon.get("/configz", address=METRICS).body)["kubeproxy.config.k8s.io"]
    assert configuration["IPTables"]["MinSyncPeriod"] == "2s"
    assert 'type="readyz"} 1.0' in daemon.get("/metrics/slis", address=METRICS).body
    assert daemon.get("/debug/tasks", address=METRICS).status == 404


def test_a_taken_http_port_ends_the_start_only_with_hard_fail(stage: Stage) -> None:
    stage.write_service([0])
    with stage.node.entered():
        taken = socket.create_server(METRICS)
    try:
        daemon = stage.daemon()
        assert "cannot listen, trying again" in daemon.log()
        assert ask(stage.client, (VIP, 80)) == "pod-0"
        daemon.close()
        with pytest.raises(AssertionError, match="ended with status 1") as error:
            stage.daemon("--bind-address-hard-fail")
        assert f"metrics cannot listen on {METRICS[0]}:{METRICS[1]}: Address already in use" in str(error.value)
    finally:
        taken.close()
    daemon = stage.daemon("--bind-address-hard-fail")
    assert daemon.get("/healthz", address=HEALTHZ).status == 200


def test_the_status_page_answers_once_systemd_is_notified(stage: Stage, tmp_path: Path) -> None:
    began = time.time()
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    manager.settimeout(60)
    process = stage.node.popen(
        [KUBEPROXY, "run", f"--manifests={stage.manifests}", "--netfilter=nftables", "--kubernetes=never"],
        env={**environment(tmp_path), "NOTIFY_SOCKET": str(tmp_path / "notify")},
    )
    try:
        while b"READY=1" not in manager.recv(4096):
            pass
        status = json.loads(get(stage.node, METRICS, "/statusz.json").body)
        assert get(stage.node, HEALTHZ, "/readyz").status == 200
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        manager.close()
    first = min(worker["began"] for worker in status["workers"])
    assert began <= status["began"] <= first, "its age is not that of its pages"


def test_a_node_that_the_cluster_does_not_have_or_is_about_to_remove_takes_no_new_clients(stage: Stage) -> None:
    name = "node-1"
    node: dict[str, Any] = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {}}
    taint = {"key": "ToBeDeletedByClusterAutoscaler", "value": "1", "effect": "NoSchedule"}
    with ApiHost(stage.client, service(), endpoints("web", [0])) as api:
        daemon = stage.daemon(f"--master={api.url}", f"--hostname-override={name}", manifests=None)

        def eligible() -> bool:
            answer = daemon.get("/healthz")
            body = json.loads(answer.body)
            assert answer.status == (200 if body["healthy"] else 503)
            assert body["healthy"] == body["nodeEligible"]
            assert daemon.get("/livez").status == 200
            return bool(body["nodeEligible"])

        until(lambda: not eligible(), "there is no such node")
        assert "API server has no such node" in daemon.log()
        (problem,) = json.loads(daemon.get("/statusz.json", address=METRICS).body)["problems"]
        assert problem.startswith("node: the cluster has no Node of this name")
        api.put(node)
        until(eligible, "the node is there")
        api.put({**node, "spec": {"taints": [taint]}})
        until(lambda: not eligible(), "the node is about to be removed")
        api.put(node)
        until(eligible, "it is not")
        scrape = Scrape(daemon)
        assert scrape("rest_client_requests_total", code="200", method="GET") > 0
        assert scrape("rest_client_request_duration_seconds_count", verb="GET") > 0
        assert scrape("kubeproxy_watch_lists_total", resource="services") == 1
        until(lambda: Scrape(daemon)("kubeproxy_events_sent_total") >= 1, "the start is sent as an Event")
        daemon.terminate()
