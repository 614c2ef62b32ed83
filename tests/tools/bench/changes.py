"""Changes of endpoints among thousands of Services: ``python -m tests.tools.bench.changes [SERVICES]``, as root.

One daemon after the other, on the userspace path and on the kernel path, serves 10,000 Services of 10 endpoints from an
API server. Then, in this order:

replaced        a new endpoint takes the place of one of ten, in one Service after the other
rate            the same in 100 Services a second, for 10 s: delay, and processor time of all processes of the daemon
restart         a Service of 1,000 endpoints gets 1,000 others, one by one: elements that the kernel changes
storm           a new endpoint takes the place of one, in all Services at once

A change begins before the request to the API server. It is in force when the kernel notifies of its element. The
userspace path has no element: there the last Service gets one endpoint alone, and the change is in force when that one
has answered.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

from tests.tools.bench.clusters import (
    ENDPOINTS,
    NETWORK,
    address_of,
    endpoints_of,
    slice_of,
    spare,
    start_apiserver,
)
from tests.tools.bench.cpu_pinning import Cores
from tests.tools.bench.kernel_watch import KernelWatch
from tests.tools.bench.peers import start_daemon
from tests.tools.bench.processes import cpu_seconds, memory
from tests.tools.bench.scale import control, put, until_answered_by
from tests.tools.bench.stage import Stage, make_stage

REPLACED = 300
PER_S, SECONDS = 100, 10
MANY = 1000
_PUT = 500
"""The number of objects in one request."""
_LIMIT_S = 120.0


def measure(services: int, data_path: str) -> None:
    """Print the figures of one data path. AssertionError when a change does not come into force."""
    print(f"{data_path} path, {services:,} Services of {ENDPOINTS} endpoints")
    with make_stage("changes", Cores.shared(), everywhere=[NETWORK]) as stage:
        options = ["--master", start_apiserver(stage, services=services), f"--data-path={data_path}"]
        began = time.monotonic()
        with start_daemon(stage, workers=2, options=options) as daemon, KernelWatch(stage.node) as watch:
            until_answered_by(stage, address_of(services - 1))
            print(f"  start to an answer of the last Service: {time.monotonic() - began:.1f} s")
            changes = Changes(stage, watch, daemon.process.pid, services, in_kernel=data_path == "kernel")
            changes.settle()
            if changes.in_kernel:
                changes.replaced()
            changes.rate()
            if changes.in_kernel:
                changes.restart()
            changes.storm()


class Changes:
    """The changes of one daemon's Services."""

    def __init__(self, stage: Stage, watch: KernelWatch, pid: int, services: int, *, in_kernel: bool) -> None:
        self._stage, self._watch, self._pid, self._services = stage, watch, pid, services
        self.in_kernel = in_kernel
        self._api = control(stage)
        self._newcomers = (spare(number) for number in range(1 << 20))
        self._used = 0.0
        """Processor seconds of the daemon when the last part began."""

    def settle(self) -> None:
        """Wait until the daemon has nothing to do, and print its memory."""
        self._rest()
        print(f"  memory (PSS): {memory(self._pid).pss / 1024:.0f} MiB")

    def _rest(self) -> None:
        deadline = time.monotonic() + _LIMIT_S
        before = cpu_seconds(self._pid)
        while time.monotonic() < deadline:
            time.sleep(1)
            now = cpu_seconds(self._pid)
            if now - before < 0.05:
                break
            before = now
        self._used = now

    def _cpu(self) -> float:
        return cpu_seconds(self._pid) - self._used

    def _replacement(self, number: int) -> tuple[dict[str, object], str]:
        """The slice of a Service with another endpoint at the place of its first one, and that endpoint."""
        newcomer = next(self._newcomers)
        return slice_of(number, [newcomer, *endpoints_of(number)[1:]]), newcomer

    def replaced(self) -> None:
        """One change after the other."""
        delays = []
        for count in range(REPLACED):
            changed, newcomer = self._replacement(count * self._services // REPLACED)
            began = time.monotonic()
            put(self._api, "endpointslices", [changed])
            delays.append(self._watch.added_at(newcomer, _LIMIT_S) - began)
        print(f"  replaced: {_delays(delays)}, CPU {1e3 * self._cpu() / REPLACED:.1f} ms each")

    def rate(self) -> None:
        """Changes at fixed moments; a late request counts from its moment."""
        self._rest()
        began, due = time.monotonic(), {}
        for count in range(PER_S * SECONDS):
            changed, newcomer = self._replacement(count * 7 % self._services)
            at = began + count / PER_S
            time.sleep(max(0.0, at - time.monotonic()))
            due[newcomer] = at
            put(self._api, "endpointslices", [changed])
        if self.in_kernel:
            shown = _delays([self._watch.added_at(each, _LIMIT_S) - at for each, at in due.items()])
        else:
            shown = "delay not seen"
        took = time.monotonic() - began
        self._rest_of(took)
        print(f"  rate: {PER_S} a second for {SECONDS} s: {shown}, CPU {100 * self._cpu() / took:.0f} % of a core")

    def _rest_of(self, took: float) -> None:
        """Say when the requests themselves were late: then the rate was not reached."""
        if took > SECONDS + 1:
            print(f"  (the requests took {took:.1f} s)")

    def restart(self) -> None:
        """Replace the endpoints of a large Service one by one."""
        number = self._services - 2
        old = [next(self._newcomers) for _ in range(MANY)]
        put(self._api, "endpointslices", [slice_of(number, old)])
        self._watch.added_at(old[-1], _LIMIT_S)
        self._rest()
        endpoints, elements, delays = list(old), self._watch.changed, []
        for index in range(MANY):
            endpoints[index] = next(self._newcomers)
            began = time.monotonic()
            put(self._api, "endpointslices", [slice_of(number, endpoints)])
            delays.append(self._watch.added_at(endpoints[index], _LIMIT_S) - began)
        churn = (self._watch.changed - elements) / MANY
        slots = list(_slots(self._stage, address_of(number)))
        exact = sorted(slots) == sorted(endpoints)
        print(
            f"  restart of {MANY:,} endpoints: {_delays(delays)}, CPU {1e3 * self._cpu() / MANY:.1f} ms each, "
            f"{churn:.1f} elements each; afterwards {'every endpoint has one slot' if exact else 'SLOTS ARE WRONG'}"
        )
        put(self._api, "endpointslices", [slice_of(number, endpoints_of(number))])

    def storm(self) -> None:
        """Change all Services at once, the last one to one endpoint alone."""
        self._rest()
        changed = [self._replacement(number) for number in range(self._services - 1)]
        last = next(self._newcomers)
        changed.append((slice_of(self._services - 1, [last]), last))
        began = time.monotonic()
        for first in range(0, len(changed), _PUT):
            put(self._api, "endpointslices", [each for each, _ in changed[first : first + _PUT]])
        sent = time.monotonic() - began
        if self.in_kernel:
            delay = max(self._watch.added_at(newcomer, _LIMIT_S) for _, newcomer in changed) - began
        else:
            delay = until_answered_by(self._stage, address_of(self._services - 1), last) - began
        highest = memory(self._pid).pss / 1024
        self._rest()
        print(
            f"  storm: requests sent in {sent:.2f} s, all in force after {delay:.2f} s, memory then {highest:.0f} MiB "
            f"and at rest {memory(self._pid).pss / 1024:.0f} MiB"
        )


def _slots(stage: Stage, address: str) -> Iterator[str]:
    """The endpoints in the slots of a Service."""
    listed = json.loads(stage.node.run(["nft", "-j", "list", "map", "inet", "kubeproxy", "tcp_slots4"]).stdout)
    elements: Sequence[tuple[Mapping[str, Sequence[object]], Mapping[str, Sequence[str]]]]
    elements = next(item["map"]["elem"] for item in listed["nftables"] if "map" in item)
    for key, value in elements:
        if key["concat"][0] == address:
            yield value["concat"][0]


def _delays(delays_s: Sequence[float]) -> str:
    ordered = sorted(1e3 * delay for delay in delays_s)
    p50, p99 = (ordered[len(ordered) * part // 100] for part in (50, 99))
    return f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, longest {ordered[-1]:.1f} ms"


if __name__ == "__main__":
    for path in ("userspace", "kernel"):
        measure(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000, path)
