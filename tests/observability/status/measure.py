"""`python -m tests.observability.status.measure [SERVICES]`: the cost of status queries for the control process.

There is no data plane: reading the workers' counters comes on top. Each line shows how long an answer takes while
another task runs in every turn of the loop, and the longest wait of that task.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import msgspec
import uvloop

from kubeproxy.dataplane.interface import Counters
from kubeproxy.observability.status.observation import Observation
from kubeproxy.observability.status.service_index import Order, Query
from kubeproxy.observability.status.status_service import SAMPLE_S, StatusService
from kubeproxy.observability.status.traffic_history import History
from tests.observability.status.observation import candidates, town


class Turns:
    """Runs in every turn of the loop and records the longest wait."""

    longest_s = 0.0

    async def run(self) -> None:
        """Until cancelled."""
        before = time.perf_counter()
        while True:
            await asyncio.sleep(0)
            now = time.perf_counter()
            self.longest_s = max(self.longest_s, now - before)
            before = now

    @contextmanager
    def measured(self, what: str) -> Iterator[None]:
        """Print the duration and the longest wait."""
        began, self.longest_s = time.perf_counter(), 0.0
        yield
        took_s = time.perf_counter() - began
        print(f"{what:<34} {1000 * took_s:7.0f} ms   longest wait {1000 * self.longest_s:5.1f} ms")


async def main(services: int) -> None:
    """Measure and print."""
    observation, now = town(services), 0.0

    async def look() -> Observation:
        return observation

    # As the daemon does: the collector skips the objects of the start.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    status_service = StatusService(look=look, candidates=candidates, recent_warnings=lambda: (), clock=lambda: now)
    turns = Turns()
    other = asyncio.create_task(turns.run())
    await asyncio.sleep(0.1)
    for what, query in {
        "a page of 50": Query(limit=50),
        "a page, searched for an address": Query(search="10.3.7.1", limit=50),
        "a page, sorted by bytes/s": Query(order=Order.BYTES, limit=50),
        "everything": Query(),
    }.items():
        now += 60
        with turns.measured(what):
            _, found = await status_service.ask(query)
            async for service in found:
                msgspec.json.encode(service)
    history = History(gap_s=2 * SAMPLE_S)
    for sample in range(4):
        counters = {name: Counters(accepted=1000 * sample + number) for number, name in enumerate(observation.counters)}
        observation = replace(observation, counters=counters, now=observation.now + SAMPLE_S)
        await asyncio.sleep(0)  # the preparation is not measured
        with turns.measured("a sample, every Service busy"):
            for _ in history.add(counters, observation.now):
                await asyncio.sleep(0)
    other.cancel()


if __name__ == "__main__":
    uvloop.install()
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000))
