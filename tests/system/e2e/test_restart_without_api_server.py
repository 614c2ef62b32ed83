"""A restart while the API server is away: a node goes on with the state of before, however its processes have ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path

import pytest

from tests.support.apiserver import Fault
from tests.support.lab import Daemon
from tests.support.lab.daemon import METRICS
from tests.support.lab.web import Answer
from tests.system.e2e import kernel_state
from tests.system.e2e.api import ApiHost
from tests.system.e2e.conftest import PATHS
from tests.system.e2e.stage import KERNEL, QUICK, VIP, Stage, ask_often, endpoints, service, until
from tests.system.e2e.test_kubernetes import in_step
from tests.system.e2e.traffic import Traffic

pytestmark = [pytest.mark.netns, pytest.mark.long]

GONE = ("10.96.0.20", 80)
NEW = ("10.96.0.30", 80)
WEB = (VIP, 80)
OPTIONS = (QUICK, "--workers=1", "--shutdown-grace=1s", "--hostname-override=node-1")


@pytest.fixture
def api(stage: Stage) -> Iterator[ApiHost]:
    """An API server on the client's host, with two Services and this node."""
    others = service("gone", GONE[0]), endpoints("gone", [0])
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}}
    with ApiHost(stage.client, service(), endpoints("web", [0, 1]), *others, node) as api:
        yield api
        stage.clear()


def start(stage: Stage, api: ApiHost, state: Path, netfilter: str, *, ready_within_s: float | None = 60.0) -> Daemon:
    return stage.daemon(
        *OPTIONS,
        f"--master={api.url}",
        f"--state-dir={state}",
        netfilter=netfilter,
        manifests=None,
        ready_within_s=ready_within_s,
    )


def serve(stage: Stage, api: ApiHost, state: Path, netfilter: str) -> Daemon:
    """A daemon that has listed everything, and kept it."""
    daemon = start(stage, api, state, netfilter)
    stage.await_answers(0, 1)
    stage.await_answers(0, address=GONE)
    until(lambda: in_step(daemon), "both watches work")
    until(lambda: [*state.glob("state-*")], "its state is kept")
    return daemon


def kept(state: Path) -> Path:
    """Return the file in a directory for states."""
    (file,) = state.glob("state-*")
    return file


def killed(daemon: Daemon) -> None:
    os.killpg(daemon.process.pid, signal.SIGKILL)
    daemon.process.wait()


def terminated(daemon: Daemon) -> None:
    assert daemon.terminate() == 0


def forbid(api: ApiHost) -> None:
    api.do(lambda: api.server.inject(Fault(status=403, path="/apis/discovery.k8s.io/v1/endpointslices", times=-1)))


def allow(api: ApiHost) -> None:
    api.do(api.server.clear_faults)


Step = Callable[[ApiHost], None]
FAULTS: dict[str, tuple[Step, Step]] = {"away": (ApiHost.stop, ApiHost.start), "403": (forbid, allow)}


def stale_s(daemon: Daemon) -> float:
    """The metric of the source's stale state."""
    body = daemon.get("/metrics", address=METRICS).body
    (line,) = (line for line in body.splitlines() if line.startswith("kubeproxy_source_stale_seconds{"))
    return float(line.rpartition(" ")[2])


def await_the_present(stage: Stage, api: ApiHost, daemon: Daemon, come_back: Step) -> None:
    """Change everything, have the server come back, and wait until what is served is the server's."""
    api.put(service("new", NEW[0]), endpoints("new", [2]), endpoints("web", [1, 2]))
    api.delete(service("gone", GONE[0]))
    come_back(api)
    until(lambda: NEW in kernel_state.redirects(stage.node), "the new one is there")
    until(lambda: GONE not in kernel_state.redirects(stage.node), "the deleted one has gone")
    stage.await_answers(1, 2)
    stage.await_answers(2, address=NEW)
    daemon.wait_ready(30)
    assert stale_s(daemon) == 0
    assert "Traceback" not in daemon.log()


@pytest.mark.parametrize(("end", "fault"), [(killed, "away"), (terminated, "403")])
@pytest.mark.parametrize("netfilter", PATHS)
def test_a_start_serves_the_state_of_before_until_the_sources_are_listed(
    stage: Stage, api: ApiHost, tmp_path: Path, netfilter: str, end: Callable[[Daemon], None], fault: str
) -> None:
    go_away, come_back = FAULTS[fault]
    first = serve(stage, api, tmp_path, netfilter)
    go_away(api)
    end(first)
    if netfilter == KERNEL:
        assert set(ask_often(stage.client, WEB, 20)) == {"pod-0", "pod-1"}
    second = start(stage, api, tmp_path, netfilter)
    assert "serving state of earlier run" in second.log()
    stage.await_answers(0, 1)
    stage.await_answers(0, address=GONE)
    assert second.get("/healthz").status == HTTPStatus.OK
    assert (
        "serving the state of an earlier run, stale since" in second.get("/statusz?format=text", address=METRICS).body
    )
    assert stale_s(second) > 0
    until(lambda: "stale: serving the state of an earlier run" in second.get("/readyz").body, "it is a reason")
    with Traffic(stage.client, pause_s=0.02) as traffic:
        await_the_present(stage, api, second, come_back)
        traffic.more()
    assert traffic.failures == []
    until(lambda: "state of earlier run replaced" in second.log(), "it says so")


@pytest.mark.parametrize("netfilter", PATHS)
def test_a_new_program_serves_the_state_of_before(stage: Stage, api: ApiHost, tmp_path: Path, netfilter: str) -> None:
    """The workers keep serving until then, and for as long as the sources may still be listed."""
    daemon = serve(stage, api, tmp_path, netfilter)
    api.stop()
    with Traffic(stage.client, pause_s=0.02) as traffic:
        daemon.process.send_signal(signal.SIGUSR2)
        until(lambda: daemon.log().count("kubeproxy starts") == 2, "it has begun anew")
        until(lambda: "serving state of earlier run" in daemon.log(), "it takes the state of before")
        until(lambda: "orphaned worker has ended" in daemon.log(), "the workers of before have ended")
        traffic.more()
        stage.await_answers(0, 1)
        await_the_present(stage, api, daemon, ApiHost.start)
        traffic.more()
    assert traffic.failures == []


@pytest.mark.parametrize("netfilter", PATHS)
def test_a_node_that_boots_waits_for_the_server_and_says_so(
    stage: Stage, api: ApiHost, tmp_path: Path, netfilter: str
) -> None:
    first = serve(stage, api, tmp_path, netfilter)
    api.stop()
    killed(first)
    kernel_state.reset_rules(stage.node)
    kept(tmp_path).unlink()
    second = start(stage, api, tmp_path, netfilter, ready_within_s=None)

    def answer() -> Answer | None:
        try:
            return second.get("/healthz")
        except OSError:
            return None

    until(answer, "it listens")
    health = second.get("/healthz")
    assert health.status == HTTPStatus.SERVICE_UNAVAILABLE, "load balancers send no clients"
    assert "starting: the first sync is not complete" in health.body
    assert second.get("/livez").status == HTTPStatus.OK, "a restart would not help"
    assert second.get("/readyz").status == HTTPStatus.SERVICE_UNAVAILABLE
    await_the_present(stage, api, second, ApiHost.start)
    assert second.get("/healthz").status == HTTPStatus.OK


def test_a_state_that_is_not_this_nodes_is_refused_in_one_line(stage: Stage, api: ApiHost, tmp_path: Path) -> None:
    first = serve(stage, api, tmp_path, "nftables")
    api.stop()
    terminated(first)
    kept(tmp_path).chmod(0o644)
    second = start(stage, api, tmp_path, "nftables", ready_within_s=None)
    until(lambda: "state of earlier run not used" in second.log(), "it says so")
    assert second.log().count("open to other users") == 1
    api.start()
    second.wait_ready(30)
    stage.await_answers(0, 1)
