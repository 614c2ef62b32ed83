"""A node with a few dozen Services, two pods that answer, one that does not, and clients."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import socket

from tests.support.lab import Daemon, Network, get, make_network, service_manifest, write_manifest

NAMES = ("cart", "checkout", "catalogue", "payments", "search", "users", "mail", "ledger")
NAMESPACES = ("billing", "platform", "shop")
WEB = "10.96.0.1"
EJECTED = "10.3.2.2:8080"
"""The endpoint of shop/web that refuses."""
BODY = b"x" * 5000


@dataclass
class Shop:
    """It, and its daemon."""

    network: Network
    daemon: Daemon
    manifests: Path


def answer(listener: socket) -> None:
    """Answer every client with some bytes, until the listener is shut down."""
    with contextlib.suppress(OSError):
        while True:
            client, _ = listener.accept()
            with client, contextlib.suppress(OSError):
                client.recv(4096)
                client.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY))


def ask(network: Network, address: str) -> None:
    """One request, whatever becomes of it."""
    with contextlib.suppress(OSError):
        get(network.client, (address, 80))


@contextmanager
def open_shop(directory: Path, *, services: int = 24) -> Iterator[Shop]:
    """Open it; shop/web has met its refusing endpoint."""
    with ExitStack() as stack:
        network = stack.enter_context(make_network(pods=3))
        for pod in (0, 1):
            listener = network.pods[pod].listen((network.pod_v4(pod), 8080))
            stack.callback(listener.close)
            stack.callback(listener.shutdown, 2)
            threading.Thread(target=answer, args=(listener,), daemon=True).start()
        pods = [network.pod_v4(pod) for pod in range(3)]
        _write(directory, "web", "shop", WEB, pods)
        _write(directory, "reports", "billing", "10.96.0.2", [])
        for number in range(services):
            turn = number // len(NAMES)
            name = NAMES[number % len(NAMES)] + (f"-{turn}" if turn else "")
            _write(directory, name, NAMESPACES[number % 3], f"10.96.1.{number + 1}", pods[:2])
        daemon = stack.enter_context(Daemon(network.node, manifests=directory))
        for _ in range(6):
            ask(network, WEB)
        yield Shop(network, daemon, directory)


def _write(directory: Path, name: str, namespace: str, address: str, endpoints: list[str]) -> None:
    text = service_manifest(
        name, cluster_ip=address, ports={"http": (80, 8080)}, endpoints=endpoints, namespace=namespace
    )
    write_manifest(directory / f"{namespace}-{name}.yaml", text)
