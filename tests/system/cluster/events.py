"""What happens to a node and to the pods of ours, each under steady traffic."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from tests.system.cluster.cluster import Cluster
from tests.system.cluster.images import Versions
from tests.system.cluster.node import Node
from tests.system.cluster.service_proxies import NAMESPACE, Ours
from tests.system.cluster.traffic import Tally
from tests.system.cluster.watch import Watch
from tests.system.cluster.web import Web
from tests.system.e2e.stage import until

LEAD_S: Final = 4.0
"""How long the clients go on before and after: losses that come late belong to the event, too."""
FIRST_PROCESS: Final = "container_init.py .*kubeproxy run"
CONTROL_PROCESS: Final = "^[^ ]*python[^ ]* [^ ]*kubeproxy run"
"""The processes of a container of ours, by their command lines."""
CRASHED: Final = "previous control process has crashed"
STARTS: Final = "kubeproxy starts"
"""What the log says when a control process begins."""
SERVING: Final = " serving services="
MOVED: Final = re.compile(r"connections moved here .*?moved=(\d+).*?still_ms=([0-9.]+)")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happens."""

    act: Callable[[Cluster, Ours, Node, Versions], float | None]
    """Its node is that of the clients in a pod and on a node. It returns when it happened, by the monotonic clock, if
    that was later than the call."""
    without_successor: bool = False
    """A pod of ours ends before the next one starts, so new connections may be lost."""
    replaces: bool = True
    """The workers on the clients' node end, and others come."""
    cuts: bool = False
    """Kept connections may end: with their endpoints, or because workers end from which they cannot move."""


def rollout_restart(cluster: Cluster, ours: Ours, near: Node, versions: Versions) -> None:
    """A new pod takes over on every node."""
    cluster.kubectl("-n", NAMESPACE, "rollout", "restart", "ds/kubeproxy")
    ours.await_rollout()


def rollout_of_an_unready_pod(cluster: Cluster, ours: Ours, near: Node, versions: Versions) -> None:
    """A new pod takes over on every node, and the old one on the clients' node is not ready, by its status. So the
    DaemonSet controller deletes it as soon as its successor is there, which does not serve yet."""
    old = ("-n", NAMESPACE, "pod", ours.pod_on(near.name))
    unready = json.dumps({"status": {"conditions": [{"type": "Ready", "status": "False"}]}})

    def deleted() -> bool:
        # The kubelet, which knows better, writes the true status again.
        said = cluster.kubectl("patch", *old, "--subresource=status", "-p", unready, check=False)
        return "NotFound" in said or "deletionTimestamp" in cluster.get(*old)["metadata"]

    deleted()
    cluster.kubectl("-n", NAMESPACE, "rollout", "restart", "ds/kubeproxy")
    until(deleted, "the old pod is deleted", within_s=120)
    ours.await_rollout()


def delete_pod(cluster: Cluster, ours: Ours, near: Node, versions: Versions) -> None:
    """The pod on the clients' node ends; the DaemonSet makes another one when it is gone."""
    cluster.kubectl("-n", NAMESPACE, "delete", "pod", ours.pod_on(near.name), "--wait")
    ours.await_rollout()


def kill_control_process(cluster: Cluster, ours: Ours, near: Node, versions: Versions) -> None:
    """The control process on the clients' node dies alone; its container's first process starts the next one."""
    before, crashes = _restarts(cluster, near), ours.log_on(near.name).count(CRASHED)
    near.run("pkill", "-KILL", "-f", CONTROL_PROCESS)
    until(lambda: ours.log_on(near.name).count(CRASHED) > crashes, "the next one has started", within_s=120)
    ours.await_rollout()
    assert _restarts(cluster, near) == before, "the container has ended"


def re_exec(cluster: Cluster, ours: Ours, near: Node, versions: Versions) -> None:
    """The control process on the clients' node replaces its program by itself, as SIGUSR2 asks for."""
    starts = ours.log_on(near.name).count(STARTS)
    near.run("pkill", "-USR2", "-f", CONTROL_PROCESS)
    until(lambda: ours.log_on(near.name).count(STARTS) > starts, "the program has started anew", within_s=120)
    ours.await_rollout()


def kill_container(cluster: Cluster, ours: Ours, near: Node, versions: Versions) -> None:
    """Every process of the pod on the clients' node dies at once; the kubelet starts its container again."""
    before = _restarts(cluster, near)
    near.run("pkill", "-KILL", "-f", FIRST_PROCESS)
    until(lambda: _restarts(cluster, near) > before, "the kubelet has started the container again", within_s=120)
    ours.await_rollout()


def upgrade(cluster: Cluster, ours: Ours, near: Node, versions: Versions) -> None:
    """The DaemonSet gets another image."""
    ours.set_image(versions.other)
    ours.await_rollout()


def foreign_upgrade(cluster: Cluster, ours: Ours, near: Node, versions: Versions) -> None:
    """The DaemonSet gets an image that speaks another version of the takeover protocol."""
    ours.set_image(versions.foreign)
    ours.await_rollout()


def rollback(cluster: Cluster, ours: Ours, near: Node, versions: Versions) -> None:
    """The DaemonSet gets its former image again, as an administrator takes an upgrade back. The next time it
    gets the later one."""
    cluster.kubectl("-n", NAMESPACE, "rollout", "undo", "ds/kubeproxy")
    ours.await_rollout()


def reboot_other_node(cluster: Cluster, ours: Ours, near: Node, versions: Versions) -> float:
    """The power of the other node fails for a moment, with half of the endpoints on it."""
    other = next(node for node in cluster.nodes if node is not near)
    before = _restarts(cluster, other)
    ended = other.power_cycle()
    until(lambda: _restarts(cluster, other) > before, "the kubelet has started our container again", within_s=300)
    cluster.await_ready()
    ours.await_rollout()
    # What a dying process had accepted is lost, whoever led the connection there.
    return ended


def drain_other_node(cluster: Cluster, ours: Ours, near: Node, versions: Versions) -> None:
    """The pods of the other node are evicted, and come back to it."""
    other = next(node for node in cluster.nodes if node is not near)
    cluster.kubectl("drain", other.name, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=120s")
    cluster.kubectl("rollout", "status", "deploy/web", "--timeout=120s")
    cluster.kubectl("uncordon", other.name)
    cluster.kubectl("rollout", "restart", "deploy/web")
    cluster.kubectl("rollout", "status", "deploy/web", "--timeout=120s")


EVENTS: Final[Mapping[str, Event]] = {
    "rollout restart": Event(rollout_restart),
    "rollout of an unready pod": Event(rollout_of_an_unready_pod),
    "delete pod": Event(delete_pod, without_successor=True),
    "kill control process": Event(kill_control_process),
    "re-exec": Event(re_exec),
    "kill container": Event(kill_container, without_successor=True, cuts=True),
    "upgrade": Event(upgrade),
    "rollback": Event(rollback),
    "upgrade to another protocol": Event(foreign_upgrade, cuts=True),
    "rollback to the former protocol": Event(rollback, cuts=True),
    "drain other node": Event(drain_other_node, replaces=False, cuts=True),
    "reboot other node": Event(reboot_other_node, replaces=False, cuts=True),
}
"""In this order: an upgrade precedes its rollback."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What an event took, once."""

    seconds: float
    """Until it was over, as its administrator sees it."""
    gone_s: float | None
    """From the moment when the new instance on the clients' node serves until the old workers there are seen to have
    ended. None if there is no new one."""
    moved: int
    """Connections that moved there."""
    still_s: float
    """The longest that a moving connection was still."""
    most_mib: float
    """The most memory that all our processes there had at once."""
    cpu_s: float
    """The processor time that they have taken meanwhile, the start of the new instance included."""


@dataclass(frozen=True, slots=True)
class Result:
    """What the clients met in an event, which may have happened several times."""

    began: float
    """By the monotonic clock."""
    costs: Sequence[Cost]
    """Of each time."""
    tallies: Mapping[str, Tally]
    load: float
    """The load average at the end."""

    @property
    def lost(self) -> int:
        """New connections that were lost, of all clients."""
        return sum(map(len, map(self.lost_by, self.tallies)))

    def lost_by(self, place: str) -> list[str]:
        """When and how the clients in a place lost new connections. What was open when the event began is not new: with
        a node that loses its power, the connections to its pods end."""
        lost = self.tallies[place].lost
        return [f"{error} after {began - self.began:.2f} s" for began, error in lost if began >= self.began]


def run(
    event: Event, web: Web, ours: Ours, versions: Versions, *, rate: int = 60, kept: int = 5, times: int = 1
) -> Result:
    """Let an event happen under traffic: `rate` new connections a second, and `kept` ones, from each of three places.
    Under the same traffic it happens `times` times."""
    web.await_ready()
    costs: list[Cost] = []
    with web.traffic(rate, kept) as tallies:
        time.sleep(LEAD_S)
        began = time.monotonic()
        for _ in range(times):
            act_began, began_at = time.monotonic(), time.time()
            with Watch(web.near) as watch:
                happened = event.act(web.cluster, ours, web.near, versions)
                took_s = time.monotonic() - act_began
                if event.replaces:
                    until(lambda: watch.gone_at is not None, "the old workers have ended", within_s=120)
                time.sleep(LEAD_S)
            costs.append(cost(took_s, watch, ours.log_on(web.near.name), began_at))
    return Result(happened or began, costs, dict(tallies), os.getloadavg()[0])


def cost(took_s: float, watch: Watch, log: str, began_at: float) -> Cost:
    """What an event has taken that began at that Unix time, by the watch and the log on the clients' node."""
    lines = [line for line in log.splitlines() if _written_at(line) > began_at]
    serving = next((_written_at(line) for line in lines if SERVING in line), None)
    moves = [found for line in lines if (found := MOVED.search(line)) is not None]
    return Cost(
        took_s,
        None if serving is None or watch.gone_at is None else watch.gone_at - serving,
        sum(int(found[1]) for found in moves),
        max((float(found[2]) / 1000 for found in moves), default=0.0),
        watch.most_mib,
        watch.cpu_s,
    )


def _written_at(line: str) -> float:
    try:
        return datetime.fromisoformat(line.partition(" ")[0]).timestamp()
    except ValueError:
        return 0.0


def markdown(results: Mapping[str, Result]) -> str:
    """A table with a line for each event: what the clients of all places met, and what it took."""
    columns = (
        *("event", "took", "new", "lost", "slowest", "kept ones broken", "longest silence", "clients late"),
        *("old workers gone after", "moved", "still", "memory", "processor time", "load"),
    )
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for name, result in results.items():
        costs, tallies = result.costs, result.tallies.values()
        kept = Counter[str]()
        for each in tallies:
            kept.update(each.kept)
        broken = Counter(kind for each in tallies for _, kind, _ in each.broken)
        silences = {kind: max(each.longest_silence_s.get(kind, 0.0) for each in tallies) for kind in kept}
        cells = (
            name,
            " ".join(f"{it.seconds:.0f}" for it in costs) + " s",
            f"{sum(each.answered + len(each.lost) for each in tallies)}",
            f"{result.lost}",
            f"{max(each.slowest_s for each in tallies):.2f} s",
            ", ".join(f"{kind} {broken[kind]} of {count}" for kind, count in kept.items()),
            ", ".join(f"{kind} {seconds:.2f} s" for kind, seconds in silences.items()),
            f"{max(each.late_s for each in tallies):.2f} s",
            " ".join("?" if it.gone_s is None else f"{it.gone_s:.1f}" for it in costs) + " s",
            " ".join(str(it.moved) for it in costs),
            f"{1000 * max(it.still_s for it in costs):.0f} ms",
            f"{max(it.most_mib for it in costs):.0f} MiB",
            f"{max(it.cpu_s for it in costs):.1f} s",
            f"{result.load:.0f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _restarts(cluster: Cluster, node: Node) -> int:
    selector = ("-l", "k8s-app=kubeproxy", f"--field-selector=spec.nodeName={node.name}")
    pods = cluster.get("-n", NAMESPACE, "pods", *selector)["items"]
    return sum(status["restartCount"] for pod in pods for status in pod["status"].get("containerStatuses", ()))
