"""Executes the schedule and records what really happened."""

from __future__ import annotations

import math
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from subprocess import Popen
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from tests.support.apiserver import Break, Fault
from tests.support.lab import Daemon, Network, PodLinks, make_network
from tests.support.lab.daemon import HEALTHZ, METRICS
from tests.support.lab.node import CLIENT_V4, CLIENT_V6
from tests.system.e2e import kernel_state
from tests.system.e2e.api import ApiHost
from tests.system.e2e.stage import TARGET, Object, until
from tests.system.soak import backend, hostile
from tests.system.soak.event_record import Chronicle, Kill, Retired, Span
from tests.system.soak.schedule import BY_NAME, PLACES, PODS, SOUND, Act, Balance, Event, Place

TRACKS = ("services", "pods", "api", "netfilter", "rescue")
"""Tracks with a thread of their own. The processes are this thread's."""
GRACE_S = 5.0
WORKERS = 2
PATIENCE_S = 120.0
"""Limit for everything that has to come."""
LOOK_S = 0.1
"""Between two listings of rules: each costs some 20 ms of a processor."""
ROOT = Path(__file__).parents[3]
TAKEN_OVER = "new instance has taken over"
RELOADED = "configuration reloaded"
WORKER, RESCUER = re.compile(r"kubeproxy-\d"), re.compile("kubeproxy-resc")
"""How the names of these processes begin."""
BLOWS = {
    "nftables": {
        "delete table": "delete table inet kubeproxy",
        "flush table": "flush table inet kubeproxy",
        "flush chain": "flush chain inet kubeproxy prerouting",
        "flush map": "flush map inet kubeproxy redirects4",
        "flush spreads": "flush map inet kubeproxy spreads4",
        "flush slots": "flush map inet kubeproxy tcp_slots4",
    },
    "iptables": {
        "delete table": "-t nat -F",
        "flush table": "-t nat -F",
        "flush chain": "-t nat -F KUBE-PORTALS-CONTAINER",
        "flush map": "-t nat -D PREROUTING 1",
    },
}
UNLED = ("flush spreads", "flush slots")
"""The redirects lie behind these, so nothing is lost without them."""
AWAY = "table inet away { chain input { type filter hook input priority 0; tcp dport 8001 drop; }; }"
_FIRST = f"tcp dport {TARGET} tcp flags & (syn | ack) == syn"
FAULT_RULES = {
    "silence": (f"th dport {TARGET} drop",),
    "refuse": (f"{_FIRST} reject with tcp reset",),
    "unreachable": (f"{_FIRST} reject with icmpx host-unreachable",),
    "shun": (f"ip saddr {CLIENT_V4} tcp dport {TARGET} drop", f"ip6 saddr {CLIENT_V6} tcp dport {TARGET} drop"),
}
"""What a pod does with packets to its backend."""
NOWHERE6 = (
    "table inet nowhere6 { chain out { type filter hook postrouting priority 0; ip6 daddr fd00:96::/64 drop; }; }"
)
"""As `kernel_state.NOWHERE`, for the other family."""
INERT_S = {
    "removal of rules": 0.0,
    "kill rescue": 0.0,
    "stop rescue": 0.5,
    "kill control": 1.9,
    "stop control": 1.9,
    "execute anew": 9.9,
    "stop and start": 1.9,
}
"""How soon the rules may be inert: the control process empties `alive` as soon as it knows, or the element expires
three seconds after its last renewal, which was at most a second ago; ten seconds before a re-exec (docs/rescue.md). The
last message of a rescue process that stops may be half a second old, so the second without one may end after half a
second."""


def objects_of(place: Place, pods: Collection[int], balance: Balance) -> tuple[Object, ...]:
    """A service and its EndpointSlices, two for each family, as the API has them.

    Slices with a sound pod come first. So a service that always has such a pod has it between two changes, too."""
    port: Object = {"name": "p", "port": place.port, "targetPort": TARGET, "protocol": place.protocol}
    if place.node_port:
        port["nodePort"] = place.node_port
    addresses = list(place.addresses)
    annotations = {"kubeproxy/scheduler": str(balance.scheduler), "kubeproxy/slow-start": f"{balance.slow_start_s}s"}
    spec = {"clusterIP": addresses[0], "clusterIPs": addresses, "ipFamilies": ["IPv4", "IPv6"], "ports": [port]}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": place.name, "namespace": "default", "annotations": annotations},
        "spec": spec | place.spec,
    }
    halves = [(weight, [pod for pod in pods if pod % 2 == half]) for half, weight in enumerate(balance.weights)]
    slices = [
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": f"{place.name}-{family.lower()}-{half}",
                "namespace": "default",
                "labels": {"kubernetes.io/service-name": place.name},
                "annotations": {"kubeproxy/weight": str(weight)},
            },
            "addressType": family,
            "ports": [{"name": "p", "port": TARGET, "protocol": place.protocol}],
            "endpoints": [{"addresses": [address_of(pod)], "conditions": {"ready": True}} for pod in those],
        }
        for half, (weight, those) in sorted(enumerate(halves), key=lambda it: not set(it[1][1]) & set(SOUND))
        for family, address_of in (("IPv4", Network.pod_v4), ("IPv6", Network.pod_v6))
    ]
    return service, *slices


def configuration(data_path: str, *, netfilter: str) -> str:
    """The daemon's configuration file."""
    periods = {"minSyncPeriod": "20ms"} | ({"syncPeriod": "1s"} if netfilter == "iptables" else {})
    return yaml.safe_dump(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "healthzBindAddress": ":".join(map(str, HEALTHZ)),
            "metricsBindAddress": ":".join(map(str, METRICS)),
            "iptables": periods,
            "udpIdleTimeout": "2s",
            "kubeproxy": {"dataPath": data_path},
        }
    )


class World:
    """The hosts, the API server, the pods, and the daemon that serves."""

    def __init__(
        self,
        network: Network,
        api: ApiHost,
        chronicle: Chronicle,
        *,
        netfilter: str,
        data_path: str,
        balances: Mapping[str, Balance],
        config: Path,
    ) -> None:
        self.network, self.api, self.chronicle, self.netfilter = network, api, chronicle, netfilter
        self.data_path = data_path
        """The setting in force, or as soon as the daemon has read its configuration."""
        self.observers: set[int] = set()
        """Processes on the node that only look."""
        self._config = config
        self._configure(data_path)
        self.daemons: list[Daemon] = []
        """All daemons so far; the last one serves."""
        self._tracks = {name: ThreadPoolExecutor(1, name) for name in TRACKS}
        self._backends: list[Popen[Any] | None] = [None] * PODS
        self._faults: dict[str, Span] = {}
        self._trouble: Span | None = None
        self._over = threading.Event()
        self._failed = threading.Event()
        """A track has failed: the others end, too."""
        self._watching = threading.Thread(target=self._watch_ends)
        for pod in range(PODS):
            self._tracks["pods"].submit(self._start_backend, pod).result()
        self.balances: dict[str, Balance] = {}
        """How each service is to spread its clients."""
        self._put_all(balances)
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

    def heal(self, data_path: str, balances: Mapping[str, Balance]) -> None:
        """Restore the state of the beginning, with this data path, and with clients spread like this."""
        self._put_all(balances)
        self.daemon.wait_ready(PATIENCE_S)
        if data_path != self.data_path:
            self._choose_path(data_path)

    def _heal(self, track: str, at: float) -> None:
        self._failed.wait(max(0.0, at - time.monotonic()))
        if track == "api" and self._trouble is not None:
            self._api(f"end of {self._trouble.what}")
        elif track == "pods":
            for pod, span in list(self._faults.items()):
                self._pod(int(pod), f"end of {span.what}")

    def _play(self, begin: float, events: list[Event], end: float = float("inf")) -> None:
        try:
            self._play_all(begin, events, end)
        except BaseException:
            self._failed.set()
            raise

    def _play_all(self, begin: float, events: list[Event], end: float) -> None:
        for event in events:
            if self._failed.wait(max(0.0, begin + event.at_s - time.monotonic())):
                return
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
                    self._rob(event)
                case "rescue":
                    self._harm_rescue(event)
                case _:
                    self._process(event)

    # Services.

    def _service(self, event: Event) -> None:
        if event.kind == "vanishes":
            self.chronicle.state(event.target, None)
            for item in objects_of(BY_NAME[event.target], (), event.balance):
                self.api.delete(item)
        else:
            self._put(event.target, event.pods, event.balance)

    def _put(self, name: str, pods: tuple[int, ...], balance: Balance) -> None:
        self.chronicle.state(name, pods, balance.scheduler)
        self.balances[name] = balance
        self.api.put(*objects_of(BY_NAME[name], pods, balance))

    def _put_all(self, balances: Mapping[str, Balance]) -> None:
        for place in PLACES:
            self._put(place.name, place.pods, balances[place.name])

    # Pods.

    def _start_backend(self, pod: int) -> None:
        host, addresses = self.network.pods[pod], (Network.pod_v4(pod), Network.pod_v6(pod))
        command = [sys.executable, "-m", backend.__name__, f"pod-{pod}", str(TARGET), *addresses]
        self._backends[pod] = host.popen(command, cwd=ROOT)
        until(lambda: any(it.port == TARGET for it in kernel_state.listening(host)), f"pod {pod} listens")

    def _pod(self, pod: int, kind: str) -> None:
        host, name = self.network.pods[pod], str(pod)
        running = self._backends[pod]
        match kind:
            case "silence" | "refuse" | "unreachable" | "shun":
                rules = "; ".join(FAULT_RULES[kind])
                self._faults[name] = self.chronicle.begin(self.chronicle.faults, kind, name)
                text = f"table inet fault {{ chain input {{ type filter hook input priority 0; {rules}; }}; }}"
                host.run(["nft", "-f", "-"], input=text)
            case "kill":
                assert running is not None
                self._faults[name] = killed = self.chronicle.begin(self.chronicle.faults, kind, name)
                running.kill()
                running.wait()
                killed.done = time.monotonic()
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

    def _rob(self, event: Event) -> None:
        """A foreign program removes rules of ours, or the node does not forward for a while."""
        node, kind = self.network.node, event.kind
        if kind == "no forwarding":
            with self.chronicle.during(self.chronicle.unforwarded, "the node did not forward"):
                self._forward(0)
                time.sleep(event.wait_s)
                self._forward(1)
            return
        tool = ["nft"] if self.netfilter == "nftables" else ["iptables-legacy", "-w", "10"]
        blow = [*tool, *BLOWS[self.netfilter][kind].split()]
        if kind in UNLED:
            # The table may be made anew, and then without what keeps the rescue alive.
            with self._unrescued("removal of rules"), self.chronicle.during(self.chronicle.without_slots, kind):
                node.run(blow, check=False)
                until(self._led, "the kernel leads to endpoints again", within_s=PATIENCE_S)
            return
        with (
            self._unrescued("removal of rules"),
            self.chronicle.during(self.chronicle.robbed, f"the rules were removed ({kind})"),
        ):
            # The rules may be absent: between two processes, or because of the removal before.
            node.run(blow, check=False)
            until(self._whole, "the rules are there again", within_s=PATIENCE_S)

    def _led(self) -> bool:
        """Whether the kernel leads clients of a steady service to endpoints, if it is to."""
        if self.data_path != "kernel":
            return True
        time.sleep(LOOK_S)
        listings = (["nft", "list", "map", "inet", "kubeproxy", name] for name in ("spreads4", "tcp_slots4"))
        found = [self.network.node.run(listing, check=False).stdout for listing in listings]
        # Workers serve the others, which have no slots.
        led = [it for it in PLACES if it.steady and it.protocol == "TCP" and not self.balances[it.name].by_workers]
        return all(f"{place.address} . " in text for place in led for text in found)

    def _forward(self, value: int) -> None:
        for name in ("net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"):
            self.network.node.sysctl(name, value)

    def _whole(self) -> bool:
        time.sleep(LOOK_S)
        node = self.network.node
        steady = {(place.address, place.port) for place in PLACES if place.steady}
        if not steady <= kernel_state.redirects(node).keys():
            return False
        if self.netfilter == "iptables":
            jumps = [line for line in kernel_state.xtables(node) if line.startswith(("-A PREROUTING", "-A OUTPUT"))]
            return sum("KUBE-PORTALS" in line for line in jumps) == 2
        table = node.run(["nft", "list", "table", "inet", "kubeproxy"], check=False).stdout
        chains = dict(re.findall(r"chain (prerouting|output) \{(.*?)\n\t\}", table, re.DOTALL))
        return len(chains) == 2 and all("map @redirects4" in chain for chain in chains.values())

    # Processes.

    def _start(self, **more: Any) -> Daemon:
        options = [f"--config={self._config}", f"--master={self.api.url}"]
        options += [f"--workers={WORKERS}", f"--shutdown-grace={GRACE_S:g}s"]
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
        return [pid for pid in children(daemon) if WORKER.match(_comm(pid))]

    def rescuers(self, daemon: Daemon) -> list[int]:
        """The process numbers of the daemon's rescue processes."""
        return [pid for pid in children(daemon) if RESCUER.match(_comm(pid))]

    def _process(self, event: Event) -> None:
        daemon, chronicle = self.daemon, self.chronicle
        match event.kind.split():
            case ["path", data_path]:
                self._choose_path(data_path)
            case ["stop", "control"]:
                with self._unrescued(event.kind), chronicle.during(chronicle.blind, "the control process was stopped"):
                    daemon.process.send_signal(signal.SIGSTOP)
                    time.sleep(event.wait_s)
                    daemon.process.send_signal(signal.SIGCONT)
            case ["kill", "worker"]:
                self._kill_worker(daemon)
            case ["kill", "control"]:
                with self._unrescued(event.kind), chronicle.during(chronicle.blind, "no control process"):
                    orphans = self.workers(daemon)
                    daemon.process.kill()
                    daemon.process.wait()
                    time.sleep(event.wait_s)
                    with self._end(orphans):
                        self._start()
            case ["execute", "anew"]:
                with self._unrescued(event.kind), chronicle.during(chronicle.blind, "executes itself anew"):
                    begun, orphans = daemon.log().count("kubeproxy starts"), self.workers(daemon)
                    with self._end(orphans):
                        daemon.process.send_signal(signal.SIGUSR2)
                        until(
                            lambda: daemon.log().count("kubeproxy starts") > begun,
                            "it has begun anew",
                            within_s=PATIENCE_S,
                        )
                        daemon.wait_ready(PATIENCE_S)
            case ["stop", "and", "start"]:
                with (
                    self._unrescued(event.kind),
                    chronicle.during(chronicle.gaps, "stop and start"),
                    chronicle.during(chronicle.blind, "no control process"),
                ):
                    with self._end([daemon.process.pid], signalled=True):
                        assert daemon.terminate(PATIENCE_S) == 0, daemon.log()
                    time.sleep(event.wait_s)
                    self._start()
            case ["successor"]:
                self._start()
                until(lambda: TAKEN_OVER in daemon.log(), "the old instance retires", within_s=PATIENCE_S)
                self._has_retired(daemon)
            case ["kill", "successor"]:
                self._kill_successor(daemon, event.wait_s)
            case _:
                self._reload()

    # The data path.

    def _configure(self, data_path: str) -> None:
        self.chronicle.policy(data_path)
        self.data_path = data_path
        hidden = self._config.with_suffix(".new")
        hidden.write_text(configuration(data_path, netfilter=self.netfilter))
        hidden.rename(self._config)

    def _choose_path(self, data_path: str) -> None:
        """Change the data path of new connections."""
        self._configure(data_path)
        self._reload()

    def _reload(self) -> None:
        daemon = self.daemon
        before = daemon.log().count(RELOADED)
        daemon.process.send_signal(signal.SIGHUP)
        until(lambda: daemon.log().count(RELOADED) > before, "the configuration is read again", within_s=PATIENCE_S)

    # The rescue.

    def rescued(self) -> bool:
        """Whether the rules of the rescue work, if there is a kernel path."""
        if self.data_path == "userspace":
            return True
        time.sleep(LOOK_S)
        listing = self.network.node.run(["nft", "list", "set", "inet", "kubeproxy", "alive"], check=False)
        # A control process that is stopped leaves the element there though its rescue process has ended.
        return "tcp" in listing.stdout and bool(self.rescuers(self.daemon))

    @contextmanager
    def _unrescued(self, kind: str) -> Iterator[None]:
        """A part of the rescue does not work meanwhile, and until its rules work again."""
        with self.chronicle.unrescued(kind, inert_after_s=INERT_S.get(kind)):
            yield
            if self.netfilter == "nftables":
                until(self.rescued, f"the rescue works again after: {kind}", within_s=PATIENCE_S)

    def _harm_rescue(self, event: Event) -> None:
        for pid in self.rescuers(self.daemon):
            with self._unrescued(event.kind):
                if event.kind == "kill rescue":
                    _signal(pid, signal.SIGKILL)
                    until(lambda: not alive(pid), "the rescue process has ended")  # noqa: B023
                else:
                    _signal(pid, signal.SIGSTOP)
                    time.sleep(event.wait_s)
                    if RESCUER.match(_comm(pid)):
                        _signal(pid, signal.SIGCONT)

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
        for line in self.network.node.run(["ss", "-tnpaH"]).stdout.splitlines():
            words = line.split()
            if words[0] != "LISTEN" and (f"pid={worker}," in line or "pid=" not in line):
                address, _, port = words[4].rpartition(":")
                yield "client" if address.strip("[]") in (CLIENT_V4, CLIENT_V6) else "node", int(port)

    def _kill_successor(self, daemon: Daemon, wait_s: float) -> None:
        """Kill the new instance at any time of its takeover: before, in the middle, after."""
        blind = self.chronicle.begin(self.chronicle.blind, "killed successor")
        second = self._start()
        time.sleep(wait_s)
        orphans = self.workers(second)
        with self._unrescued("kill control"):
            second.process.kill()
            second.process.wait()
            if self._retires(daemon):
                self._has_retired(daemon)
                with self._end(orphans):
                    self._start()
            else:
                self.daemons.remove(second)
                self.daemons.insert(-1, second)
        blind.end = time.monotonic()

    def _retires(self, daemon: Daemon) -> bool:
        """Whether the daemon retired for a new instance that was killed just now."""
        end = time.monotonic() + 2.0
        while time.monotonic() < end:
            if TAKEN_OVER in daemon.log() or daemon.process.poll() is not None:
                return True
            time.sleep(0.05)
        return False

    @contextmanager
    def _end(self, pids: Iterable[int], *, signalled: bool = False) -> Iterator[None]:
        """Record that these processes end meanwhile; they give their connections a grace period. Without a signal, the
        process that serves then ends them as soon as it is ready."""
        now = time.monotonic()
        retired = [Retired(now, now, pid, signalled) for pid in pids]
        with self.chronicle.lock:
            self.chronicle.retired.extend(retired)
        yield
        if not signalled:
            for each in retired:
                each.until = _logged(self.daemon, "serving services=")

    def _has_retired(self, daemon: Daemon) -> None:
        """Record that a new instance has ended it."""
        when = _logged(daemon, TAKEN_OVER)
        with self.chronicle.lock:
            self.chronicle.retired.append(Retired(when, when, daemon.process.pid, signalled=False))

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


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _logged(daemon: Daemon, words: str) -> float:
    """When the daemon last logged these words, by `time.monotonic`."""
    said = next(line for line in reversed(daemon.log().splitlines()) if words in line)
    when = datetime.fromisoformat(said.split(" ", 1)[0]).timestamp()
    return when - time.time() + time.monotonic()


def children(daemon: Daemon) -> list[int]:
    """The process numbers of a daemon's children, without zombies."""
    return [pid for pid in all_children(daemon) if alive(pid)]


def all_children(daemon: Daemon) -> list[int]:
    """The process numbers of a daemon's children."""
    found: list[int] = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{daemon.process.pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # a thread may end at any time
                found += map(int, (task / "children").read_text().split())
    return found


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
def make_world(
    chronicle: Chronicle, *, netfilter: str, data_path: str, balances: Mapping[str, Balance], links: PodLinks
) -> Iterator[World]:
    """The hosts and programs, until the end of the context."""
    with ExitStack() as stack:
        network = stack.enter_context(make_network(pods=PODS, links=links))
        kernel_state.reset_rules(network.node)
        network.node.run(["nft", "-f", "-"], input=NOWHERE6)
        api = stack.enter_context(ApiHost(network.client))
        api.server.keep_requests = False
        config = Path(stack.enter_context(TemporaryDirectory())) / "configuration.yaml"
        world = World(
            network, api, chronicle, netfilter=netfilter, data_path=data_path, balances=balances, config=config
        )
        stack.callback(world.close)
        yield world
