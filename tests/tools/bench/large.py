"""Large clusters: 5,000 Services of 50 endpoints, 50,000 of 2, 500 of 1,000, and one of 10,000.

Each size and proxy is a scenario with a node, a test API server and a proxy of its own, under a hard limit of 20,000
open files and the kernel's default range of ports. kube-proxy itself (mode nftables) is measured too where
KUBERNETES_BINARIES names the directory of its program. All of them read JSON.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.apiserver.generate import endpoint_slice, endpoint_slices, service
from tests.support.lab import Daemon
from tests.support.lab.daemon import HEALTHZ, KUBEPROXY, METRICS
from tests.support.lab.node import CLIENT_V4, NODE_V4
from tests.support.lab.web import get
from tests.tools.bench.clusters import address_of, newcomer, start_apiserver
from tests.tools.bench.cpu_pinning import Cores
from tests.tools.bench.measures import Metric
from tests.tools.bench.processes import cpu_seconds, memory
from tests.tools.bench.scale import control, percentiles, put, until_answered_by, watching
from tests.tools.bench.stage import BACKENDS, Stage, make_stage

LIMIT_S = 400.0
"""The limit for the last answer of a start; after it the scenario fails."""
FILES = 20_000
PORTS = "32768 60999"
"""The kernel's default of ip_local_port_range."""
KUBE_PROXY = Path(os.environ.get("KUBERNETES_BINARIES", "/nonexistent"), "kube-proxy")
_SAMPLE = 41
_CHANGES, _CHANGES_S = 100, 40.0
"""How many changes are measured at most, and for how long at most."""
_ADDITIONS = 5
_PAUSE_S = 1.2
"""Longer than the least time between two netfilter transactions, which is not measured here."""
_REST_S = 15.0
_PUT = 500
_OWN = {2 << 8, 3 << 8}
"""The first 24 bits of the stage's own networks, as the generator of endpoints counts: 10.2.0.0/24 and 10.3.0.0/24."""
_MOVED = 5_000


@dataclass(frozen=True, slots=True)
class Size:
    """A cluster."""

    services: int
    endpoints: int

    def __str__(self) -> str:
        return f"{self.services}x{self.endpoints}"


SIZES = (Size(5_000, 50), Size(50_000, 2), Size(500, 1_000), Size(1, 10_000))
PROXIES = ("userspace", "kernel", *(("kube-proxy",) if KUBE_PROXY.exists() else ()))


class Large:
    """The figures of a proxy at a size. A zone that goes: a third of all Services get one new endpoint each instead of
    all that they had. Another third, 5,000 at most, is deleted and made anew with other addresses."""

    metrics = (
        Metric("last_s", "cold start: until the last of 41 Services answers, s", digits=1, compared=False),
        Metric("cpu_s", "CPU s until then", digits=1, compared=False),
        Metric("pss_mib", "memory then (PSS), MiB", digits=0, compared=False),
        Metric("rest_pss_mib", "memory at rest after everything (PSS), MiB", digits=0, compared=False),
        Metric("kernel_mib", "memory of the kernel for it, MiB", digits=0, compared=False),
        Metric("rest_percent", "at rest, % of a core", digits=1, compared=False),
        Metric("changes", "changes measured", compared=False),
        Metric("change_p50_ms", "one change: event to use, p50, ms", digits=1, compared=False),
        Metric("change_p99_ms", "one change: event to use, p99, ms", digits=1, compared=False),
        Metric("change_cpu_ms", "CPU ms of a change", digits=1, compared=False),
        Metric("added_p50_ms", "new Service: event to answer, p50, ms", digits=0, compared=False),
        Metric("zone_s", "a zone goes: until all is in use, s", digits=1, compared=False),
        Metric("zone_cpu_s", "CPU s of that", digits=1, compared=False),
        Metric("anew_s", "Services deleted and made anew: until the last answers, s", digits=1, compared=False),
        Metric("anew_cpu_s", "CPU s of that", digits=1, compared=False),
        Metric("warm_s", "killed and started again: until ready and all answer, s", digits=1, compared=False),
        Metric("warm_cpu_s", "CPU s of that", digits=1, compared=False),
    )

    def __init__(self, size: Size) -> None:
        self._size = size
        ends = ((number * size.endpoints, (number + 1) * size.endpoints - 1) for number in range(size.services))
        self._numbers = [number for number, both in enumerate(ends) if not {it >> 8 for it in both} <= _OWN]
        """The Services that have an endpoint beside the addresses of the stage's own hosts, where nobody answers."""
        self._moved = self._numbers[1::3][:_MOVED] or self._numbers
        """The Services that are made anew."""
        self.name = f"large {size}"
        self.title = f"{size.services:,} Services × {size.endpoints:,} endpoints"

    def run(self, proxy: str) -> Mapping[str, float]:
        """Measure one proxy. AssertionError when a Service of the sample never answers."""
        with make_stage("large", Cores.shared(), everywhere=_endpoint_networks()) as stage:
            stage.node.sysctl("net.ipv4.ip_local_port_range", PORTS)
            node = stage.directory / "node.json"
            node.write_text(json.dumps(_NODE))
            url = start_apiserver(stage, services=self._size.services, endpoints=self._size.endpoints, objects=[node])
            before = _kernel_mib()
            figures: dict[str, float] = {}
            with _started(proxy, stage, url) as pid:
                figures |= self._until_all_answer(stage, pid, "last")
                figures["cpu_s"] = figures.pop("last_cpu_s")
                figures["pss_mib"] = memory(pid).pss / 1024
                figures |= self._changes(stage, pid)
                figures |= self._zone(stage, pid)
                figures |= self._anew(stage, pid)
                used, since = cpu_seconds(pid), time.monotonic()
                time.sleep(_REST_S)
                figures["rest_percent"] = 100 * (cpu_seconds(pid) - used) / (time.monotonic() - since)
                figures["rest_pss_mib"] = memory(pid).pss / 1024
                figures["kernel_mib"] = _kernel_mib() - before
            with _started(proxy, stage, url) as pid:
                figures |= self._until_all_answer(stage, pid, "warm")
            return figures

    def _until_all_answer(self, stage: Stage, pid: int, name: str) -> dict[str, float]:
        begun = time.monotonic()
        numbers = self._numbers[:: -max(1, len(self._numbers) // (_SAMPLE - 1))]
        moved = self._moved if name == "warm" else ()
        sample = [_other_address(it) if it in moved else address_of(it) for it in numbers]
        with watching(stage, sample, LIMIT_S) as watcher:
            answered = float(watcher.communicate(timeout=LIMIT_S + 30)[0])
        if answered < 0:
            raise AssertionError(f"not every Service answered within {LIMIT_S} s")
        while name == "warm" and not _is_ready(stage):
            time.sleep(0.05)
            answered = time.monotonic()
        return {f"{name}_s": answered - begun, f"{name}_cpu_s": cpu_seconds(pid)}

    def _changes(self, stage: Stage, pid: int) -> dict[str, float]:
        """Make one change after the other, each of another Service, then add Services."""
        api, changes, used, end = control(stage), list[float](), cpu_seconds(pid), time.monotonic() + _CHANGES_S
        for number in self._numbers[:: max(1, len(self._numbers) // _CHANGES)]:
            begun = time.monotonic()
            changes.append(self._replace(stage, api, [number], [number], 0) - begun)
            if time.monotonic() > end:
                break
        used, additions = cpu_seconds(pid) - used, list[float]()
        for number in range(self._size.services, self._size.services + _ADDITIONS):
            time.sleep(_PAUSE_S)
            put(api, "endpointslices", [endpoint_slice(number, [newcomer(number % 250)])])
            begun = time.monotonic()
            put(api, "services", [service(number)])
            additions.append(until_answered_by(stage, address_of(number), newcomer(number % 250), LIMIT_S) - begun)
        return {
            "changes": len(changes),
            "change_cpu_ms": 1e3 * used / len(changes),
            **percentiles("change", changes, unit=1e3),
            **percentiles("added", additions, unit=1e3, of=(50,)),
        }

    def _zone(self, stage: Stage, pid: int) -> dict[str, float]:
        numbers, used, begun = self._numbers[::3], cpu_seconds(pid), time.monotonic()
        ended = self._replace(stage, control(stage), numbers, numbers[:: max(1, len(numbers) // _SAMPLE)], 100)
        return {"zone_s": ended - begun, "zone_cpu_s": cpu_seconds(pid) - used}

    def _replace(
        self, stage: Stage, api: http.client.HTTPConnection, numbers: Sequence[int], asked: Sequence[int], salt: int
    ) -> float:
        """Give each of these Services one new endpoint instead of all others. Return when the last one of those asked
        is answered by it."""
        rest = len(endpoint_slices(0, ["10.0.0.1"] * self._size.endpoints)) - 1
        for some in _pieces(numbers):
            slices = [endpoint_slice(number, [newcomer((number + salt) % 250)]) for number in some]
            slices += [endpoint_slice(number, [], suffix=f"a{1 + each}") for number in some for each in range(rest)]
            put(api, "endpointslices", slices)
        return max(
            until_answered_by(stage, address_of(number), newcomer((number + salt) % 250), LIMIT_S) for number in asked
        )

    def _anew(self, stage: Stage, pid: int) -> dict[str, float]:
        """Delete Services, and make them again with other addresses."""
        numbers, used, begun = self._moved, cpu_seconds(pid), time.monotonic()
        api = control(stage)
        for number in numbers:
            gone = {"resource": "services", "namespace": "demo", "name": f"service-{number}"}
            api.request("POST", "/_control/delete", json.dumps(gone))
            api.getresponse().read()
        for some in _pieces(numbers):
            put(api, "services", [service(number, cluster_ip=_other_address(number)) for number in some])
        asked = numbers[:: max(1, len(numbers) // _SAMPLE)]
        ended = max(until_answered_by(stage, _other_address(number), within_s=LIMIT_S) for number in asked)
        return {"anew_s": ended - begun, "anew_cpu_s": cpu_seconds(pid) - used}


def _pieces(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    for first in range(0, len(numbers), _PUT):
        yield numbers[first : first + _PUT]


def _other_address(number: int) -> str:
    """Another address of a Service."""
    return address_of(number).replace("10.9", "10.10", 1)


def _endpoint_networks() -> list[str]:
    """10.0.0.0/14 without the two networks of the stage's own hosts."""
    found = [ipaddress.IPv4Network("10.0.0.0/15")]
    for half, own in (("10.2.0.0/16", CLIENT_V4), ("10.3.0.0/16", BACKENDS[0])):
        found += ipaddress.IPv4Network(half).address_exclude(ipaddress.IPv4Network(f"{own}/24", strict=False))
    return list(map(str, found))


def _kernel_mib() -> float:
    """What the kernel has allocated for itself, on the whole machine."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return sum(int(lines[name].split()[0]) for name in ("SUnreclaim", "VmallocUsed")) / 1024


def _is_ready(stage: Stage) -> bool:
    try:
        return get(stage.node, HEALTHZ, "/healthz").status == 200
    except OSError:
        return False


@contextmanager
def _started(proxy: str, stage: Stage, url: str) -> Iterator[int]:
    """A proxy, which is killed at the end: its rules stay. Yields its process number."""
    limit = ["prlimit", f"--nofile={FILES}:{FILES}"]
    if proxy != "kube-proxy":
        daemon = Daemon(
            stage.node,
            manifests=None,
            netfilter="nftables",
            options=["--workers=2", "--master", url, f"--data-path={proxy}", *_NODE_NAME, "--orphan-grace=1s"],
            command=[*limit, KUBEPROXY],
            ready_within_s=None,
        )
        try:
            yield daemon.process.pid
        except AssertionError as error:
            raise AssertionError(f"{error}:\n{daemon.log()[-4000:]}") from None
        finally:
            daemon.close()
        return
    log = stage.directory / "kube-proxy.log"
    with log.open("ab") as out:
        process = stage.node.popen(
            [
                *limit,
                str(KUBE_PROXY),
                f"--master={url}",
                "--proxy-mode=nftables",
                *_NODE_NAME,
                f"--healthz-bind-address={HEALTHZ[0]}:{HEALTHZ[1]}",
                f"--metrics-bind-address={METRICS[0]}:{METRICS[1]}",
                "--conntrack-max-per-core=0",
                "--conntrack-tcp-timeout-established=0",
                "--conntrack-tcp-timeout-close-wait=0",
            ],
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process.pid
    except AssertionError as error:
        raise AssertionError(f"{error}:\n{log.read_text()[-4000:]}") from None
    finally:
        process.kill()
        process.wait()


_NODE_NAME = ["--hostname-override=bench"]
_NODE = {
    "kind": "Node",
    "metadata": {"name": "bench"},
    "status": {"addresses": [{"type": "InternalIP", "address": NODE_V4}]},
}
