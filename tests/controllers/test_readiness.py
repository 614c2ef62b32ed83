"""Pods with the readiness gate in virtual time: they are ready when every node uses them, or when it is time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from kubeproxy.controllers.proxy_requests.timeouts import USE_TIMEOUT
from kubeproxy.controllers.readiness import controller
from kubeproxy.controllers.readiness.gates import GATE, SETTLE_S
from kubeproxy.kubernetes import timestamps
from kubeproxy.kubernetes.api_types import Status
from kubeproxy.kubernetes.client.errors import UnreachableError
from kubeproxy.kubernetes.client.status import status_error
from kubeproxy.kubernetes.object_client import STRATEGIC
from tests.controllers.api import Json, Write
from tests.controllers.cluster import Cluster, running
from tests.controllers.proxies import Proxies, expose, requests_on
from tests.controllers.virtual_time import run

Scenario = Callable[[Cluster, Proxies], Awaitable[None]]
CONTAINERS_S = 1.0
"""From the creation of a pod until its containers are ready."""


@asynccontextmanager
async def stage(*, nodes: int = 3, exposed: bool = True) -> AsyncIterator[tuple[Cluster, Proxies]]:
    cluster = Cluster()
    if exposed:
        expose(cluster.api)
    proxies = Proxies(cluster.api, nodes)
    await asyncio.sleep(1)
    async with running(cluster.api, cluster.recorded):
        yield cluster, proxies
    proxies.close()


def play(scenario: Scenario, **options: Any) -> None:
    async def whole() -> None:
        async with stage(**options) as (cluster, proxies):
            await scenario(cluster, proxies)

    run(whole())


def start(cluster: Cluster, name: str = "web-0", *gates: str, timeout: str = "", **spec: Any) -> None:
    """Create a pod with the gate, and with others."""
    cluster.api.create(
        "pods",
        "default",
        {
            "metadata": {
                "name": name,
                "labels": {"app": "web"},
                "annotations": {USE_TIMEOUT: timeout} if timeout else {},
            },
            "spec": {
                "containers": [{"name": "app", "image": "web:1"}],
                "readinessGates": [{"conditionType": each} for each in (GATE, *gates)],
                **spec,
            },
        },
    )


def condition(cluster: Cluster, type: str = GATE, name: str = "web-0") -> Json:
    """A condition of a pod, or nothing."""
    stated = cluster.api.objects["pods", "default", name]["status"].get("conditions", [])
    return next((each for each in stated if each["type"] == type), {})


def is_ready(cluster: Cluster, name: str = "web-0") -> bool:
    return condition(cluster, "Ready", name).get("status") == "True"


def says(cluster: Cluster, name: str = "web-0") -> tuple[str, str]:
    """Status and reason of the gate's condition."""
    found = condition(cluster, name=name)
    return found.get("status", ""), found.get("reason", "")


def address(cluster: Cluster, name: str = "web-0") -> str:
    return str(cluster.api.get("pods", name)["status"]["podIPs"][0]["ip"])


async def waiting_for(cluster: Cluster, name: str = "web-0") -> None:
    """Wait until the proxies are asked about a pod."""
    await cluster.until(lambda: (name, "ready") in requests_on(cluster.api), within_s=20)


def test_a_pod_is_ready_when_every_node_uses_it_and_not_before() -> None:
    async def scenario(cluster: Cluster, proxies: Proxies) -> None:
        used_first: list[bool] = []

        def watch(write: Write) -> None:
            if write.resource == "pods" and says(cluster) == ("True", "InUse"):
                used_first.append(all(address(cluster) in served for served in proxies.served.values()))

        start(cluster)
        cluster.api.observers.append(watch)
        await cluster.until(lambda: is_ready(cluster), within_s=CONTAINERS_S + 4)
        assert used_first[0]
        assert says(cluster) == ("True", "InUse")
        assert requests_on(cluster.api) == [("web-0", "ready")], "its EndpointSlice may be late"
        await cluster.until(lambda: requests_on(cluster.api) == [], within_s=SETTLE_S + 5)
        assert all(address(cluster) in served for served in proxies.served.values())
        assert cluster.recorded.of("Pod") == []
        writes = cluster.api.writes
        await asyncio.sleep(300)
        assert cluster.api.writes == writes

    play(scenario)


@pytest.mark.parametrize(
    "spec", [None, {"clusterIP": "None"}, {"selector": {"app": "other"}}], ids=["none", "headless", "another's"]
)
def test_a_pod_that_no_proxy_leads_to_waits_for_none(spec: Json | None) -> None:
    async def scenario(cluster: Cluster, proxies: Proxies) -> None:
        if spec is not None:
            expose(cluster.api)
            cluster.api.patch("services", "default", "web", {"spec": spec})
        proxies.stuck |= {"node-0", "node-1", "node-2"}
        await asyncio.sleep(1)
        start(cluster)
        await cluster.until(lambda: is_ready(cluster), within_s=CONTAINERS_S + 2)
        assert says(cluster) == ("True", "NoService")

    play(scenario, exposed=False)


@pytest.mark.parametrize(("timeout", "seconds"), [("", 60), ("20s", 20), ("soon", 60)])
def test_a_proxy_that_does_not_follow_delays_a_pod_and_does_not_block_it(timeout: str, seconds: float) -> None:
    async def scenario(cluster: Cluster, proxies: Proxies) -> None:
        proxies.stuck.add("node-1")
        start(cluster, timeout=timeout)
        await waiting_for(cluster)
        await asyncio.sleep(seconds - 5)
        assert says(cluster) == ("False", "WaitingForProxies")
        assert "1 node (node-1) do not use this pod yet" in condition(cluster)["message"]
        await cluster.until(lambda: is_ready(cluster), within_s=10)
        assert says(cluster) == ("True", "TimedOut")
        told = dict(cluster.recorded.of("Pod"))
        assert f"1 node (node-1) do not use it after {seconds} s" in told["ProxiesNotFollowing"]
        assert "too old for readiness gates" in told["ProxiesNotFollowing"]
        assert ("found 'soon'" in told.get("InvalidDrainOptions", "")) is (timeout == "soon")

    play(scenario)


def test_an_open_gate_stays_open_while_readiness_changes() -> None:
    async def scenario(cluster: Cluster, proxies: Proxies) -> None:
        start(cluster)
        await cluster.until(lambda: is_ready(cluster))
        await asyncio.sleep(2)
        cluster.kubelet.set_ready("web-0", False)
        await cluster.until(lambda: requests_on(cluster.api) == [], within_s=3)
        proxies.stuck |= {"node-0", "node-1", "node-2"}
        cluster.kubelet.set_ready("web-0", True)
        assert is_ready(cluster)
        await asyncio.sleep(5)
        assert requests_on(cluster.api) == []

    play(scenario)


@pytest.mark.parametrize("ends", ["unready", "deleted", "replaced"])
def test_a_request_ends_with_the_wait_of_its_pod(ends: str) -> None:
    async def scenario(cluster: Cluster, proxies: Proxies) -> None:
        proxies.stuck.add("node-1")
        start(cluster)
        await waiting_for(cluster)
        before = address(cluster)
        if ends == "unready":
            cluster.kubelet.set_ready("web-0", False)
        else:
            cluster.api.remove("pods", "default", "web-0")
        if ends == "replaced":
            start(cluster)
            proxies.stuck.clear()
            await cluster.until(lambda: is_ready(cluster))
            assert address(cluster) != before
        else:
            await cluster.until(lambda: requests_on(cluster.api) == [], within_s=3)
        await asyncio.sleep(1)
        assert all(before not in served for node, served in proxies.served.items() if node not in proxies.stuck)

    play(scenario)


def test_a_pod_that_begins_to_wait_while_requests_are_withdrawn_is_seen() -> None:
    async def scenario(cluster: Cluster, proxies: Proxies) -> None:
        start(cluster)
        await cluster.until(lambda: is_ready(cluster))
        cluster.kubelet.is_broken = lambda pod: True
        start(cluster, "web-1")
        await asyncio.sleep(CONTAINERS_S + 1)

        def begin(verb: str, resource: str, body: Json) -> None:
            if resource == "services":
                cluster.kubelet.set_ready("web-1", True)

        cluster.api.refuse = begin
        await cluster.until(lambda: is_ready(cluster, "web-1"), within_s=SETTLE_S + 10)

    play(scenario)


def test_nodes_without_a_live_report_are_not_waited_for() -> None:
    async def scenario(cluster: Cluster, proxies: Proxies) -> None:
        proxies.gone.add("node-1")
        await asyncio.sleep(200)
        start(cluster)
        await cluster.until(lambda: is_ready(cluster), within_s=CONTAINERS_S + 4)
        assert says(cluster) == ("True", "InUse")

    play(scenario)


def test_a_node_that_dies_meanwhile_is_waited_for_until_its_report_expires() -> None:
    async def scenario(cluster: Cluster, proxies: Proxies) -> None:
        await asyncio.sleep(61)
        proxies.gone.add("node-1")
        start(cluster, timeout="10m")
        await cluster.until(lambda: is_ready(cluster), within_s=170)
        assert says(cluster) == ("True", "InUse")

    play(scenario)


def test_a_node_that_joins_meanwhile_is_waited_for() -> None:
    async def scenario(cluster: Cluster, proxies: Proxies) -> None:
        proxies.stuck.add("node-1")
        start(cluster, timeout="10m")
        await waiting_for(cluster)
        proxies.join("node-3")
        proxies.stuck |= {"node-3"}
        proxies.stuck.discard("node-1")
        await asyncio.sleep(30)
        assert "(node-3)" in condition(cluster)["message"]
        proxies.stuck.clear()
        await cluster.until(lambda: is_ready(cluster), within_s=5)

    play(scenario)


def test_without_any_report_no_pod_waits_and_its_owner_is_told() -> None:
    async def scenario(cluster: Cluster, proxies: Proxies) -> None:
        start(cluster)
        await cluster.until(lambda: is_ready(cluster), within_s=CONTAINERS_S + 2)
        assert says(cluster) == ("True", "NoReports")
        ((reason, message),) = cluster.recorded.of("Pod")
        assert reason == "ProxiesUnknown"
        assert "kubeproxy.drainReports is off" in message

    play(scenario, nodes=0)


def test_reports_that_cannot_be_read_are_waited_for_half_a_minute() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        cluster.forbid_reports()
        expose(cluster.api)
        async with running(cluster.api, cluster.recorded, wait_for_reports=False):
            start(cluster)
            await cluster.until(lambda: is_ready(cluster), within_s=CONTAINERS_S + 35)
        assert says(cluster) == ("True", "ProxiesUnknown")
        assert "cannot be read: bind the roles" in condition(cluster)["message"]

    run(scenario())


def test_a_pod_waits_for_all_of_its_services() -> None:
    async def scenario(cluster: Cluster, proxies: Proxies) -> None:
        expose(cluster.api, "second")
        cluster.api.refuse = _refusing("services", 500, of=cluster, named="second")
        start(cluster)
        await waiting_for(cluster)
        await asyncio.sleep(15)
        assert not is_ready(cluster)
        cluster.api.refuse = lambda verb, resource, body: None
        await cluster.until(lambda: is_ready(cluster), within_s=12)
        assert says(cluster) == ("True", "InUse")
        assert requests_on(cluster.api, "second") == [("web-0", "ready")]

    play(scenario)


def test_a_service_that_refuses_requests_delays_the_pods_of_no_other() -> None:
    async def scenario(cluster: Cluster, proxies: Proxies) -> None:
        expose(cluster.api, "refusing", "other")
        cluster.api.refuse = _refusing("services", 500, of=cluster, named="refusing")
        start(cluster, "other")
        cluster.api.patch("pods", "default", "other", {"metadata": {"labels": {"app": "other"}}})
        start(cluster)
        await cluster.until(lambda: is_ready(cluster), within_s=CONTAINERS_S + 4)
        assert not is_ready(cluster, "other")
        cluster.api.refuse = _refusing("services", 403, of=cluster, named="refusing")
        await cluster.until(lambda: is_ready(cluster, "other"), within_s=12)
        assert says(cluster, "other") == ("True", "ProxiesUnknown")
        assert "the proxies cannot be asked: not this one" in condition(cluster, name="other")["message"]

    play(scenario)


@pytest.mark.parametrize(("code", "reason"), [(409, "Conflict"), (429, "TooManyRequests"), (500, "InternalError")])
def test_a_condition_that_cannot_be_written_is_written_later(code: int, reason: str) -> None:
    async def scenario(cluster: Cluster, proxies: Proxies) -> None:
        cluster.api.refuse = _refusing("pods", code, reason)
        start(cluster)
        await waiting_for(cluster)
        await asyncio.sleep(30)
        tries = cluster.api.requests["patch pods/status"]
        assert 3 <= tries <= 40, "no faster than the back-off"
        assert not is_ready(cluster)
        cluster.api.refuse = lambda verb, resource, body: None
        await cluster.until(lambda: is_ready(cluster), within_s=11)

    play(scenario)


def test_a_pod_whose_status_is_refused_delays_no_other() -> None:
    async def scenario(cluster: Cluster, proxies: Proxies) -> None:
        start(cluster)
        uid = cluster.api.get("pods", "web-0")["metadata"]["uid"]
        start(cluster, "web-1")

        def refuse(verb: str, resource: str, body: Json) -> Exception | None:
            return _error(422) if body.get("metadata", {}).get("uid") == uid else None

        cluster.api.refuse = refuse
        await cluster.until(lambda: is_ready(cluster, "web-1"), within_s=CONTAINERS_S + 4)
        assert not is_ready(cluster)

    play(scenario)


def test_pods_on_the_hosts_network_wait_too() -> None:
    async def scenario(cluster: Cluster, proxies: Proxies) -> None:
        start(cluster, hostNetwork=True)
        await cluster.until(lambda: is_ready(cluster), within_s=CONTAINERS_S + 4)
        assert says(cluster) == ("True", "InUse")

    play(scenario)


def test_only_its_own_node_matters_to_a_pod_of_node_local_services() -> None:
    async def scenario(cluster: Cluster, proxies: Proxies) -> None:
        cluster.api.patch("services", "default", "web", {"spec": {"internalTrafficPolicy": "Local"}})
        start(cluster)
        await asyncio.sleep(CONTAINERS_S - 0.1)
        proxies.stuck |= {"node-0", "node-1", "node-2"}
        await waiting_for(cluster)
        own = cluster.api.get("pods", "web-0")["spec"]["nodeName"]
        await asyncio.sleep(10)
        assert f"({own})" in condition(cluster)["message"]
        proxies.stuck.discard(own)
        await cluster.until(lambda: is_ready(cluster), within_s=5)

    play(scenario)


def test_other_gates_come_first() -> None:
    async def scenario(cluster: Cluster, proxies: Proxies) -> None:
        start(cluster, "web-0", "example.com/registered")
        await asyncio.sleep(90)
        assert condition(cluster) == {}
        assert requests_on(cluster.api) == []
        _state(cluster, "example.com/registered", "True")
        await cluster.until(lambda: is_ready(cluster), within_s=5)
        assert says(cluster) == ("True", "InUse")

    play(scenario)


@pytest.mark.parametrize("status", ["False", "Unknown"])
def test_a_condition_that_another_has_written_is_this_controllers_to_set(status: str) -> None:
    async def scenario(cluster: Cluster, proxies: Proxies) -> None:
        start(cluster)
        await cluster.until(lambda: is_ready(cluster))
        _state(cluster, GATE, status)
        await cluster.until(lambda: says(cluster) == ("True", "InUse"), within_s=5)
        await asyncio.sleep(SETTLE_S + 5)
        assert requests_on(cluster.api) == []

    play(scenario)


def test_a_gate_that_another_has_opened_is_left_alone() -> None:
    async def scenario(cluster: Cluster, proxies: Proxies) -> None:
        proxies.stuck.add("node-1")
        start(cluster)
        _state(cluster, GATE, "True")
        await cluster.until(lambda: is_ready(cluster), within_s=CONTAINERS_S + 1)
        assert "reason" not in condition(cluster)
        assert requests_on(cluster.api) == []

    play(scenario)


@pytest.mark.parametrize("every", [1, 2, 3])
def test_a_controller_that_is_killed_between_any_two_writes_goes_on(every: int) -> None:
    async def scenario() -> None:
        cluster = Cluster()
        expose(cluster.api)
        proxies = Proxies(cluster.api, 3)
        for number in range(4):
            start(cluster, f"web-{number}")
        starts = 0

        def opened() -> bool:
            return all(is_ready(cluster, f"web-{number}") for number in range(4))

        dead = asyncio.Event()
        while not opened():
            left = every
            dead.clear()

            def refuse(verb: str, resource: str, body: Json) -> Exception | None:
                nonlocal left
                left -= 1
                if left < 0:
                    dead.set()
                    return UnreachableError("killed", cause="cut")
                return None

            cluster.api.refuse = refuse
            async with running(cluster.api, cluster.recorded):
                await cluster.until(lambda: dead.is_set() or opened(), within_s=30)
            starts += 1
            assert starts < 40
        assert {says(cluster, f"web-{number}") for number in range(4)} == {("True", "InUse")}
        cluster.api.refuse = lambda verb, resource, body: None
        async with running(cluster.api, cluster.recorded):
            await cluster.until(lambda: requests_on(cluster.api) == [], within_s=SETTLE_S + 5)
        proxies.close()

    run(scenario())


def test_many_pods_at_once_are_asked_about_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    most_asked, number = 20, 70
    monkeypatch.setattr(controller, "MOST_ASKED", most_asked)

    async def scenario(cluster: Cluster, proxies: Proxies) -> None:
        most = 0

        def watch(write: Write) -> None:
            nonlocal most
            if write.resource == "services" and write.by == "controller":
                pods = [cluster.api.objects["pods", "default", pod] for pod, _ in requests_on(cluster.api)]
                most = max(most, sum(not _stated(pod) for pod in pods))

        opened = 0
        cluster.api.observers.append(watch)
        for each in range(number):
            start(cluster, f"web-{each}")
        while opened < number:
            await asyncio.sleep(0.2)
            pods = (item for (of, _, _), item in cluster.api.objects.items() if of == "pods")
            stated = [each for pod in pods for each in _stated(pod)]
            opened = sum(each["reason"] == "InUse" for each in stated)
            assert len(stated) == opened
        assert 0 < most <= most_asked
        assert cluster.api.requests["patch services"] < 20, "one write asks about many"
        assert cluster.api.requests["patch pods/status"] == number
        await cluster.until(lambda: requests_on(cluster.api) == [], within_s=SETTLE_S + 5)

    play(scenario)


def test_no_node_has_fewer_pods_in_use_than_are_wanted_during_a_rollout() -> None:
    """A node that is slow keeps old pods from being deleted; without the gate it would be left with none."""

    async def scenario(cluster: Cluster, proxies: Proxies) -> None:
        fewest = 4

        def watch(write: Write) -> None:
            nonlocal fewest
            running = {
                pod["status"]["podIPs"][0]["ip"]
                for pod in cluster.api.all("pods")
                if is_ready(cluster, pod["metadata"]["name"]) and "deletionTimestamp" not in pod["metadata"]
            }
            fewest = min(fewest, *(len(running & served) for served in proxies.served.values()))

        template = cluster_template()
        cluster.deploy(
            replicas=4,
            template=template,
            strategy={"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 2, "maxUnavailable": 0}},
        )
        await cluster.complete()
        await asyncio.sleep(5)
        cluster.api.observers.append(watch)
        proxies.stuck.add("node-1")
        cluster.set_image("web:2")
        await asyncio.sleep(30)
        proxies.stuck.clear()
        await cluster.complete()
        assert fewest == 4

    play(scenario)


def cluster_template() -> Json:
    return {
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "app", "image": "web:1"}], "readinessGates": [{"conditionType": GATE}]},
    }


def _stated(pod: Json) -> list[Json]:
    return [each for each in pod["status"].get("conditions", []) if each["type"] == GATE]


def _state(cluster: Cluster, type: str, status: str) -> None:
    """Another controller writes a condition."""
    conditions = [{"type": type, "status": status, "lastTransitionTime": timestamps.seconds(cluster.api.clock())}]
    cluster.api.patch("pods", "default", "web-0", {"status": {"conditions": conditions}}, STRATEGIC, "status")


def _error(code: int, reason: str = "") -> Exception:
    return cast(
        Exception, status_error(Status(reason=reason, message="not this one"), code=code, seen="the server answered")
    )


def _refusing(
    resource: str, code: int, reason: str = "", *, of: Cluster | None = None, named: str = ""
) -> Callable[[str, str, Json], Exception | None]:
    """Patches of a resource, or only of the object with this name, are answered with this error."""

    def refuse(verb: str, about: str, body: Json) -> Exception | None:
        if (verb, about) != ("patch", resource):
            return None
        if of is not None and body["metadata"]["resourceVersion"] != _version(of, resource, named):
            return None
        return _error(code, reason)

    return refuse


def _version(cluster: Cluster, resource: str, name: str) -> str:
    return str(cluster.api.get(resource, name)["metadata"]["resourceVersion"])
