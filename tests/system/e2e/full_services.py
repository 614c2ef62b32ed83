"""Services with everything that a Service can have, and their clients: two families, two protocols, all addresses.

The pods run `mirror`, which answers with its name and the client's address.
"""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.lab import Host, Network
from tests.support.lab.node import CLIENT_V4, CLIENT_V6, NODE_V4, NODE_V6
from tests.system.e2e import address_echo
from tests.system.e2e.stage import Object, Stage, until

MIRROR = 9090
"""The port of the mirrors in pods."""
PORT = 80
"""The ports of the Services, for TCP and for UDP."""
NODE_NAME = "node-1"
ELSEWHERE = "node-2"
QUIET_S = 0.4
"""After this time without an answer there is no answer."""

V4, V6 = 4, 6
FAMILIES = (V4, V6)
PROTOCOLS = ("TCP", "UDP")
KINDS = ("cluster IP", "node port", "localhost", "external IP", "load balancer IP")
EXTERNAL = ("node port", "external IP", "load balancer IP")
CLIENT = {V4: CLIENT_V4, V6: CLIENT_V6}
NODE = {V4: NODE_V4, V6: NODE_V6}


class Said(NamedTuple):
    """The answer of a mirror."""

    pod: str
    client: str
    """The client's address, as the pod sees it."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A Service with all its addresses. The number distinguishes it from others."""

    number: int = 1

    @property
    def name(self) -> str:
        """Of the Service, and of its manifest."""
        return f"whole-{self.number}"

    @property
    def node_port(self) -> int:
        """The same for TCP and UDP."""
        return 30080 + self.number

    def address(self, kind: str, family: int, port: int = PORT) -> tuple[str, int]:
        """The place to connect to, for a kind of address."""
        four = family == V4
        match kind:
            case "cluster IP":
                return (f"10.96.1.{self.number}" if four else f"fd00:96::1:{self.number}"), port
            case "external IP":
                return (f"192.0.2.{self.number}" if four else f"2001:db8:2::{self.number}"), port
            case "load balancer IP":
                return (f"203.0.113.{self.number}" if four else f"2001:db8:3::{self.number}"), port
            case "node port":
                return NODE[family], self.node_port
            case "localhost":
                return ("127.0.0.1" if four else "::1"), self.node_port
        raise AssertionError(kind)

    def _addresses(self, kind: str) -> list[str]:
        return [self.address(kind, family)[0] for family in FAMILIES]

    def service(self, *, port: int = PORT, **spec: Any) -> Object:
        """The Service object; `spec` adds fields or replaces them."""
        cluster_ips = self._addresses("cluster IP")
        ports = [
            {"name": protocol.lower(), "protocol": protocol, "port": port, "nodePort": self.node_port}
            for protocol in PROTOCOLS
        ]
        ours = {
            "type": "LoadBalancer",
            "clusterIP": cluster_ips[0],
            "clusterIPs": cluster_ips,
            "ipFamilies": ["IPv4", "IPv6"],
            "externalIPs": self._addresses("external IP"),
            "ports": ports,
        }
        return {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": self.name, "namespace": "default"},
            "spec": {**ours, **spec},
            "status": {"loadBalancer": {"ingress": [{"ip": ip} for ip in self._addresses("load balancer IP")]}},
        }

    def slices(self, pods: Iterable[Object]) -> list[Object]:
        """EndpointSlices of both families; see `pod`."""
        pods = list(pods)
        return [
            {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {
                    "name": f"{self.name}-{family}",
                    "namespace": "default",
                    "labels": {"kubernetes.io/service-name": self.name},
                },
                "addressType": f"IPv{family}",
                "ports": [{"name": each.lower(), "port": MIRROR, "protocol": each} for each in PROTOCOLS],
                "endpoints": [
                    {**{key: value for key, value in it.items() if key != "pod"}, "addresses": [_of(it["pod"], family)]}
                    for it in pods
                ],
            }
            for family in FAMILIES
        ]

    def objects(self, *pods: Object | int, port: int = PORT, **spec: Any) -> list[Object]:
        """The Service with these endpoints."""
        return [
            self.service(port=port, **spec),
            *self.slices(pod(it) if isinstance(it, int) else it for it in pods),
        ]


def _of(index: int, family: int) -> str:
    return Network.pod_v4(index) if family == V4 else Network.pod_v6(index)


def pod(
    index: int, *, node: str = NODE_NAME, zone: str = "", hints: Object | None = None, **conditions: bool
) -> Object:
    """An endpoint of a slice with the number of a pod instead of its address."""
    return {
        "pod": index,
        "nodeName": node,
        **({"zone": zone} if zone else {}),
        **({"hints": hints} if hints else {}),
        "conditions": {"ready": True, **conditions},
    }


def start_mirrors(stage: Stage) -> None:
    """Start a mirror in every pod."""
    for index, host in enumerate(stage.network.pods):
        host.popen([sys.executable, "-S", "-E", address_echo.__file__, f"pod-{index}", str(MIRROR)])
    for index in range(len(stage.network.pods)):
        for family in FAMILIES:
            for protocol in PROTOCOLS:
                place = (_of(index, family), MIRROR)
                until(lambda: heard(stage.node, place, protocol), f"{place} answers by {protocol}")  # noqa: B023


def udp(host: Host, address: tuple[str, int], *, source: str = "", timeout_s: float = 5.0) -> socket.socket:
    """A connected UDP socket of a host."""
    sock = host.make_socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_DGRAM)
    sock.settimeout(timeout_s)
    if source:
        sock.bind((source, 0))
    sock.connect(address)
    return sock


def tcp(host: Host, address: tuple[str, int], *, source: str = "", timeout_s: float = 5.0) -> socket.socket:
    """A connected TCP socket of a host."""
    sock = host.make_socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
    sock.settimeout(timeout_s)
    try:
        if source:
            sock.bind((source, 0))
        sock.connect(address)
    except BaseException:
        sock.close()
        raise
    return sock


def hear(host: Host, address: tuple[str, int], protocol: str, *, source: str = "", timeout_s: float = 5.0) -> Said:
    """Return the answer of a mirror. OSError if there is none."""
    with (tcp if protocol == "TCP" else udp)(host, address, source=source, timeout_s=timeout_s) as sock:
        if protocol == "UDP":
            sock.send(b"name")
        said = sock.recv(1000).decode()
    if not said:
        raise ConnectionError("no answer")
    name, client, _ = said.split()
    return Said(name, client)


def heard(
    host: Host, address: tuple[str, int], protocol: str, *, source: str = "", timeout_s: float = QUIET_S
) -> Said | None:
    """The answer of a mirror; None if there is none."""
    try:
        return hear(host, address, protocol, source=source, timeout_s=timeout_s)
    except OSError:
        return None


def quiet(host: Host, address: tuple[str, int], protocol: str, *, source: str = "") -> bool:
    """Whether a client gets no answer at all, not even a refusal."""
    try:
        hear(host, address, protocol, source=source, timeout_s=QUIET_S)
    except TimeoutError:
        return True
    except OSError:
        return False
    return False


class Cell(NamedTuple):
    """One way to a Service: client, family, protocol and kind of address."""

    origin: str
    """The client's host, or the node itself."""
    family: int
    protocol: str
    kind: str

    def __str__(self) -> str:
        return f"{self.origin} IPv{self.family} {self.protocol} {self.kind}".replace(" ", "-")

    def host(self, stage: Stage) -> Host:
        """The host of the client."""
        return stage.client if self.origin == "client" else stage.node


CELLS = tuple(
    Cell(origin, family, protocol, kind)
    for origin in ("client", "node")
    for family in FAMILIES
    for protocol in PROTOCOLS
    for kind in KINDS
    if origin == "node" or kind != "localhost"
)
"""All ways to a Service."""


def of_cells(what: Callable[[Cell], Any], cells: Sequence[Cell] = CELLS) -> dict[str, Any]:
    """The result of a function for each way; all ways run at the same time."""
    with ThreadPoolExecutor(len(cells)) as pool:
        return dict(zip(map(str, cells), pool.map(what, cells), strict=True))


def answers(stage: Stage, whole: Whole, cells: Sequence[Cell] = CELLS, **how: Any) -> dict[str, Said | None]:
    """The answer by each way."""
    return of_cells(lambda it: heard(it.host(stage), whole.address(it.kind, it.family), it.protocol, **how), cells)


def await_all(stage: Stage, whole: Whole, *pods: int, cells: Sequence[Cell] = CELLS) -> None:
    """Wait until every way leads to one of these pods."""
    names = {f"pod-{index}" for index in pods}
    until(
        lambda: all(said is not None and said.pod in names for said in answers(stage, whole, cells).values()),
        f"{whole.name} is served by {names}: {answers(stage, whole, cells)}",
    )


def rules(host: Host) -> list[str]:
    """All rules of kubeproxy in both families and adapters, sorted, without counters and handles."""
    table = host.run(["nft", "list", "table", "inet", "kubeproxy"], check=False).stdout
    # Sets that rules fill, or that the rescue renews, are no rules.
    table = re.sub(r"elements = \{[^}]*\bexpires\b[^}]*\}", "", table)
    table = re.sub(r" counter packets \d+ bytes \d+|\s# count \d+", "", table)
    lines = [line for line in table.splitlines() if line.strip()]
    for family, tool in (("ip", "iptables"), ("ip6", "ip6tables")):
        with host.entered():
            names = Path(f"/proc/thread-self/net/{family}_tables_names").read_text().split()
        for name in names:
            saved = re.sub(r" ?\[\d+:\d+\]", "", host.run([f"{tool}-legacy-save", "-t", name]).stdout)
            lines += [f"{tool} {name} {line}" for line in saved.splitlines() if "KUBE-" in line]
    return sorted(lines)
