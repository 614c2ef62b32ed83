"""Executes the schedule and records what really happened."""

from __future__ import annotations

import math
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from subprocess import Popen
from typing import Any

from tests.support.apiserver import Break, Fault
from tests.support.lab import Daemon, Network, make_network
from tests.support.lab.node import CLIENT_V4
from tests.system.e2e import kernel_state
from tests.system.e2e.api import ApiHost
from tests.system.e2e.stage import QUICK, TARGET, Object, until
from tests.system.soak import backend, hostile
from tests.system.soak.event_record import Chronicle, Kill, Retired, Span
from tests.system.soak.schedule import BY_NAME, PLACES, PODS, Act, Event, Place

GRACE_S = 5.0
WORKERS = 2
PATIENCE_S = 60.0
"""Limit for everything that has to come."""
ROOT = Path(__file__).parents[3]
MADE_WAY = "new instance has taken over"
BLOWS = {
    "nftables": {
        "delete table": "delete table inet kubeproxy",
        "flush table": "flush table inet kubeproxy",
        "flush chain": "flush chain inet kubeproxy prerouting",
        "flush map": "flush map inet kubeproxy redirects4",
    },
    "iptables": {
        "delete table": "-t nat -F",
        "flush table": "-t nat -F",
        "flush chain": "-t nat -F KUBE-PORTALS-CONTAINER",
        "flush map": "-t nat -D PREROUTING 1",
    },
}
AWAY = "table inet away { chain input { type filter hook input priority 0; tcp dport 8001 drop; }; }"
SILENCE = f"th dport {TARGET} drop"
REFUSAL = f"tcp dport {TARGET} tcp flags & (syn | ack) == syn reject with tcp reset"


def objects_of(place: Place, pods: Iterable[int]) -> tuple[Object, Object]:
    """A service and its EndpointSlice, as the API has them."""
    port: Object = {"name": "p", "port": place.port, "targetPort": TARGET, "protocol": place.protocol}
    if place.asked_at[1]:
        port["nodePort"] = place.asked_at[1]
    metadata = {"name": place.name, "namespace": "default"}
    spec = {"clusterIP": place.address, "clusterIPs": [place.address], "ports": [port], **place.spec}
    labels = {"kubernetes.io/service-name": place.name}
    listed = [{"addresses": [Network.pod_v4(pod)], "conditions": {"ready": True}} for pod in pods]
    return (
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec},
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": f"{place.name}-1", "namespace": "default", "labels": labels},
            "addressType": "IPv4",
            "ports": [{"name": "p", "port": TARGET, "protocol": place.protocol}],
            "endpoints": listed,
        },
    )


class World:
    """The hosts, the API server, the pods, and the daemon that serves."""

    def __init__(self, network: Network, api: ApiHost, chronicle: Chronicle, *, netfilter: str) -> None:
        self.network, self.api, self.chronicle, self.netfilter = network, api, chronicle, netfilter
        self.daemons: list[Daemon] = []
        """All daemons so far; the last one serves."""
        self._tracks = {name: ThreadPoolExecutor(1, name) for name in ("services", "pods", "api", "netfilter")}
        self._backends: list[Popen[Any] | None] = [None] * PODS
        self._faults: dict[str, Span] = {}
        self._trouble: Span | None = None
        self._over = threading.Event()
        self._watching = threading.Thread(target=self._watch_ends)
        for pod in range(PODS):
            self._tracks["pods"].submit(self._start_backend, pod).result()
        for place in PLACES:
            self._put(place.name, place.pods)
        for loop in hostile.LOOPS:
            self.api.put(*hostile.objects_of(loop))
        self._watching.start()
        self._start()

    @property
    def daemon(self) -> Daemon:
        """The daemon that serves."""
        return self.daemons[-1]

    def close(self) -> None:
        """End all programs."""
        self._over.set()
        self._watching.join()
        for daemon in self.daemons:
            daemon.close()
        for track in self._tracks.values():
            track.shutdown()

    def play(self, act: Act) -> None:
        """Execute all events of an act; at its end everything runs again. Each track waits only for its own events.
        This thread starts and ends the processes."""
        begin = time.monotonic()
        playing = [
            track.submit(self._play, begin, [event for event in act.events if event.track == name])
            for name, track in self._tracks.items()
        ]
        # Not later: a process that starts just then waits for the API server.
        playing += [self._tracks[name].submit(self._heal, name, begin + act.seconds) for name in ("api", "pods")]
        try:
            self._play(begin, [event for event in act.events if event.track == "process"], begin + act.seconds)
        finally:
            # A failure in another track may be the cause of the failure here, so it comes first.
            for each in playing:
                each.result()

    def heal(self) -> None:
        """Restore the state of the beginning."""
        for place in PLACES:
            self._put(place.name, place.pods)
        self.daemon.wait_ready(PATIENCE_S)

    def _heal(self, track: str, at: float) -> None:
        time.sleep(max(0.0, at - time.monotonic()))
        if track == "api" and self._trouble is not None:
            self._api(f"end of {self._trouble.what}")
        elif track == "pods":
            for pod, span in list(self._faults.items()):
                self._pod(int(pod), f"end of {span.what}")

    def _play(self, begin: float, events: list[Event], end: float = float("inf")) -> None:
        for event in events:
            time.sleep(max(0.0, begin + event.at_s - time.monotonic()))
            if time.monotonic() >= end:
                # Processes take their time: events that have not begun by the end of the act are left out.
                return
            self.chronicle.note(f"{event.track}: {event.kind} {event.target} {event.pods or ''}".rstrip())
            match event.track:
                case "services":
                    self._service(event)
                case "pods":
                    self._pod(int(event.target), event.kind)
                case "api":
                    self._api(event.kind)
                case "netfilter":
                    self._rob(event.kind)
                case _:
                    self._process(event)

    # Services.

    def _service(self, event: Event) -> None:
        if event.kind == "vanishes":
            self.chronicle.state(event.target, None)
            for item in objects_of(BY_NAME[event.target], ()):
                self.api.delete(item)
        else:
            self._put(event.target, event.pods)

    def _put(self, name: str, pods: tuple[int, ...]) -> None:
        self.chronicle.state(name, pods)
        self.api.put(*objects_of(BY_NAME[name], pods))

    # Pods.

    def _start_backend(self, pod: int) -> None:
        host, address = self.network.pods[pod], Network.pod_v4(pod)
        command = [sys.executable, "-m", backend.__name__, f"pod-{pod}", address, str(TARGET)]
        self._backends[pod] = host.popen(command, cwd=ROOT)
        until(lambda: any(it.port == TARGET for it in kernel_state.listening(host)), f"pod {pod} listens")

    def _pod(self, pod: int, kind: str) -> None:
        host, name = self.network.pods[pod], str(pod)
        running = self._backends[pod]
        match kind:
            case "silence" | "refuse":
                rule = SILENCE if kind == "silence" else REFUSAL
                self._faults[name] = self.chronicle.begin(self.chronicle.faults, kind, name)
                text = f"table inet fault {{ chain input {{ type filter hook input priority 0; {rule}; }}; }}"
                host.run(["nft", "-f", "-"], input=text)
            case "kill":
                assert running is not None
                self._faults[name] = self.chronicle.begin(self.chronicle.faults, kind, name)
                running.kill()
                running.wait()
            case _:
                if kind == "end of kill":
                    self._start_backend(pod)
                else:
                    host.run(["nft", "delete", "table", "inet", "fault"])
                self._faults.pop(name).end = time.monotonic()

    # The API server.

    def _api(self, kind: str) -> None:
        api, client = self.api, self.network.client
        if not kind.startswith("end of "):
            self._trouble = self.chronicle.begin(self.chronicle.blind, kind, "api")
        match kind:
            case "refuse" | "begin anew":
                api.stop()
            case "silence":
                client.run(["nft", "-f", "-"], input=AWAY)
            case "500":
                api.do(lambda: api.server.inject(Fault(status=500, times=-1)))
                api.do(lambda: api.server.break_watches(Break.CUT))
            case "cut watches":
                api.do(lambda: api.server.break_watches(Break.HALF_LINE))
            case "garbage":
                api.do(lambda: api.server.break_watches(Break.GARBAGE))
            case "end of begin anew":
                # What was deleted meanwhile is missing in a list; no watch reports it.
                api.do(api.server.cluster.expire)
                api.start()
            case "end of refuse":
                api.start()
            case "end of silence":
                client.run(["nft", "delete", "table", "inet", "away"])
            case "end of 500":
                api.do(api.server.clear_faults)
        if kind.startswith("end of ") and self._trouble is not None:
            self._trouble.end, self._trouble = time.monotonic(), None

    # The packet filter.

    def _rob(self, kind: str) -> None:
        """A foreign program removes rules of ours."""
        node = self.network.node
        tool = ["nft"] if self.netfilter == "nftables" else ["iptables-legacy", "-w", "10"]
        with self.chronicle.during(self.chronicle.robbed, f"the rules were removed ({kind})"):
            # The rules may be absent: between two processes, or because of the removal before.
            node.run([*tool, *BLOWS[self.netfilter][kind].split()], check=False)
            until(self._whole, "the rules are there again", within_s=PATIENCE_S)

    def _whole(self) -> bool:
        node = self.network.node
        steady = {(place.address, place.port) for place in PLACES if place.steady}
        if not steady <= kernel_state.redirects(node).keys():
            return False
        if self.netfilter == "iptables":
            jumps = [line for line in kernel_state.xtables(node) if line.startswith(("-A PREROUTING", "-A OUTPUT"))]
            return sum("KUBE-PORTALS" in line for line in jumps) == 2
        table = node.run(["nft", "list", "table", "inet", "kubeproxy"], check=False).stdout
        return len(re.findall(r"map @redirects4", table)) == 2

    # Processes.

    def _start(self, **more: Any) -> Daemon:
        options = [QUICK, f"--master={self.api.url}", f"--workers={WORKERS}", f"--shutdown-grace={GRACE_S:g}s"]
        options.append("--udp-timeout=2s")
        if self.netfilter == "iptables":
            options.append("--iptables-sync-period=1s")
        daemon = Daemon(
            self.network.node,
            manifests=None,
            netfilter=self.netfilter,
            options=options,
            ready_within_s=PATIENCE_S,
            **more,
        )
        self.daemons.append(daemon)
        return daemon

    def workers(self, daemon: Daemon) -> list[int]:
        """The process numbers of the daemon's workers."""
        found = []
        for task in Path(f"/proc/{daemon.process.pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # a thread may end at any time
                children = (task / "children").read_text().split()
                found += [int(pid) for pid in children if _comm(int(pid)).startswith("kubeproxy-")]
        return found

    def _process(self, event: Event) -> None:
        daemon = self.daemon
        match event.kind:
            case "kill worker":
                self._kill_worker(daemon)
            case "kill control":
                with self.chronicle.during(self.chronicle.blind, "no control process"):
                    orphans = self.workers(daemon)
                    daemon.process.kill()
                    daemon.process.wait()
                    time.sleep(event.wait_s)
                    with self._end(orphans):
                        self._start()
            case "execute anew":
                with self.chronicle.during(self.chronicle.blind, "executes itself anew"):
                    begun, orphans = daemon.log().count("kubeproxy starts"), self.workers(daemon)
                    with self._end(orphans):
                        daemon.process.send_signal(signal.SIGUSR2)
                        until(
                            lambda: daemon.log().count("kubeproxy starts") > begun,
                            "it has begun anew",
                            within_s=PATIENCE_S,
                        )
                        daemon.wait_ready(PATIENCE_S)
            case "stop and start":
                with (
                    self.chronicle.during(self.chronicle.gaps, "stop and start"),
                    self.chronicle.during(self.chronicle.blind, "no control process"),
                ):
                    with self._end([daemon.process.pid], told=True):
                        assert daemon.terminate(PATIENCE_S) == 0, daemon.log()
                    time.sleep(event.wait_s)
                    self._start()
            case "successor":
                self._start()
                until(lambda: MADE_WAY in daemon.log(), "the old instance retires", within_s=PATIENCE_S)
                self._has_made_way(daemon)
            case "kill successor":
                self._kill_successor(daemon, event.wait_s)
            case "reload":
                daemon.process.send_signal(signal.SIGHUP)

    def _kill_worker(self, daemon: Daemon) -> None:
        workers = self.workers(daemon)
        if not workers:
            return
        victim = workers[int(time.monotonic() * 1000) % len(workers)]
        stopped, ports = time.monotonic(), frozenset[tuple[str, int]]()
        # A worker of an earlier run may just have ended; the control process kills one that is stopped for long.
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGSTOP)
            ports = frozenset(self._clients_of(victim))
            os.kill(victim, signal.SIGKILL)
        with self.chronicle.lock:
            self.chronicle.kills.append(Kill(stopped, time.monotonic(), ports))

    def _clients_of(self, worker: int) -> Iterator[tuple[str, int]]:
        """The clients that are connected to this worker, or not accepted by any worker yet."""
        for line in self.network.node.run(["ss", "-4tnpaH"]).stdout.splitlines():
            words = line.split()
            if words[0] != "LISTEN" and (f"pid={worker}," in line or "pid=" not in line):
                address, _, port = words[4].rpartition(":")
                yield "client" if address == CLIENT_V4 else "node", int(port)

    def _kill_successor(self, daemon: Daemon, wait_s: float) -> None:
        """Kill the new instance at any time of its takeover: before, in the middle, after."""
        blind = self.chronicle.begin(self.chronicle.blind, "killed successor")
        second = self._start()
        time.sleep(wait_s)
        orphans = self.workers(second)
        second.process.kill()
        second.process.wait()
        if self._makes_way(daemon):
            self._has_made_way(daemon)
            with self._end(orphans):
                self._start()
        else:
            self.daemons.remove(second)
            self.daemons.insert(-1, second)
        blind.end = time.monotonic()

    def _makes_way(self, daemon: Daemon) -> bool:
        """Whether the daemon retired for a new instance that was killed just now."""
        end = time.monotonic() + 2.0
        while time.monotonic() < end:
            if MADE_WAY in daemon.log() or daemon.process.poll() is not None:
                return True
            time.sleep(0.05)
        return False

    @contextmanager
    def _end(self, pids: Iterable[int], *, told: bool = False) -> Iterator[None]:
        """Record that these processes end meanwhile; they give their connections a grace period. Without a signal, the
        process that serves then ends them as soon as it is ready."""
        now = time.monotonic()
        retired = [Retired(now, now, pid, told) for pid in pids]
        with self.chronicle.lock:
            self.chronicle.retired.extend(retired)
        yield
        if not told:
            for each in retired:
                each.until = _logged(self.daemon, "serving services=")

    def _has_made_way(self, daemon: Daemon) -> None:
        """Record that a new instance has ended it."""
        when = _logged(daemon, MADE_WAY)
        with self.chronicle.lock:
            self.chronicle.retired.append(Retired(when, when, daemon.process.pid, told=False))

    def leaving(self) -> list[int]:
        """The processes that have yet to end."""
        with self.chronicle.lock:
            return [retired.pid for retired in self.chronicle.retired if retired.ended == math.inf]

    def _watch_ends(self) -> None:
        while not self._over.wait(0.02):
            with self.chronicle.lock:
                leaving = [retired for retired in self.chronicle.retired if retired.ended == math.inf]
            for retired in leaving:
                if not alive(retired.pid):
                    retired.ended = time.monotonic()


def _logged(daemon: Daemon, words: str) -> float:
    """When the daemon last logged these words, by `time.monotonic`."""
    said = next(line for line in reversed(daemon.log().splitlines()) if words in line)
    when = datetime.fromisoformat(said.split(" ", 1)[0]).timestamp()
    return when - time.time() + time.monotonic()


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@contextmanager
def make_world(chronicle: Chronicle, *, netfilter: str) -> Iterator[World]:
    """The hosts and programs, until the end of the context."""
    with ExitStack() as stack:
        network = stack.enter_context(make_network(pods=PODS))
        kernel_state.reset_rules(network.node)
        api = stack.enter_context(ApiHost(network.client))
        api.server.keep_requests = False
        world = World(network, api, chronicle, netfilter=netfilter)
        stack.callback(world.close)
        yield world
