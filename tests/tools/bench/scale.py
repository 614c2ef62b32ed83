"""Ten thousand Services: time until they are served, time of a change, its cost, and its effect on clients.

Each scenario is a daemon of its own on every core. Cold: all Services exist when the daemon starts. Warm: it serves
one Service, under load, when the others come.
"""

from __future__ import annotations

import http.client
import json
import math
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.support.apiserver.generate import service
from tests.support.lab import Daemon
from tests.support.lab.daemon import METRICS
from tests.support.lab.node import CLIENT_V4
from tests.tools.bench import traffic
from tests.tools.bench.clusters import (
    API_PORT,
    NETWORK,
    PORT,
    address_of,
    endpoints_of,
    newcomer,
    slice_of,
    start_apiserver,
    write_manifests,
)
from tests.tools.bench.cpu_pinning import Cores, pinned
from tests.tools.bench.measures import Metric
from tests.tools.bench.peers import start_daemon
from tests.tools.bench.processes import cpu_seconds, memory
from tests.tools.bench.stage import Stage, make_stage

LIMIT_S = 180.0
"""The limit for the last answer; after it the scenario fails."""
_LOOK_S = 0.05
_SAMPLE = 200
"""The number of Services that the client tries until each has answered. It tries all Services once afterwards."""
_CHANGES = 300
_ADDITIONS = 5
_ADDITION_PAUSE_S = 1.2
"""Longer than the least time between two netfilter transactions, which is not measured here."""
_QUESTIONS = 400
_PACE = 1000
_NORMAL_S = 4.0
_PUT = 500
"""The number of objects in one request to the API server."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One daemon at that size."""

    name: str
    source: str
    netfilter: str = "nftables"
    workers: int = 2
    warm: bool = False
    data_path: str = "userspace"


SCENARIOS = (
    Scenario("API", "api"),
    Scenario("kernel", "api", data_path="kernel"),
    Scenario("manifests", "manifests"),
    Scenario("iptables", "api", netfilter="iptables"),
    Scenario("under-load", "api", warm=True),
    Scenario("one-process", "api", workers=0, warm=True),
)


class Scale:
    """The figures of a scenario; the scenario determines which ones."""

    name = "scale"
    metrics = (
        Metric("last_s", "start to the last service's answer, s", digits=2, compared=False),
        Metric("cpu_s", "CPU s until then", digits=2, compared=False),
        Metric("rss_mib", "RSS then, MiB", digits=0, compared=False),
        Metric("pss_mib", "PSS then, MiB", digits=0, compared=False),
        Metric("silent", "services that did not answer", rare=True, compared=False),
        Metric("change_p50_ms", "endpoint change: event to use, p50, ms", digits=1, compared=False),
        Metric("change_p99_ms", "endpoint change: event to use, p99, ms", digits=1, compared=False),
        Metric("change_max_ms", "endpoint change: event to use, longest, ms", digits=1, compared=False),
        Metric("added_p50_ms", "service added: event to answer, p50, ms", digits=1, compared=False),
        Metric("connect_p50_us", "connection and answer, last service, p50, µs", digits=0, compared=False),
        Metric("unanswered", "connections without an answer within 1 s", rare=True, compared=False),
        Metric("normal_p99_us", "traffic before: p99, µs", digits=0, compared=False),
        Metric("meanwhile_p99_us", "traffic while they come: p99, µs", digits=0, compared=False),
        Metric("meanwhile_ratio", "traffic while they come: p99, × normal", digits=2, compared=False),
        Metric("lag_ms", "longest turn of a worker meanwhile, ms", digits=1, compared=False),
        Metric("meanwhile_max_ms", "traffic while they come: longest, ms", digits=1, compared=False),
    )

    def __init__(self, services: int) -> None:
        self._services = services
        self.title = f"{services:,} services × 10 endpoints"

    def run(self, scenario: Scenario) -> Mapping[str, float]:
        """Measure a scenario. AssertionError when a Service never answers."""
        with make_stage("scale", Cores.shared(), everywhere=[NETWORK]) as stage:
            return self._warm(stage, scenario) if scenario.warm else self._cold(stage, scenario)

    def _cold(self, stage: Stage, scenario: Scenario) -> dict[str, float]:
        numbers = range(self._services)
        if scenario.source == "api":
            options, manifests = ["--master", start_apiserver(stage, services=self._services)], None
        else:
            options, manifests = [], stage.directory / "manifests"
            write_manifests(manifests, services=self._services)
        options = [*options, f"--data-path={scenario.data_path}"]
        with watching(stage, _sample(numbers)) as watcher:
            begun = time.monotonic()
            with start_daemon(
                stage, workers=scenario.workers, netfilter=scenario.netfilter, manifests=manifests, options=options
            ) as daemon:
                figures = self._until_the_last(stage, daemon, watcher, begun)
                if scenario.source == "api":
                    figures |= self._changes(stage)
                times = _connections(stage, address_of(numbers[-1]))
                figures["unanswered"] = times.count(math.inf)
                figures |= percentiles("connect", times, unit=1e6, of=(50,))
        return {key: figure for key, figure in figures.items() if any(key == metric.key for metric in self.metrics)}

    def _until_the_last(
        self, stage: Stage, daemon: Daemon, watcher: subprocess.Popen[str], begun: float
    ) -> dict[str, float]:
        answered = float(watcher.communicate(timeout=LIMIT_S + 30)[0])
        if answered < 0:
            raise AssertionError(f"not every service answered within {LIMIT_S} s:\n{daemon.log()[-4000:]}")
        pid = daemon.process.pid
        used = memory(pid)
        return {
            "last_s": answered - begun,
            "cpu_s": cpu_seconds(pid),
            "rss_mib": used.rss / 1024,
            "pss_mib": used.pss / 1024,
            "silent": _silent(stage, range(self._services)),
        }

    def _changes(self, stage: Stage) -> dict[str, float]:
        """Make one change after the other, each of another Service: a new endpoint replaces all of its endpoints."""
        api = control(stage)
        changes = []
        for count in range(_CHANGES):
            number = count * self._services // _CHANGES
            begun = time.monotonic()
            put(api, "endpointslices", [slice_of(number, [newcomer(count)])])
            changes.append(until_answered_by(stage, address_of(number), newcomer(count)) - begun)
        additions = []
        for number in range(self._services, self._services + _ADDITIONS):
            time.sleep(_ADDITION_PAUSE_S)
            put(api, "endpointslices", [slice_of(number, [newcomer(number % 250)])])
            begun = time.monotonic()
            put(api, "services", [service(number)])
            additions.append(until_answered_by(stage, address_of(number), newcomer(number % 250)) - begun)
        longest = {"change_max_ms": 1e3 * max(changes)}
        return percentiles("change", changes, unit=1e3) | longest | percentiles("added", additions, unit=1e3, of=(50,))

    def _warm(self, stage: Stage, scenario: Scenario) -> dict[str, float]:
        options = ["--master", start_apiserver(stage, services=1)]
        with start_daemon(stage, workers=scenario.workers, netfilter=scenario.netfilter, options=options) as daemon:
            until_answered_by(stage, address_of(0))
            pacer = stage.client.popen(
                traffic.program("pace", address_of(0), str(PORT), str(_PACE)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            time.sleep(_NORMAL_S)
            api = control(stage)
            numbers = range(1, self._services)
            with watching(stage, _sample(numbers)) as watcher:
                begun, cpu = time.monotonic(), cpu_seconds(daemon.process.pid)
                for start in range(1, self._services, _PUT):
                    some = range(start, min(start + _PUT, self._services))
                    put(api, "endpointslices", [slice_of(number, endpoints_of(number)) for number in some])
                    put(api, "services", [service(number) for number in some])
                figures = self._until_the_last(stage, daemon, watcher, begun)
            figures["cpu_s"] -= cpu
            figures["lag_ms"] = 1e3 * _lag_s(daemon.get("/metrics", address=METRICS).body)
            seen: list[tuple[int, int]] = json.loads(pacer.communicate(input="enough\n", timeout=30)[0])
        ended = begun + figures["last_s"]
        normal = [took / 1e9 for at, took in seen if at / 1e9 < begun]
        meanwhile = [took / 1e9 for at, took in seen if begun <= at / 1e9 < ended]
        figures |= percentiles("normal", normal, unit=1e6, of=(99,))
        figures |= percentiles("meanwhile", meanwhile, unit=1e6, of=(99,))
        figures["meanwhile_ratio"] = figures["meanwhile_p99_us"] / figures["normal_p99_us"]
        figures["meanwhile_max_ms"] = 1e3 * max(meanwhile)
        return figures


def _lag_s(metrics: str) -> float:
    """The longest turn of any worker within the last minute."""
    lines = [line for line in metrics.splitlines() if line.startswith("kubeproxy_worker_loop_lag_seconds{")]
    return max((float(line.rpartition(" ")[2]) for line in lines), default=0.0)


def _sample(numbers: Sequence[int]) -> list[str]:
    """Services spread evenly over all of them, with the last one."""
    step = max(1, len(numbers) // _SAMPLE)
    return [address_of(number) for number in numbers[::-step]]


@contextmanager
def watching(stage: Stage, addresses: Sequence[str], within_s: float = LIMIT_S) -> Iterator[subprocess.Popen[str]]:
    """A program on the client's host that prints when all of these have answered, -1 if that is not in time."""
    watcher = stage.client.popen(
        pinned(stage.cores.load[:1], *traffic.program("answers", str(PORT), str(_LOOK_S), str(within_s))),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert watcher.stdin is not None
    watcher.stdin.write(" ".join(addresses))
    watcher.stdin.close()
    watcher.stdin = None  # or `communicate` would flush it
    try:
        yield watcher
    finally:
        watcher.kill()


def _silent(stage: Stage, numbers: Sequence[int]) -> int:
    """The number of Services that do not answer."""
    addresses = " ".join(address_of(number) for number in numbers)
    return int(stage.client.run(traffic.program("sweep", str(PORT)), input=addresses).stdout)


def _ask(stage: Stage, address: str, patience_s: float = 1.0) -> str:
    """The endpoint that answers a new connection; empty: none."""
    try:
        with stage.client.connect((address, PORT), timeout=patience_s) as connection:
            connection.sendall(traffic.QUESTION)
            return connection.recv(4096).decode().rpartition("\r\n")[2]
    except OSError:
        return ""


def until_answered_by(stage: Stage, address: str, endpoint: str = "", within_s: float = 30.0) -> float:
    """The moment when that endpoint (or any) answered for a Service. The attempts are short, because an early one
    would wait a second for the kernel's next SYN."""
    deadline = time.monotonic() + within_s
    while True:
        seen = _ask(stage, address, patience_s=0.02)
        now = time.monotonic()
        if seen and endpoint in ("", seen):
            return now
        if now > deadline:
            raise AssertionError(f"{address} is answered by {seen or 'no endpoint'}, not by {endpoint or 'any'}")


def _connections(stage: Stage, address: str) -> list[float]:
    """The times of new connections to the first answer, in seconds. Infinite where there was none."""
    times = []
    for _ in range(_QUESTIONS):
        begun = time.monotonic()
        answered = _ask(stage, address)
        times.append(time.monotonic() - begun if answered else math.inf)
    return times


def control(stage: Stage) -> http.client.HTTPConnection:
    """A connection to the control endpoint of the API server."""
    api = http.client.HTTPConnection(CLIENT_V4, API_PORT, timeout=30)
    with stage.client.entered():
        api.connect()
    return api


def put(api: http.client.HTTPConnection, resource: str, objects: list[dict[str, Any]]) -> None:
    """Create or change these objects. AssertionError when the API server refuses."""
    api.request("POST", "/_control/put", json.dumps({"resource": resource, "objects": objects}))
    answer = api.getresponse()
    said = answer.read()
    if answer.status != 200:
        raise AssertionError(f"the API server refuses: {said!r}")


def percentiles(name: str, times: Sequence[float], *, unit: float, of: Sequence[int] = (50, 99)) -> dict[str, float]:
    """`NAME_pN_us` (or ms), each the least time that N percent of all did not exceed."""
    suffix = {1e3: "ms", 1e6: "us"}[unit]
    ordered = sorted(times)
    return {f"{name}_p{n}_{suffix}": unit * ordered[min(len(ordered) - 1, len(ordered) * n // 100)] for n in of}
