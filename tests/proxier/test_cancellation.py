"""A proxier that is cancelled at any await leaks no port and loses no change."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from kubeproxy.model import Protocol
from kubeproxy.netfilter.packet_simulation import Fate
from kubeproxy.proxier import PortRange
from tests.proxier.builders import endpoint_slice, service, targets
from tests.proxier.fake_node import SOURCE, Node

STEPS = 14
"""More than the breaths that the round below takes; `test_the_last_step_is_after_the_end` holds this to it."""


async def changing() -> Node:
    """A node with frontends to open, update, empty, close, and open anew with another protocol."""
    node = Node(port_range=PortRange(30000, 30005), protocols=(Protocol.TCP, Protocol.UDP))
    before = {
        "updated": "10.0.0.1",
        "emptied": "10.0.0.1",
        "closed": "10.0.0.1",
        "moved": "10.0.0.1",
    }
    node.tracker.replace_services(SOURCE, [service(n, f"10.96.0.{i}") for i, n in enumerate(before)])
    node.tracker.replace_slices(SOURCE, [endpoint_slice(n, endpoints) for n, endpoints in before.items()])
    await node.settle()
    await node.interrupt()
    node.tracker.put_slice(SOURCE, endpoint_slice("updated", "10.0.0.2"))
    node.tracker.put_slice(SOURCE, endpoint_slice("emptied", ()))
    node.tracker.remove_service(SOURCE, service("closed").name)
    node.tracker.put_service(SOURCE, service("moved", "10.96.0.3", "http:80/UDP"))
    node.tracker.put_service(SOURCE, service("opened", "10.96.0.4"))
    return node


@pytest.mark.parametrize("step", range(STEPS))
async def test_cancelled_at_any_await(step: int) -> None:
    node = await changing()
    node.start()
    for _ in range(step):
        await asyncio.sleep(0)
    await node.interrupt()
    await node.settle()
    assert node.answers("10.96.0.0:80") == targets("10.0.0.2:8080")
    assert node.answers("10.96.0.1:80") is Fate.REFUSED
    assert node.answers("10.96.0.2:80") is Fate.PASSED
    assert node.answers("10.96.0.3:80") is Fate.PASSED
    assert node.answers("10.96.0.3:80/UDP") is Fate.REFUSED
    assert node.answers("10.96.0.4:80") is Fate.REFUSED
    assert {(protocol, port) for protocol, _, port in node.reserver.held} == {
        (listen.protocol, listen.port) for listen in node.data_plane.listening.values()
    }
    assert len(node.data_plane.listening) == 4
    await node.close()


async def test_the_last_step_is_after_the_end() -> None:
    node = await changing()
    node.start()
    for _ in range(STEPS - 1):
        await asyncio.sleep(0)
    assert node.clock.idle
    await node.close()


async def test_run_ends_when_cancelled_and_begins_where_it_was() -> None:
    node = await changing()
    run = asyncio.create_task(node.proxier.run())
    await asyncio.sleep(0)
    run.cancel()
    with suppress(asyncio.CancelledError):
        await run
    node.start()
    await node.rest()
    for _ in range(2):
        await node.pass_time(1.0)
    assert node.proxier.view.snapshot().pending_since is None
    assert len(node.data_plane.listening) == 4
    await node.close()
