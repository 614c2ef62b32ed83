"""Prints what drain reports cost the API server, and a rollout, while a tenant attacks: ``python -m
tests.tools.bench.drain_reports [NODES]``.

One node's decisions for five minutes by the daemon's own code, in simulated time; all nodes do the same. The tenant has
its requests changed six times a second. Another tenant's rollout changes its own every 20 s, and its delay is the time
until the node's report has that.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable, Mapping
from typing import Final

from kubeproxy.daemon.drain_reporter import reports
from kubeproxy.daemon.report_room import LEASE_BYTES, fitting, pause_s, room, size_of
from kubeproxy.daemon.report_schedule import ReportSchedule
from kubeproxy.model import Address, ServiceName
from kubeproxy.model.drain_report import DrainState, NodeReport, ServiceReport, encode_report
from kubeproxy.model.drain_request import MAX_ADDRESSES, MAX_REQUESTS

SECONDS, STEP_S, STEPS_A_SECOND = 300, 0.1, 10
VICTIM: Final = ServiceName("victim", "web")
MOST: Final = [
    Address(f"10.{100 + n // 40_000}.{n // 200 % 200}.{n % 200}") for n in range(MAX_REQUESTS * MAX_ADDRESSES)
]
"""As many addresses as one Service can have named."""
Crowd = Callable[[int], Mapping[ServiceName, DrainState]]
"""What others ask for, by generation."""


def asking(generation: int, addresses: list[Address]) -> DrainState:
    """A Service whose requests want pods used that do not exist."""
    return DrainState(ServiceReport(generation, unused=frozenset(addresses)), frozenset(), frozenset())


def crowd(namespaces: int, services: int, addresses: int) -> Crowd:
    """A tenant with so many namespaces, Services in each, and addresses for each Service."""
    names = [ServiceName(f"evil-{n}", f"s{s}") for n in range(namespaces) for s in range(services)]
    return lambda generation: {name: asking(generation, MOST[:addresses]) for name in names}


def rollouts(number: int) -> Crowd:
    """Ordinary rollouts of as many namespaces, each with a step every ten seconds."""
    names = [ServiceName(f"team-{n}", "web") for n in range(number)]
    return lambda generation: {name: asking(generation // 60, MOST[:5]) for name in names}


SCENARIOS: Final[dict[str, Crowd]] = {
    "nothing": crowd(0, 0, 0),
    "100 ordinary rollouts": rollouts(100),
    "a Service with 2,000 addresses": crowd(1, 1, 2000),
    "a Service with 600 addresses": crowd(1, 1, 600),
    "100 Services with 50": crowd(1, 100, 50),
    "4 namespaces, a Service with 600 in each": crowd(4, 1, 600),
    "100 namespaces, a Service with 600 in each": crowd(100, 1, 600),
    "400 namespaces, a Service with 3 in each": crowd(400, 1, 3),
    "2,000 namespaces, a Service with 3 in each": crowd(2000, 1, 3),
}


def play(others: Crowd, nodes: int) -> tuple[float, float, list[float]]:
    """Writes and bytes of one node in a second, and the rollout's delays; those that are endless are left out."""
    draw = random.Random(7)
    schedule = ReportSchedule(draw.random)
    writes, size, delays, asked_at, seen = 0, 0, list[float](), 0.0, 0
    for step in range(SECONDS * STEPS_A_SECOND):
        now, victim = step * STEP_S, step // (20 * STEPS_A_SECOND) + 1
        if step % (20 * STEPS_A_SECOND) == 0:
            asked_at = now
        states = {**others(int(now * 6)), VICTIM: asking(victim, MOST[:5])}
        fits = fitting({name: size_of(name, state) for name, state in states.items()}, room(nodes))
        report = NodeReport(reports({name: states[name] for name in fits.services}, {}), fits.omitted)
        text = encode_report(report)
        if schedule.due(report, pause_s(nodes, len(text)), now) <= now:
            schedule.written(report, now)
            writes += 1
            size += len(text) + LEASE_BYTES
            if seen < victim and VICTIM in report.services:
                delays.append(now - asked_at)
                seen = victim
    return writes / SECONDS, size / SECONDS, delays


def main() -> None:
    """Print a table."""
    nodes = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    print(f"{nodes:,} nodes; a report has at most {room(nodes):,} bytes\n")
    print("| the tenant has | writes a second | MB a second | the rollout's delay (median, most) |\n|---|---|---|---|")
    for name, others in SCENARIOS.items():
        writes, size, delays = play(others, nodes)
        delay = f"{statistics.median(delays):.1f}, {max(delays):.1f} s" if delays else "left out: its time-outs"
        print(f"| {name} | {writes * nodes:.0f} | {size * nodes / 1e6:.2f} | {delay} |", flush=True)


if __name__ == "__main__":
    main()
