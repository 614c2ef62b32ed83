"""An API server that drops all packets, without reset or refusal."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kubeproxy.kubernetes.client import transport
from kubeproxy.kubernetes.informer.list_watch_policy import Pace
from kubeproxy.kubernetes.informer.reflector_state import Phase
from kubeproxy.model import ServiceName
from tests.kubernetes.harness import connected, watching
from tests.support.apiserver import ApiServer, Cluster
from tests.support.apiserver.generate import fill, service
from tests.support.lab import Host, make_network
from tests.support.waiting import until

_DROP_ALL = """
table inet hole {
    chain in { type filter hook input priority 0; policy drop; }
    chain out { type filter hook output priority 0; policy drop; }
}
"""


@contextmanager
def black_hole(host: Host) -> Iterator[None]:
    """Drop all packets inside the block."""
    host.run(["nft", "-f", "-"], input=_DROP_ALL)
    try:
        yield
    finally:
        host.run(["nft", "delete table inet hole"])


@pytest.mark.netns
async def test_the_source_is_in_step_five_seconds_after_the_server_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even without events: keepalive detects the lost peer long before timeoutSeconds."""
    with make_network(pods=1) as network:
        server_host, address = network.pods[0], network.pod_v4(0)
        open_socket = transport._open_socket

        def open_on_the_node(info: tuple[Any, ...]) -> socket.socket:
            with network.node.entered():
                return open_socket(info)

        monkeypatch.setattr(transport, "_open_socket", open_on_the_node)
        cluster = Cluster(version=100)
        fill(cluster, services=3, endpoints_each=1)
        server = ApiServer(cluster)
        await server.start(sock=server_host.listen((address, 6443)))
        async with connected(f"http://{address}:6443") as client, watching(client, pace=Pace()) as (source, sink):
            await until(lambda: sink.complete and all(state.behind_s == 0 for state in source.state()))
            calls = list(sink.calls)
            with black_hole(server_host):
                await until(lambda: all(state.phase is Phase.WAITING for state in source.state()), within_s=15)
                # A watch that hangs does not see this change; a new one does.
                cluster.delete("services", "demo", "service-1")
                cluster.put("services", service(7))
                await until(lambda: all(sum(state.failures.values()) >= 2 for state in source.state()), within_s=15)
                assert sink.calls == calls
            await until(lambda: ServiceName("demo", "service-7") in sink.services, within_s=5)
            assert ServiceName("demo", "service-1") not in sink.services
            await until(lambda: all(state.behind_s == 0 for state in source.state()), within_s=5)
            assert all(state.lists == 1 for state in source.state())
        await server.stop()
