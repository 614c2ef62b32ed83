"""The choice of endpoints: traffic policies, hints, terminating endpoints, affinity; and load balancer health."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence

import pytest

from tests.support.lab import Daemon, get
from tests.system.e2e.conftest import for_a_module
from tests.system.e2e.full_services import (
    CELLS,
    ELSEWHERE,
    EXTERNAL,
    FAMILIES,
    NODE,
    NODE_NAME,
    V4,
    Cell,
    Said,
    Whole,
    answers,
    await_all,
    hear,
    heard,
    of_cells,
    pod,
    quiet,
)
from tests.system.e2e.stage import KERNEL, QUICK, Object, Stage, until

pytestmark = pytest.mark.netns

WHOLE, NEXT = Whole(1), Whole(2)
HEALTH_PORT = 32100
WITHIN = [cell for cell in CELLS if cell.kind == "cluster IP"]
AROUND = [cell for cell in CELLS if cell.kind != "cluster IP"]


@pytest.fixture(scope="module", params=["nftables", KERNEL])
def daemon(request: pytest.FixtureRequest, mirrored: Stage) -> Iterator[Daemon]:
    """A daemon for all tests of a data path, on a node with name and zone."""
    options = (QUICK, f"--hostname-override={NODE_NAME}", "--node-zone=here")
    daemon = mirrored.daemon(*options, netfilter=request.param)
    yield from for_a_module(mirrored, daemon)


def pods_by(stage: Stage, cells: Sequence[Cell]) -> dict[str, set[str]]:
    """The answering pods by each way, from enough requests to reach all."""
    rounds = [answers(stage, WHOLE, cells, timeout_s=1.0) for _ in range(6)]
    return {str(cell): {said.pod for it in rounds if (said := it[str(cell)])} for cell in cells}


def await_pods(stage: Stage, pods: set[int], cells: Sequence[Cell] = CELLS) -> None:
    """Wait until exactly these pods answer by each way."""
    names = {f"pod-{index}" for index in pods}
    until(lambda: all(seen == names for seen in pods_by(stage, cells).values()), f"{names} by each way")


def is_quiet(stage: Stage, cell: Cell) -> bool:
    """Whether there is no answer by a way."""
    return quiet(cell.host(stage), WHOLE.address(cell.kind, cell.family), cell.protocol)


def test_cluster_addresses_under_the_local_policy(served: Stage) -> None:
    served.write(WHOLE.name, *WHOLE.objects(pod(0), pod(1, node=ELSEWHERE), internalTrafficPolicy="Local"))
    await_pods(served, {0}, WITHIN)
    await_pods(served, {0, 1}, AROUND)
    served.write(WHOLE.name, *WHOLE.objects(pod(1, node=ELSEWHERE), internalTrafficPolicy="Local"))
    await_pods(served, {1}, AROUND)
    assert all(of_cells(lambda cell: is_quiet(served, cell), WITHIN).values())
    served.write(WHOLE.name, *WHOLE.objects(pod(1, node=ELSEWHERE), pod(2), internalTrafficPolicy="Local"))
    await_pods(served, {2}, WITHIN)


@pytest.mark.parametrize("policy", ["internalTrafficPolicy", "externalTrafficPolicy"])
def test_the_last_local_endpoints_serve_while_they_terminate(served: Stage, policy: str) -> None:
    leaving = pod(0, ready=False, serving=True, terminating=True)
    local: Object = {policy: "Local"}
    outside = [cell for cell in CELLS if cell.origin == "client" and cell.kind in EXTERNAL]
    asked = WITHIN if policy.startswith("internal") else outside
    served.write(WHOLE.name, *WHOLE.objects(leaving, pod(1, node=ELSEWHERE), **local))
    await_pods(served, {0}, asked)
    served.write(WHOLE.name, *WHOLE.objects(leaving, pod(2), pod(1, node=ELSEWHERE), **local))
    await_pods(served, {2}, asked)


def test_terminating_endpoints_serve_when_no_others_do(served: Stage) -> None:
    leaving = pod(0, ready=False, serving=True, terminating=True)
    not_ready = pod(3, ready=False, serving=False)
    served.write(WHOLE.name, *WHOLE.objects(leaving, not_ready, pod(1)))
    await_pods(served, {1})
    served.write(WHOLE.name, *WHOLE.objects(leaving, not_ready))
    await_pods(served, {0})
    served.write(WHOLE.name, *WHOLE.objects(pod(0, ready=False, serving=False, terminating=True), not_ready))
    until(lambda: not any(answers(served, WHOLE).values()), "no endpoint serves")


def zones(*names: str) -> Object:
    """Hints for these zones."""
    return {"forZones": [{"name": name} for name in names]}


def nodes(*names: str) -> Object:
    """Hints for these nodes."""
    return {"forNodes": [{"name": name} for name in names]}


def test_hints_for_our_zone_are_followed(served: Stage) -> None:
    served.write(WHOLE.name, *WHOLE.objects(pod(0, hints=zones("here")), pod(1, hints=zones("there"))))
    await_pods(served, {0})
    served.write(WHOLE.name, *WHOLE.objects(pod(0, hints=zones("here", "there")), pod(1, hints=zones("here"))))
    await_pods(served, {0, 1})
    served.write(WHOLE.name, *WHOLE.objects(pod(0, hints=zones("here")), pod(1)))
    await_pods(served, {0, 1})


def test_hints_for_unknown_zones_are_not(served: Stage) -> None:
    served.write(WHOLE.name, *WHOLE.objects(pod(0, hints=zones("nowhere")), pod(1, hints=zones("there"))))
    await_pods(served, {0, 1})


def test_hints_for_our_node_come_before_those_for_our_zone(served: Stage) -> None:
    ours = pod(0, hints={**zones("here"), **nodes(NODE_NAME)})
    near = pod(1, node=ELSEWHERE, hints={**zones("here"), **nodes(ELSEWHERE)})
    served.write(WHOLE.name, *WHOLE.objects(ours, near))
    await_pods(served, {0})
    served.write(WHOLE.name, *WHOLE.objects(pod(2, hints={**zones("here"), **nodes("node-3")}), near))
    await_pods(served, {1, 2})


def sticky(timeout_s: int) -> Object:
    """The affinity of a Service."""
    return {"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": timeout_s}}}


def test_a_client_stays_with_its_endpoint(served: Stage) -> None:
    cells = [cell for cell in CELLS if cell.origin == "client" and cell.kind == "cluster IP"]
    found: dict[str, set[str]] = {}

    def answer(cell: Cell) -> Said | OSError:
        try:
            return hear(cell.host(served), WHOLE.address(cell.kind, cell.family), cell.protocol)
        except OSError as error:
            return error

    def ask() -> float:
        """Ask once by each way; the time after that."""
        for way, said in of_cells(answer, cells).items():
            assert isinstance(said, Said), (way, said)
            found.setdefault(way, set()).add(said.pod)
        return time.monotonic()

    def seen(times: int) -> dict[str, set[str]]:
        found.clear()
        for _ in range(times):
            ask()
        return {way: set(pods) for way, pods in found.items()}

    def keep_silent(for_s: float, *, since: float) -> None:
        until(lambda: time.monotonic() > since + for_s, f"no request for {for_s:g} s")

    served.write(WHOLE.name, *WHOLE.objects(0, 1, **sticky(2)))
    await_all(served, WHOLE, 0, 1)

    def stays() -> bool:
        """Ask for longer than the timeout; False if a pause was as long as that, on a busy machine."""
        first = seen(1)
        began = last = time.monotonic()
        while last < began + 2.5:
            asked_from = time.monotonic()
            if ask() >= last + 2.0:
                return False
            last = asked_from
        assert found == first
        return True

    until(stays, "each request extends the time")
    # The new timeout is longer; in the kernel it begins with the next request.
    served.write(WHOLE.name, *WHOLE.objects(0, 1, **sticky(3600)), *NEXT.objects(0))
    await_all(served, NEXT, 0)
    first = seen(1)
    keep_silent(2.0, since=ask())
    assert seen(1) == first
    # Affinity stays while endpoints appear.
    served.write(WHOLE.name, *WHOLE.objects(0, 1, 2, 3, **sticky(3600)), *NEXT.objects(2))
    await_all(served, NEXT, 2)
    assert seen(10) == first
    # The new timeout is shorter. Any endpoint may answer after it, but not always the same.
    served.write(WHOLE.name, *WHOLE.objects(0, 1, 2, 3, **sticky(1)), *NEXT.objects(1))
    await_all(served, NEXT, 1)

    def all_have_moved() -> bool:
        keep_silent(1.0, since=ask())
        return all(len(pods) > 1 for pods in found.values())

    until(all_have_moved, "clients are forgotten after a second")
    # A client with a removed endpoint gets another, and stays there.
    served.write(WHOLE.name, *WHOLE.objects(2, **sticky(3600)))
    # A datagram to an endpoint that has just disappeared may be lost: ask again.
    until(
        lambda: all(said is not None and said.pod == "pod-2" for said in answers(served, WHOLE, cells).values()),
        "moved",
    )
    # With a new Service all rules are in force, also the longer timeout; endpoints alone may come before it.
    served.write(WHOLE.name, *WHOLE.objects(2, **sticky(3600)), *NEXT.objects(0))
    await_all(served, NEXT, 0)
    ask()
    served.write(WHOLE.name, *WHOLE.objects(2, 3, **sticky(3600)), *NEXT.objects(2))
    await_all(served, NEXT, 2)
    assert all(pods == {"pod-2"} for pods in seen(5).values())


def test_load_balancers_get_the_number_of_local_endpoints(served: Stage) -> None:
    local: Object = {"externalTrafficPolicy": "Local", "healthCheckNodePort": HEALTH_PORT}

    def said(local_endpoints: int) -> bool:
        for host in served.asking:
            for family in FAMILIES:
                try:
                    answer = get(host, (NODE[family], HEALTH_PORT), "/healthz")
                except OSError:
                    return False
                body = json.loads(answer.body)
                assert body["service"] == {"namespace": "default", "name": WHOLE.name}
                assert answer.status == (200 if body["localEndpoints"] else 503)
                if body["localEndpoints"] != local_endpoints:
                    return False
        return True

    served.write(WHOLE.name, *WHOLE.objects(pod(0), pod(1), pod(2, node=ELSEWHERE), **local))
    until(lambda: said(2), "two")
    served.write(WHOLE.name, *WHOLE.objects(pod(2, node=ELSEWHERE), **local))
    until(lambda: said(0), "none")
    served.write(WHOLE.name, *WHOLE.objects(pod(0, ready=False, serving=True, terminating=True), pod(1), **local))
    until(lambda: said(1), "one, for one is leaving")
    served.remove(WHOLE.name)

    def closed() -> bool:
        try:
            get(served.client, (NODE[V4], HEALTH_PORT))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False  # the listener accepted it just before its end
        return False

    until(closed, "no server any more")
    assert heard(served.client, WHOLE.address("node port", V4), "TCP") is None
