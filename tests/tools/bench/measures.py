"""The kinds of load. A measure loads one peer for some seconds and gives a figure for each of its metrics."""

from __future__ import annotations

import json
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from tests.tools.bench import traffic
from tests.tools.bench.cpu_pinning import busy_seconds, pinned
from tests.tools.bench.peers import Peer
from tests.tools.bench.processes import cpu_seconds, ended_seconds, softirq_seconds
from tests.tools.bench.stage import BULK, ECHO, HTTP, Stage


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of a measure."""

    key: str
    title: str
    digits: int = 0
    rare: bool = False
    """Whether the table has a line for it only where it is not zero. The JSON always has it."""
    compared: bool = True
    """Whether its ratios have a meaning."""


class Measure(ABC):
    """One kind of load."""

    name: str
    title: str

    @property
    @abstractmethod
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics of this measure."""

    @abstractmethod
    def run(self, stage: Stage, peer: Peer, seconds: float) -> Mapping[str, float]:
        """Load the peer for so long. Returns the figures by the keys of `metrics`, without the `added_` and
        `times_dnat_` ones, which the report computes. AssertionError if nothing came through."""


class Meter:
    """The CPU use of the proxy, and of all that takes part, since the meter was made."""

    def __init__(self, stage: Stage, peer: Peer) -> None:
        self._cores = stage.cores.proxy
        self._pid = peer.pid()
        self._began = time.monotonic()
        self._busy = busy_seconds(self._cores)
        self._responder = stage.responder
        self._cpu = self._cpu_so_far()
        self._all = self._all_so_far()

    def _cpu_so_far(self) -> float:
        return cpu_seconds(self._pid) if self._pid is not None else 0.0

    def _all_so_far(self) -> float:
        return self._cpu_so_far() + cpu_seconds(self._responder) + ended_seconds() + softirq_seconds()

    def all_cpu_s(self) -> float:
        """CPU seconds of the proxy, the responder, the load generators that have ended, and the kernel's own threads.

        What the kernel does for a packet counts for the process that it interrupts or that has sent the packet, so this
        is what the whole machine does, without the work of others on it."""
        return self._all_so_far() - self._all

    def cpu_s(self) -> float:
        """CPU seconds of its processes."""
        return self._cpu_so_far() - self._cpu

    def busy(self) -> float:
        """The share of its cores that was not idle, in percent: near 100 when the proxy is the limit."""
        wall = (time.monotonic() - self._began) * len(self._cores)
        return 100 * (busy_seconds(self._cores) - self._busy) / wall


_BUSY = Metric("busy_percent", "proxy core busy, %", compared=False)

# wrk's own output is for people; its done() hook prints the exact sums.
_WRK_SUMS = """\
done = function(summary)
  local e = summary.errors
  io.write(string.format('{"sums": [%d, %d, %d]}\\n', summary.requests, summary.duration,
    e.connect + e.read + e.write + e.status + e.timeout))
end
"""


@dataclass(frozen=True, slots=True)
class WrkSums:
    """The sums of one run of wrk."""

    requests: int
    seconds: float
    errors: int

    @staticmethod
    def parse(output: str) -> WrkSums:
        """Parses wrk's output with our done() hook. AssertionError when it is missing."""
        for line in output.splitlines():
            if line.startswith('{"sums"'):
                requests, microseconds, errors = json.loads(line)["sums"]
                return WrkSums(requests, microseconds / 1e6, errors)
        raise AssertionError(f"wrk printed no sums: {output}")


class Http(Measure):
    """Small requests by wrk, some connections at a time: on kept-alive connections, or each on one of its own."""

    def __init__(self, *, kept_alive: bool, connections: int = 64) -> None:
        self.connections = connections
        self.name = "requests" if kept_alive else "connections"
        self.title = f"requests, {self.connections} kept-alive connections" if kept_alive else "new connections"
        self._unit, self._per = ("100,000 requests", 100_000) if kept_alive else ("10,000 connections", 10_000)
        self._headers = [] if kept_alive else ["-H", "Connection: close"]

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Rate, CPU and errors."""
        return (
            Metric("per_s", f"{self.name} per second"),
            Metric("cpu_s", f"proxy CPU s per {self._unit}", digits=2),
            Metric("all_cpu_s", f"all CPU s per {self._unit}", digits=2),
            Metric("times_dnat_all_cpu_s", "all CPU, × dnat", digits=2, compared=False),
            _BUSY,
            Metric("errors", "failed", rare=True, compared=False),
        )

    def run(self, stage: Stage, peer: Peer, seconds: float) -> Mapping[str, float]:
        """The figures of one run of wrk."""
        meter = Meter(stage, peer)
        sums = self.load(stage, peer, seconds)
        busy, cpu_s, all_cpu_s = meter.busy(), meter.cpu_s(), meter.all_cpu_s()
        return {
            "per_s": sums.requests / sums.seconds,
            "cpu_s": cpu_s * self._per / sums.requests,
            "all_cpu_s": all_cpu_s * self._per / sums.requests,
            "busy_percent": busy,
            "errors": sums.errors,
        }

    def load(self, stage: Stage, peer: Peer, seconds: float) -> WrkSums:
        """Load the peer by wrk, which rounds its duration to whole seconds, at least one."""
        address, port = peer.address(HTTP)
        script = stage.directory / "sums.lua"
        script.write_text(_WRK_SUMS)
        threads = min(2, len(stage.cores.load), self.connections)
        options = [f"-t{threads}", f"-c{self.connections}", f"-d{max(1, round(seconds))}s", *self._headers]
        done = stage.client.run(
            pinned(stage.cores.load, "wrk", *options, "-s", str(script), f"http://{address}:{port}/")
        )
        sums = WrkSums.parse(done.stdout)
        if sums.requests == 0:
            raise AssertionError(f"{peer.name}: not one request was answered: {done.stdout}")
        return sums


class Bulk(Measure):
    """Bytes from the backends to the client at full speed, on several streams at once."""

    metrics = (
        Metric("gbit_per_s", "Gbit/s", digits=2),
        Metric("cpu_s", "proxy CPU s per GB", digits=3),
        _BUSY,
    )

    def __init__(self, streams: int) -> None:
        self._streams = streams
        self.name = f"bulk{streams}"
        self.title = f"bulk, {streams} stream{'s' if streams > 1 else ''}"

    def run(self, stage: Stage, peer: Peer, seconds: float) -> Mapping[str, float]:
        """Waits half a second for the streams to open their windows, then counts."""
        address, port = peer.address(BULK)
        sinks = [
            stage.client.popen(
                pinned(stage.cores.load, *traffic.program("sink", address, str(port))),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(self._streams)
        ]
        for sink in sinks:
            assert sink.stdout is not None
            if sink.stdout.readline() != "connected\n":
                raise AssertionError(f"{peer.name}: not all of {self._streams} streams could be opened")
        begin = time.monotonic() + 0.5
        end = begin + seconds
        for sink in sinks:
            assert sink.stdin is not None
            sink.stdin.write(f"{begin} {end}\n")
            sink.stdin.flush()
        time.sleep(max(0.0, begin - time.monotonic()))
        meter = Meter(stage, peer)
        time.sleep(max(0.0, end - time.monotonic()))
        busy, cpu_s = meter.busy(), meter.cpu_s()
        counted = [sink.communicate(timeout=30)[0] for sink in sinks]
        if any(sink.returncode != 0 for sink in sinks) or not any(int(count) for count in counted):
            raise AssertionError(f"{peer.name}: a stream stopped: bytes by stream: {counted}")
        gigabytes = sum(map(int, counted)) / 1e9
        return {"gbit_per_s": 8 * gigabytes / seconds, "cpu_s": cpu_s / gigabytes, "busy_percent": busy}


class Latency(Measure):
    """The time of one small request on one kept-alive connection, without other load."""

    name = "latency"
    title = "latency, one kept-alive connection"
    metrics = (
        Metric("p50_us", "p50, µs", digits=1),
        Metric("p99_us", "p99, µs", digits=1),
        Metric("added_p50_us", "p50 added to direct, µs", digits=1),
        Metric("added_p99_us", "p99 added to direct, µs", digits=1),
    )

    def run(self, stage: Stage, peer: Peer, seconds: float) -> Mapping[str, float]:
        """Sends one question after the other."""
        address, port = peer.address(HTTP)
        done = stage.client.run(
            pinned(stage.cores.load[:1], *traffic.program("probe", address, str(port), str(seconds)))
        )
        times: list[int] = json.loads(done.stdout)
        return {f"p{percent}_us": times[min(len(times) - 1, len(times) * percent // 100)] / 1e3 for percent in (50, 99)}


class Volley(Measure):
    """Small datagrams. A socket sends the next one as soon as the last one has come back."""

    name = "udp"
    clients = 64
    title = f"UDP, 64-byte echo, {clients} clients"
    metrics = (
        Metric("per_s", "round trips per second"),
        Metric("cpu_s", "proxy CPU s per 100,000 round trips", digits=2),
        _BUSY,
        Metric("lost", "lost", rare=True, compared=False),
    )

    def run(self, stage: Stage, peer: Peer, seconds: float) -> Mapping[str, float]:
        """Starts as many generators as there are cores for them."""
        address, port = peer.address(ECHO)
        cores = stage.cores.load
        meter = Meter(stage, peer)
        senders = [
            stage.client.popen(
                pinned(
                    (core,),
                    *traffic.program("volley", address, str(port), str(seconds), str(self.clients // len(cores))),
                ),
                stdout=subprocess.PIPE,
                text=True,
            )
            for core in cores
        ]
        said = [json.loads(sender.communicate(timeout=30)[0]) for sender in senders]
        busy, cpu_s = meter.busy(), meter.cpu_s()
        trips, lost = (sum(figures) for figures in zip(*said, strict=True))
        if trips == 0:
            raise AssertionError(f"{peer.name}: not one datagram came back; {lost} were lost")
        return {"per_s": trips / seconds, "cpu_s": cpu_s * 100_000 / trips, "busy_percent": busy, "lost": lost}


REQUESTS, CONNECTIONS = Http(kept_alive=True), Http(kept_alive=False)
LOADS: tuple[Measure, ...] = (REQUESTS, CONNECTIONS, Bulk(1), Bulk(8), Latency(), Volley())
