"""Pods on one bridge, whose frames netfilter sees or not: as clients of Services, by both data paths.

On the links of other tests every packet between two pods is routed by the node. On a bridge an answer may pass it by.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest

from tests.support.lab import Daemon, Host, Network, PodLinks
from tests.support.lab.daemon import KUBEPROXY
from tests.system.e2e.conftest import for_a_module
from tests.system.e2e.full_services import (
    ELSEWHERE,
    FAMILIES,
    KINDS,
    NODE_NAME,
    PROTOCOLS,
    V4,
    Said,
    Whole,
    hear,
    pod,
)
from tests.system.e2e.stage import KERNEL, QUICK, VIP, Object, Stage, ask, endpoints, service, until

pytestmark = pytest.mark.netns

WHOLE = Whole(1)
ADDRESSED = [kind for kind in KINDS if kind != "localhost"]
OUTSIDE = [kind for kind in ADDRESSED if kind != "cluster IP"]
MANY = 16
"""That both of two endpoints are asked all but certainly happens with so many connections."""
BRIDGE_ADDRESS = {4: "10.3.0.1", 6: "fd00:3::1"}


class Way(NamedTuple):
    """A client, and how it asks."""

    origin: str
    """A pod by its number, the node, or the client in front of it."""
    family: int
    protocol: str
    kind: str

    def host(self, stage: Stage) -> Host:
        """The client."""
        match self.origin:
            case "node":
                return stage.node
            case "client":
                return stage.client
        return stage.network.pods[int(self.origin)]

    def ask(self, stage: Stage) -> Said | str:
        """The answer, or the kind of failure."""
        try:
            return hear(self.host(stage), WHOLE.address(self.kind, self.family), self.protocol, timeout_s=1.0)
        except OSError as error:
            return type(error).__name__


def ways(*origins: str, kinds: list[str] = ADDRESSED) -> list[Way]:
    """All ways of these clients to these addresses."""
    return [Way(*each) for each in itertools.product(origins, FAMILIES, PROTOCOLS, kinds)]


LONE_DATAGRAMS = (("0", "cluster IP"), ("3", "cluster IP"), ("client", "cluster IP"))
EVERYONE = ("0", "3", "node", "client")


def said(stage: Stage, asked: list[Way]) -> dict[Way, Said | str]:
    """The answers, all at the same time."""
    with ThreadPoolExecutor(16) as threads:
        return dict(zip(asked, threads.map(lambda way: way.ask(stage), asked), strict=True))


def await_pods(stage: Stage, names: set[str], asked: list[Way]) -> None:
    """Wait until each way leads to one of these pods, or to this failure."""

    def others() -> dict[str, str]:
        found = {way: it.pod if isinstance(it, Said) else it for way, it in said(stage, asked).items()}
        return {" ".join(map(str, way)): it for way, it in found.items() if it not in names}

    until(lambda: not others(), f"{names} by each way")


@pytest.fixture(scope="module", params=[PodLinks.BRIDGE, PodLinks.SEEN_BRIDGE])
def links(request: pytest.FixtureRequest) -> PodLinks:
    """Each kind of bridge."""
    found: PodLinks = request.param
    return found


@pytest.fixture(scope="module", params=["nftables", KERNEL])
def path(request: pytest.FixtureRequest) -> str:
    """Each data path."""
    return str(request.param)


@pytest.fixture(scope="module")
def daemon(path: str, mirrored: Stage) -> Iterator[Daemon]:
    """A daemon for all tests of a data path, on a node with a name."""
    daemon = mirrored.daemon(QUICK, f"--hostname-override={NODE_NAME}", netfilter=path)
    yield from for_a_module(mirrored, daemon)


def test_every_client_reaches_every_address(served: Stage, path: str, links: PodLinks) -> None:
    served.write(WHOLE.name, *WHOLE.objects(0, 1))
    await_pods(served, {"pod-0", "pod-1"}, ways(*EVERYONE))
    seen = {it.client for it in said(served, ways("3", kinds=["cluster IP"])).values() if isinstance(it, Said)}
    keeps = path == KERNEL and links is PodLinks.SEEN_BRIDGE
    assert seen == ({Network.pod_v4(3), Network.pod_v6(3)} if keeps else set(BRIDGE_ADDRESS.values()))


def test_a_pod_reaches_itself(served: Stage) -> None:
    served.write(WHOLE.name, *WHOLE.objects(0))
    await_pods(served, {"pod-0"}, ways("0"))


def test_clients_are_refused_without_endpoints(served: Stage) -> None:
    served.write(WHOLE.name, *WHOLE.objects(0))
    await_pods(served, {"pod-0"}, ways("3", "client"))
    served.write(WHOLE.name, *WHOLE.objects())
    # The kernel sends each host six ICMP errors at once, and one a second then, so few datagrams are sent.
    few = [way for way in ways(*EVERYONE) if way.protocol == "TCP" or way[0::3] in LONE_DATAGRAMS]
    await_pods(served, {"ConnectionRefusedError"}, few)
    served.write(WHOLE.name, *WHOLE.objects(1))
    await_pods(served, {"pod-1"}, ways(*EVERYONE))


def test_policies_hold_for_pods(served: Stage, path: str) -> None:
    elsewhere = pod(1, node=ELSEWHERE)
    served.write(WHOLE.name, *WHOLE.objects(pod(0), elsewhere, externalTrafficPolicy="Local"))
    # Without clusterCIDR a pod is a client like any other.
    await_pods(served, {"pod-0"}, ways("3", "client", kinds=OUTSIDE))
    await_pods(served, {"pod-0", "pod-1"}, ways("3", kinds=["cluster IP"]))
    served.write(WHOLE.name, *WHOLE.objects(elsewhere, externalTrafficPolicy="Local"))
    await_pods(served, {"TimeoutError"}, ways("3", "client", kinds=["node port"]))
    served.write(WHOLE.name, *WHOLE.objects(pod(0), elsewhere, internalTrafficPolicy="Local"))
    await_pods(served, {"pod-0"}, ways("3", "node", kinds=["cluster IP"]))


def sticky() -> Object:
    """The affinity of a Service."""
    return {"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 3600}}}


def test_a_pod_stays_with_its_endpoint(served: Stage) -> None:
    asked = ways("3", kinds=["cluster IP", "node port"])
    served.write(WHOLE.name, *WHOLE.objects(0, 1, **sticky()))
    until(lambda: all(isinstance(it, Said) for it in said(served, asked).values()), "it is served")
    first = said(served, asked)
    for _ in range(4):
        assert said(served, asked) == first
    served.write(WHOLE.name, *WHOLE.objects(2, **sticky()))
    await_pods(served, {"pod-2"}, asked)


def write_backends(stage: Stage, *pods: int, draining: tuple[int, ...] = ()) -> None:
    """Write a Service of the backends in these pods, some of which terminate."""
    slices = endpoints("web", [*pods, *draining])
    for it in slices["endpoints"][len(pods) :]:
        it["conditions"] = {"ready": False, "serving": True, "terminating": True}
    for it in slices["endpoints"]:
        it["nodeName"] = NODE_NAME
    stage.write("web", service(), slices)


def test_no_pod_meets_a_dead_endpoint(served: Stage, daemon: Daemon, path: str) -> None:
    write_backends(served, 0, 1)
    client, other = served.network.pods[3], served.network.pods[1]
    until(lambda: {ask(client, (VIP, 80)) for _ in range(MANY)} == {"pod-0", "pod-1"}, "both answer")
    if path == KERNEL:
        until(lambda: "rescue of failed connections working=true" in daemon.log(), "failed connections are rescued")
    served.kill_backend(0)
    try:
        assert {ask(client, (VIP, 80)) for _ in range(MANY)} == {"pod-1"}
        assert {ask(other, (VIP, 80)) for _ in range(MANY)} == {"pod-1"}, "which may be led to itself"
    finally:
        served.start_backends(0)


def test_a_pods_connection_outlives_the_end_of_its_endpoint(served: Stage) -> None:
    write_backends(served, 0)
    client = served.network.pods[3]
    until(lambda: ask(client, (VIP, 80)) == "pod-0", "it is served")
    with client.connect((VIP, 80)) as connection:
        connection.sendall(b"drip 15 0.1\n")
        lines = connection.recv(100).count(b"\n")
        write_backends(served, 1, draining=(0,))
        until(lambda: {ask(client, (VIP, 80)) for _ in range(MANY)} == {"pod-1"}, "new ones go to the other")
        while data := connection.recv(1000):
            lines += data.count(b"\n")
    assert lines >= 15


def test_the_trace_says_what_happens_to_a_pod(served: Stage) -> None:
    served.write(WHOLE.name, *WHOLE.objects())
    await_pods(served, {"ConnectionRefusedError"}, ways("3", kinds=["cluster IP"]))
    address, port = WHOLE.address("cluster IP", V4)
    done = served.node.run([KUBEPROXY, "trace", f"{address}:{port}", f"--from={Network.pod_v4(3)}"])
    assert "refused" in done.stdout
