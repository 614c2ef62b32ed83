"""A change of one Service among thousands costs the work of one. (`pytest -s` prints the cost.)"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from kubeproxy.dataplane.messages import SetEndpoints
from kubeproxy.proxier import resolver
from kubeproxy.proxier.frontends import Resolved, resolve
from tests.proxier.builders import endpoint_slice, frontend_name, service, targets
from tests.proxier.fake_node import SOURCE, Node

SERVICES = 1_000
ENDPOINTS = " ".join(f"10.0.0.{i}" for i in range(10))


async def test_one_change_among_thousands(monkeypatch: pytest.MonkeyPatch) -> None:
    resolved: list[str] = []

    def counted(*args: Any) -> Resolved:
        resolved.append(args[0].name.name)
        return resolve(*args)

    monkeypatch.setattr(resolver, "resolve", counted)
    node = Node()

    async def cost(what: str, change: Callable[[], None]) -> None:
        resolved.clear()
        node.data_plane.sent.clear()
        start = time.perf_counter()
        change()
        await node.settle()
        print(f"{what}: {1000 * (time.perf_counter() - start):.1f} ms")

    services = [service(f"s{i}", f"10.{100 + i // 65536}.{i // 256 % 256}.{i % 256}") for i in range(SERVICES)]
    slices = [endpoint_slice(f"s{i}", ENDPOINTS) for i in range(SERVICES)]
    node.tracker.replace_slices(SOURCE, slices)
    await cost("start", lambda: node.tracker.replace_services(SOURCE, services))
    assert len(node.data_plane.listening) == SERVICES

    await cost("full sync without a change", lambda: None)
    assert not resolved
    await cost("endpoints of one", lambda: node.tracker.put_slice(SOURCE, endpoint_slice("s42", "10.0.0.1")))
    assert resolved == ["s42"]
    assert node.data_plane.sent == [SetEndpoints(frontend_name("s42"), targets("10.0.0.1:8080"))]
    await cost("one service more", lambda: node.tracker.put_service(SOURCE, service("more", "10.200.0.1")))
    assert resolved == ["more"]
    assert len(node.data_plane.sent) == 2
    await cost("one service less", lambda: node.tracker.remove_service(SOURCE, service("more").name))
    assert not resolved
    assert len(node.data_plane.sent) == 1
    await cost("a relist of the same", lambda: node.tracker.replace_services(SOURCE, list(services)))
    assert not resolved
    assert not node.data_plane.sent
    await node.close()
