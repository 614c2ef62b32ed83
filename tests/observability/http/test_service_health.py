"""Health check node ports: answers, sockets, and ports that are not free."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from kubeproxy.model import Address, ServiceName
from kubeproxy.observability.health import ProxyHealth
from kubeproxy.observability.http.service_health import ServiceHealthServers, assign, bindable

pytestmark = pytest.mark.usefixtures("fresh_structlog")

WEB, API = ServiceName("demo", "web"), ServiceName("demo", "api")
LOOPBACK = Address("127.0.0.1")
ANOTHER = Address("127.0.0.2")


class Node:
    """Servers on loopback with their own clock and proxy health."""

    def __init__(self) -> None:
        self.now = 0.0
        self.health = ProxyHealth(timeout_s=60)
        self.failures: list[tuple[ServiceName, str]] = []
        self.servers = ServiceHealthServers(
            health=self.health,
            addresses=[LOOPBACK],
            on_failure=lambda service, text: self.failures.append((service, text)),
            clock=lambda: self.now,
            retry_s=0.05,
        )

    async def ask(self, port: int, path: str = "/", *, host: str = "127.0.0.1", method: str = "GET") -> Answer:
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, f"http://{host}:{port}{path}") as response,
        ):
            return Answer(response.status, dict(response.headers), await response.text())

    async def served(self, port: int, *, host: str = "127.0.0.1") -> str | None:
        """The Service that a port serves; None: no listener."""
        try:
            answer = await self.ask(port, host=host)
        except aiohttp.ClientConnectorError:
            return None
        name: str = json.loads(answer.body)["service"]["name"]
        return name


class Answer:
    def __init__(self, status: int, headers: dict[str, str], body: str) -> None:
        self.status, self.headers, self.body = status, headers, body


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    found = Node()
    yield found
    await found.servers.close()


def free_ports(count: int) -> list[int]:
    """Ports that are free right now."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [sock.getsockname()[1] for sock in held]
    for sock in held:
        sock.close()
    return ports


# Answers


async def test_the_answer_is_kube_proxys_byte_for_byte(node: Node) -> None:
    (port,) = free_ports(1)
    await node.servers.sync({WEB: (port, 3)})
    answer = await node.ask(port)
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["X-Load-Balancing-Endpoint-Weight"] == "3"
    assert answer.body == (
        '{\n\t"service": {\n\t\t"namespace": "demo",\n\t\t"name": "web"\n\t},\n'
        '\t"localEndpoints": 3,\n\t"serviceProxyHealthy": true\n}'
    )


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/healthz"), ("GET", "/a/b?c=d"), ("POST", "/"), ("HEAD", "/x"), ("OPTIONS", "/")]
)
async def test_every_path_and_method_gets_the_answer(node: Node, method: str, path: str) -> None:
    (port,) = free_ports(1)
    await node.servers.sync({WEB: (port, 1)})
    assert (await node.ask(port, path, method=method)).status == 200


async def test_no_local_endpoints_means_503(node: Node) -> None:
    (port,) = free_ports(1)
    await node.servers.sync({WEB: (port, 1)})
    await node.servers.sync({WEB: (port, 0)})
    answer = await node.ask(port)
    assert (answer.status, answer.headers["X-Load-Balancing-Endpoint-Weight"]) == (503, "0")
    assert json.loads(answer.body)["localEndpoints"] == 0
    await node.servers.sync({WEB: (port, 2)})
    assert (await node.ask(port)).status == 200


async def test_an_unhealthy_proxy_means_503_despite_endpoints(node: Node) -> None:
    (port,) = free_ports(1)
    await node.servers.sync({WEB: (port, 2)})
    node.health.updated(0)
    node.health.queued(1)
    node.now = 100
    answer = await node.ask(port)
    assert (answer.status, answer.headers["X-Load-Balancing-Endpoint-Weight"]) == (503, "2")
    assert json.loads(answer.body)["serviceProxyHealthy"] is False
    node.health.updated(100)
    assert (await node.ask(port)).status == 200


async def test_a_node_under_deletion_still_reports_its_endpoints(node: Node) -> None:
    (port,) = free_ports(1)
    await node.servers.sync({WEB: (port, 1)})
    node.health.node_eligible(False)
    assert (await node.ask(port)).status == 200


# Sockets


async def test_services_come_change_and_go(node: Node) -> None:
    first, second = free_ports(2)
    await node.servers.sync({WEB: (first, 1)})
    assert (await node.served(first), await node.served(second)) == ("web", None)
    await node.servers.sync({WEB: (first, 1), API: (second, 1)})
    assert (await node.served(first), await node.served(second)) == ("web", "api")
    await node.servers.sync({WEB: (second, 1), API: (first, 1)})
    assert (await node.served(first), await node.served(second)) == ("api", "web")
    await node.servers.sync({API: (first, 1), WEB: (0, 1)})
    assert (await node.served(first), await node.served(second)) == ("api", None)
    await node.servers.close()
    assert (await node.served(first), await node.served(second)) == (None, None)
    assert node.failures == []


async def test_an_equal_sync_keeps_the_sockets(node: Node) -> None:
    (port,) = free_ports(1)
    await node.servers.sync({WEB: (port, 1)})
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await node.servers.sync({WEB: (port, 2)})
    writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert b"200 OK" in await asyncio.wait_for(reader.readline(), 20)
    writer.close()


async def test_addresses_come_and_go(node: Node) -> None:
    (port,) = free_ports(1)
    await node.servers.sync({WEB: (port, 1)})
    assert await node.served(port, host=ANOTHER) is None
    await node.servers.set_addresses([LOOPBACK, ANOTHER])
    assert (await node.served(port), await node.served(port, host=ANOTHER)) == ("web", "web")
    await node.servers.set_addresses([ANOTHER])
    assert (await node.served(port), await node.served(port, host=ANOTHER)) == (None, "web")


async def test_both_wildcard_addresses_together(node: Node) -> None:
    (port,) = free_ports(1)
    await node.servers.set_addresses([Address("0.0.0.0"), Address("::"), LOOPBACK])
    await node.servers.sync({WEB: (port, 1)})
    assert node.failures == []
    assert (await node.served(port), await node.served(port, host="[::1]")) == ("web", "web")


async def test_concurrent_changes_end_with_the_last_one(node: Node) -> None:
    first, second = free_ports(2)
    await asyncio.gather(
        node.servers.sync({WEB: (first, 1)}),
        node.servers.sync({WEB: (second, 1)}),
        node.servers.set_addresses([ANOTHER]),
        node.servers.sync({API: (first, 1)}),
    )
    seen = [await node.served(port, host=host) for port in (first, second) for host in (LOOPBACK, ANOTHER)]
    assert seen == [None, "api", None, None]


# Ports that are not free


async def test_a_port_of_another_process_is_reported_once_and_bound_when_free(node: Node) -> None:
    free, taken = free_ports(2)
    with closing(socket.create_server(("127.0.0.1", taken))), closing(socket.create_server(("127.0.0.2", taken))):
        await node.servers.set_addresses([LOOPBACK, ANOTHER])
        await node.servers.sync({WEB: (taken, 1), API: (free, 1)})
        await node.servers.sync({WEB: (taken, 2), API: (free, 1)})
        assert await node.served(free) == "api"
        await asyncio.sleep(0.2)  # some attempts
    assert node.failures == [
        (WEB, f"health check node port: cannot listen on 127.0.0.1:{taken}: Address already in use")
    ]
    async with asyncio.timeout(20):
        while await node.served(taken) is None or await node.served(taken, host=ANOTHER) is None:
            await asyncio.sleep(0.02)
    assert len(node.failures) == 1


async def test_a_service_keeps_its_port_and_another_one_waits(node: Node) -> None:
    first, second = free_ports(2)
    with capture_logs() as logs:
        await node.servers.sync({WEB: (first, 1)})
        for _ in range(2):
            await node.servers.sync({API: (first, 5), WEB: (first, 1)})
        assert await node.served(first) == "web"
        assert node.failures == [(API, f"health check node port {first} is taken by demo/web")]
        await node.servers.sync({API: (first, 5), WEB: (second, 1)})
    assert (await node.served(first), await node.served(second)) == ("api", "web")
    assert len(node.failures) == 1
    assert [line["service"] for line in logs if line["log_level"] == "warning"] == ["demo/api"]
    await node.servers.sync({API: (first, 5), WEB: (first, 1)})
    assert node.failures[1:] == [(WEB, f"health check node port {first} is taken by demo/api")]


async def test_a_failure_of_a_new_service_is_reported_again(node: Node) -> None:
    (port,) = free_ports(1)
    with closing(socket.create_server(("127.0.0.1", port))):
        for _ in range(2):
            await node.servers.sync({WEB: (port, 1)})
            await node.servers.sync({})
    assert [service for service, _ in node.failures] == [WEB, WEB]


async def test_silent_clients_block_no_probe(node: Node) -> None:
    (port,) = free_ports(1)
    await node.servers.sync({WEB: (port, 1)})
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
    assert await node.served(port) == "web"
    for _, writer in silent:
        writer.close()


# Pure


@pytest.mark.parametrize(
    ("wanted", "holders", "assigned", "refused"),
    [
        ({}, {1: WEB}, {}, {}),
        ({WEB: (1, 0), API: (2, 0)}, {}, {1: WEB, 2: API}, {}),
        ({WEB: (1, 0), API: (1, 0)}, {}, {1: WEB}, {API: WEB}),
        ({API: (1, 0), WEB: (1, 0)}, {1: WEB}, {1: WEB}, {API: WEB}),
        ({API: (1, 0), WEB: (2, 0)}, {1: WEB}, {1: API, 2: WEB}, {}),
        ({API: (1, 0), WEB: (2, 0)}, {1: WEB, 2: API}, {1: API, 2: WEB}, {}),
    ],
)
def test_assignment_of_ports(wanted: Any, holders: Any, assigned: Any, refused: Any) -> None:
    assert assign(wanted, holders) == (assigned, refused)


@pytest.mark.parametrize(
    ("given", "bound"),
    [
        ([], ()),
        (["192.0.2.1", "::1", "192.0.2.1"], ("192.0.2.1", "::1")),
        (["192.0.2.1", "0.0.0.0", "::1"], ("0.0.0.0", "::1")),
        (["0.0.0.0", "::", "::1"], ("0.0.0.0", "::")),
    ],
)
def test_addresses_to_bind(given: list[Address], bound: tuple[Address, ...]) -> None:
    assert bindable(given) == bound
