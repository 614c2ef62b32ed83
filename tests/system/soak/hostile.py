"""A hostile tenant: Services with service addresses and node ports as endpoints, and a client of theirs."""

from __future__ import annotations

import random
import socket
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from tests.support.lab import Host
from tests.support.lab.node import NODE_V4
from tests.system.e2e.stage import Object

NAMESPACE = "hostile"
PORT = 80
"""By TCP; by UDP it is the next one."""
KEPT = 50
"""Connections that the client holds open, the oldest of which it resets."""
EVERY_S = 0.05


class Loop(NamedTuple):
    """A Service, and the address and port of its only endpoint."""

    name: str
    address: str
    leads_to: tuple[str, int]


LOOPS = (
    Loop("itself", "10.96.2.1", ("10.96.2.1", PORT)),
    Loop("there", "10.96.2.2", ("10.96.2.3", PORT)),
    Loop("back", "10.96.2.3", ("10.96.2.2", PORT)),
    Loop("node-port", "10.96.2.4", (NODE_V4, 30080)),
    Loop("another-tenant", "10.96.2.5", ("10.96.0.10", PORT)),
)
PLACES = frozenset((loop.address, port) for loop in LOOPS for port in (PORT, PORT + 1))
"""Where they are served, or rather refused."""


def objects_of(loop: Loop) -> tuple[Object, Object]:
    """A Service for TCP and UDP, and its endpoint, as the API has them."""
    address, number = loop.leads_to
    protocols = ("TCP", PORT, number), ("UDP", PORT + 1, number + 1)
    ports = [{"name": it.lower(), "protocol": it, "port": port} for it, port, _ in protocols]
    labels = {"kubernetes.io/service-name": loop.name}
    return (
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": loop.name, "namespace": NAMESPACE},
            "spec": {"clusterIP": loop.address, "clusterIPs": [loop.address], "ports": ports},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": f"{loop.name}-1", "namespace": NAMESPACE, "labels": labels},
            "addressType": "IPv4",
            "ports": [{"name": it.lower(), "protocol": it, "port": target} for it, _, target in protocols],
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        },
    )


@contextmanager
def knocking(host: Host, seed: str) -> Iterator[None]:
    """The client asks, by TCP and by UDP, until the end."""
    over = threading.Event()
    thread = threading.Thread(target=_knock, args=(host, random.Random(seed), over))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _knock(host: Host, rng: random.Random, over: threading.Event) -> None:
    kept: deque[socket.socket] = deque()
    while not over.wait(EVERY_S):
        address = rng.choice(LOOPS).address
        with host.make_socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, suppress(OSError):
            sock.sendto(b"round and round", (address, PORT + 1))
        stream = host.make_socket()
        stream.setblocking(False)
        stream.connect_ex((address, PORT))
        kept.append(stream)
        if len(kept) > KEPT:
            kept.popleft().close()
    for sock in kept:
        sock.close()
