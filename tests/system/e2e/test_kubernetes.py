"""With an API server: what it says reaches traffic, and its absence does not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.apiserver import V1_20, Break, Fault
from tests.support.lab import Daemon, Network
from tests.support.lab.daemon import KUBEPROXY, METRICS
from tests.system.e2e import kernel_state
from tests.system.e2e.api import ApiHost
from tests.system.e2e.conftest import PATHS
from tests.system.e2e.stage import KERNEL, QUICK, TARGET, VIP, Object, Stage, ask, endpoints, refused, service, until
from tests.system.e2e.traffic import Traffic

pytestmark = pytest.mark.netns

OTHER = ("10.96.0.20", 80)


def serve(stage: Stage, api: ApiHost, *options: str, **more: Any) -> Daemon:
    """A daemon that asks it."""
    return stage.daemon(QUICK, f"--master={api.url}", *options, **{"manifests": None, **more})


@pytest.mark.parametrize("netfilter", PATHS)
def test_services_and_endpoints_come_and_go(stage: Stage, api: ApiHost, netfilter: str) -> None:
    daemon = serve(stage, api, netfilter=netfilter)
    stage.await_answers(0, 1)
    api.put(endpoints("web", [1, 2, 3]))
    stage.await_answers(1, 2, 3)
    api.put(service("other", OTHER[0]), endpoints("other", [0]))
    stage.await_answers(0, address=OTHER)
    assert ask(stage.node, OTHER) == "pod-0"
    api.delete(endpoints("other", [0]))
    stage.await_refusal(OTHER)
    assert refused(stage.node, OTHER)
    api.delete(service("other", OTHER[0]))
    until(lambda: kernel_state.redirects(stage.node).keys() == {(VIP, 80)}, "the other is gone")
    assert daemon.terminate() == 0


def test_several_slices_and_endpoints_that_are_not_ready(stage: Stage, api: ApiHost) -> None:
    more = endpoints("web", [2, 3])
    more["metadata"]["name"] = "web-2"
    more["endpoints"][1]["conditions"] = {"ready": False, "serving": False, "terminating": False}
    api.put(more)
    serve(stage, api)
    stage.await_answers(0, 1, 2)
    more["endpoints"][1]["conditions"] = {}
    api.put(more)
    stage.await_answers(0, 1, 2, 3)
    api.delete(endpoints("web", []))
    stage.await_answers(2, 3)


def test_what_is_not_ours_is_not_served(stage: Stage, api: ApiHost) -> None:
    serve(stage, api)
    stage.await_answers(0, 1)
    labelled = service("labelled", "10.96.0.31", metadata={"labels": {"service.kubernetes.io/service-proxy-name": "x"}})
    headless = service("headless", "None")
    external = service("external", "10.96.0.33")
    external["spec"] = {"type": "ExternalName", "externalName": "example.org"}
    api.put(labelled, headless, external, service("other", OTHER[0]), endpoints("other", [2]))
    stage.await_answers(2, address=OTHER)
    assert kernel_state.redirects(stage.node).keys() == {(VIP, 80), OTHER}
    # Ours becomes another's, and the other way round.
    api.put(service("other", OTHER[0], metadata=labelled["metadata"] | {"name": "other", "namespace": "default"}))
    until(lambda: kernel_state.redirects(stage.node).keys() == {(VIP, 80)}, "it is another proxy's now")
    api.put(service("other", OTHER[0]))
    stage.await_answers(2, address=OTHER)


@pytest.mark.parametrize(
    ("forgotten", "netfilter"),
    [(False, "nftables"), (True, "nftables"), (True, KERNEL)],
    ids=["it remembers", "it forgot its history", "it forgot its history, kernel"],
)
def test_its_absence_disturbs_no_traffic(stage: Stage, api: ApiHost, forgotten: bool, netfilter: str) -> None:
    api.put(service("other", OTHER[0]), endpoints("other", [0]))
    daemon = serve(stage, api, netfilter=netfilter)
    stage.await_answers(0, address=OTHER)
    with Traffic(stage.client) as far, Traffic(stage.node) as near:
        until(lambda: in_step(daemon), "both watches work")
        for round_ in range(2):
            api.stop()
            until(lambda: daemon.log().count("API server lost") > round_, "it is noticed")  # noqa: B023
            far.more()
            near.more()
            api.put(endpoints("web", [2, 3] if round_ == 0 else [0, 1]))
            if round_ == 0:
                api.delete(service("other", OTHER[0]))
            if forgotten:
                api.do(api.server.cluster.expire)
            api.start()
            stage.await_answers(*((2, 3) if round_ == 0 else (0, 1)))
            until(lambda: daemon.log().count("API server back") > round_, "it is noticed")  # noqa: B023
            until(lambda: OTHER not in kernel_state.redirects(stage.node), "the deletion is noticed")
        far.more()
        near.more()
    assert (far.failures, near.failures) == ([], [])
    assert daemon.log().count("API server lost") == 2


def in_step(daemon: Daemon) -> bool:
    """Whether it takes itself to be in step with the server."""
    page = daemon.get("/metrics", address=METRICS).body
    behind = re.findall(r"^kubeproxy_watch_behind_seconds\{[^}]*} (\S+)", page, re.MULTILINE)
    return len(behind) >= 2 and all(float(seconds) == 0 for seconds in behind)


def test_watches_that_break(stage: Stage, api: ApiHost) -> None:
    daemon = serve(stage, api)
    stage.await_answers(0, 1)
    with Traffic(stage.client, pause_s=0.02) as traffic:
        for turn, how in enumerate((Break.CUT, Break.HALF_LINE, Break.GARBAGE, Break.ERROR_410)):
            until(lambda: in_step(daemon), "it watches")
            api.do(lambda: api.server.break_watches(how))  # noqa: B023
            pods = (2, 3) if turn % 2 == 0 else (0, 1)
            api.put(endpoints("web", pods))
            stage.await_answers(*pods)
    assert traffic.failures == []
    assert "Traceback" not in daemon.log()


FAULTS = {
    "HTML": Fault(status=200, body="<html>hello</html>", content_type="text/html", times=3),
    "503": Fault(status=503, times=3),
    "cut": Fault(kind="cut", times=3),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_start_against_a_server_in_trouble(stage: Stage, api: ApiHost, fault: str) -> None:
    api.do(lambda: api.server.inject(FAULTS[fault]))
    daemon = serve(stage, api)
    stage.await_answers(0, 1)
    assert "Traceback" not in daemon.log()


def test_a_start_before_the_server_serves_nothing_half(stage: Stage, api: ApiHost) -> None:
    api.stop()
    process = stage.node.popen([KUBEPROXY, "run", f"--master={api.url}", "--netfilter=nftables"])
    until(lambda: any(seen.port == 10256 for seen in kernel_state.listening(stage.node)), "it runs")
    # The list of endpoints comes, that of Services does not.
    api.do(lambda: api.server.inject(Fault(status=500, path="/api/v1/services", times=-1)))
    api.start()
    until(lambda: api.server.counts["list endpointslices"], "endpoints are listed")
    assert kernel_state.redirects(stage.node) == {}
    api.do(api.server.clear_faults)
    stage.await_answers(0, 1)
    process.terminate()
    assert process.wait(15) == 0


def test_a_server_without_endpoint_slices(stage: Stage) -> None:
    old: Object = {
        "kind": "Endpoints",
        "metadata": {"name": "web", "namespace": "default"},
        "subsets": [subset(0, 1)],
    }
    with ApiHost(stage.client, service(), old, version=V1_20) as api:
        serve(stage, api)
        stage.await_answers(0, 1)
        api.put({**old, "subsets": [subset(2), subset(3)]})
        stage.await_answers(2, 3)
        api.put({**old, "subsets": []})
        stage.await_refusal()
        api.put(old)
        stage.await_answers(0, 1)
        stage.clear()


def subset(*pods: int) -> dict[str, Any]:
    """Of an Endpoints object."""
    addresses = [{"ip": Network.pod_v4(pod)} for pod in pods]
    return {"addresses": addresses, "ports": [{"name": "http", "port": TARGET, "protocol": "TCP"}]}


def test_by_a_kubeconfig_with_a_token(stage: Stage, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    with ApiHost(stage.client, service(), endpoints("web", [0]), tokens={"secret"}) as api:
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "it",
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "me"}}],
            "clusters": [{"name": "it", "cluster": {"server": api.url, "insecure-skip-tls-verify": True}}],
            "users": [{"name": "me", "user": {"token": "secret"}}],
        }
        path.write_text(json.dumps(content))
        daemon = stage.daemon(f"--kubeconfig={path}", manifests=None)
        stage.await_answers(0)
        assert "secret" not in daemon.log()
        stage.clear()


def test_manifests_beside_it(stage: Stage, api: ApiHost) -> None:
    stage.write_service([3], name="other", vip=OTHER[0])
    serve(stage, api, manifests=stage.manifests)
    stage.await_answers(0, 1)
    stage.await_answers(3, address=OTHER)


def test_a_service_that_both_define_belongs_to_the_first(stage: Stage, api: ApiHost) -> None:
    daemon = serve(stage, api, manifests=stage.manifests)
    stage.await_answers(0, 1)
    stage.write_service([3])
    until(lambda: "also defined by manifests; the one of kubernetes stays" in daemon.log(), "it is refused")
    stage.await_answers(0, 1)
    with Traffic(stage.client) as traffic:
        api.delete(service())
        until(lambda: "pod-3" in traffic.answers, "the other one takes its place")
        traffic.more()
        api.put(service())
        until(lambda: "also defined by kubernetes; the one of manifests stays" in daemon.log(), "it is refused")
        traffic.more()
        stage.remove("web")
        until(lambda: traffic.answers["pod-3"] < traffic.count - 50 and "pod-0" in traffic.answers, "and back")
        traffic.more()
    assert traffic.failures == []


@pytest.mark.parametrize("netfilter", ["nftables", KERNEL])
def test_an_api_server_behind_a_service_of_the_manifests(stage: Stage, api: ApiHost, netfilter: str) -> None:
    behind = endpoints("kubernetes", ["10.2.0.2"])
    behind["ports"][0]["port"] = 8001
    stage.write("kubernetes", service("kubernetes", "10.96.0.1", {"http": 443}), behind)
    daemon = stage.daemon(QUICK, "--master=http://10.96.0.1:443", netfilter=netfilter, manifests=stage.manifests)
    stage.await_answers(0, 1)
    assert "10.96.0.1" in daemon.log()
