"""Support for the tests of both adapters: an adapter on a node, servers there, and clients."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kubeproxy.model import NODE_PORTS, Address, Destination, Family, Protocol, family_of
from kubeproxy.netfilter.ruleset import ProxyPort, Reach, RuleSet
from tests.netfilter.adapter_process import to_json
from tests.support.lab import Host
from tests.support.traffic import from_anywhere, from_node

IP_PKTINFO = 8  # linux/in.h; Python 3.11 does not name it
ANSWERED, REFUSED, SILENT = "answered", "refused", "silent"


class KernelRefusal(Exception):
    """The adapter raised a KernelError; its text."""


class Adapter:
    """An adapter on a host."""

    def __init__(
        self, host: Host, name: str, *, env: Mapping[str, str] | None = None, prefix: Sequence[str] = ()
    ) -> None:
        self.host = host
        self.name = name
        self.ms = 0.0
        """The duration of the last call."""
        self._process = host.popen(
            [*prefix, sys.executable, "-m", "tests.netfilter.adapter_process", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **({"env": dict(env)} if env is not None else {}),
        )

    def apply(self, rules: RuleSet, *, verify: bool = False) -> bool:
        """`Netfilter.apply`."""
        changed = self.call({"do": "apply", "rules": to_json(rules), "verify": verify})
        assert isinstance(changed, bool)
        return changed

    def apply_later(self, rules: RuleSet) -> None:
        """The first half of `apply`; `receive` is the other."""
        self.send({"do": "apply", "rules": to_json(rules), "verify": False})

    def pause(self, for_s: float = 30.0) -> bool:
        """`Netfilter.pause`."""
        paused = self.call({"do": "pause", "for_s": for_s})
        assert isinstance(paused, bool)
        return paused

    def reach(self, ours: RuleSet) -> Reach:
        """`Netfilter.reach`."""
        return Reach(*self.call({"do": "reach", "rules": to_json(ours)}))

    def cleanup(self) -> bool:
        """`Netfilter.cleanup`."""
        had = self.call({"do": "cleanup"})
        assert isinstance(had, bool)
        return had

    def call(self, request: dict[str, Any]) -> Any:
        """One request of the driver; KernelRefusal when it failed."""
        self.send(request)
        return self.receive()

    def send(self, request: dict[str, Any]) -> None:
        """The first half of `call`."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def receive(self) -> Any:
        """The second half of `call`."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the driver died"
        reply = json.loads(line)
        self.ms = reply["ms"]
        if "error" in reply:
            raise KernelRefusal(reply["error"])
        return reply["result"]


@contextlib.contextmanager
def serving(host: Host, protocol: Protocol, port: int, family: Family, *, address: str | None = None) -> Iterator[None]:
    """A server that answers ``pong PORT``, from the address asked, as the data plane would."""
    inet = socket.AF_INET if family is Family.IPV4 else socket.AF_INET6
    kind = socket.SOCK_STREAM if protocol is Protocol.TCP else socket.SOCK_DGRAM
    sock = host.make_socket(inet, kind)
    if inet == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
    else:
        sock.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((address or ("0.0.0.0" if family is Family.IPV4 else "::"), port))
    sock.settimeout(0.1)
    if protocol is Protocol.TCP:
        sock.listen(64)
    stop = threading.Event()
    thread = threading.Thread(target=_answer, args=(sock, protocol, f"pong {port}".encode(), stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        sock.close()


def _answer(sock: socket.socket, protocol: Protocol, text: bytes, stop: threading.Event) -> None:
    kept = contextlib.ExitStack()
    with kept:
        while not stop.is_set():
            try:
                if protocol is Protocol.TCP:
                    connection, _ = sock.accept()
                    kept.enter_context(connection)
                    connection.sendall(text)
                else:
                    _, ancillary, _, sender = sock.recvmsg(100, 100)
                    sock.sendmsg([text], [from_where_asked(ancillary)], 0, sender)
            except TimeoutError:
                continue


def from_where_asked(ancillary: list[tuple[int, int, bytes]]) -> tuple[int, int, bytes]:
    """The control message by which an answer leaves from the address that was asked."""
    level, kind, data = ancillary[0]
    if level == socket.IPPROTO_IP:
        return level, kind, struct.pack("=I4s4s", 0, data[8:12], bytes(4))
    return level, kind, data[:16] + struct.pack("=I", 0)


def attempt(
    host: Host, address: str, protocol: Protocol, port: int, *, answer: str = "pong", patience_s: float = 5.0
) -> str:
    """The outcome for a client on a host: ANSWERED, REFUSED or SILENT. (A test that expects silence may wait less.)"""
    inet = socket.AF_INET6 if ":" in address else socket.AF_INET
    kind = socket.SOCK_STREAM if protocol is Protocol.TCP else socket.SOCK_DGRAM
    with host.make_socket(inet, kind) as sock:
        sock.settimeout(patience_s)
        try:
            sock.connect((address, port))
            if protocol is Protocol.UDP:
                sock.send(b"ping")
            got = sock.recv(100).decode()
        except ConnectionRefusedError:
            return REFUSED
        except TimeoutError:
            return SILENT
    assert got.startswith(answer), got
    return ANSWERED


def attempts(ways: Iterable[tuple[Host, str, Protocol, int]], *, patience_s: float = 5.0) -> set[str]:
    """The outcomes of clients that try at the same time: each a host, an address, a protocol and a port."""
    with ThreadPoolExecutor(max_workers=16) as threads:
        return set(threads.map(lambda way: attempt(*way, patience_s=patience_s), ways))


def dump(host: Host) -> str:
    """Every rule of a host, by nftables and in the legacy tables, without handles and counters."""
    shown = [
        host.run(command, env=None).stdout
        for command in (["nft", "list", "ruleset"], ["iptables-legacy-save"], ["ip6tables-legacy-save"])
    ]
    lines = [
        re.sub(r"\[\d+:\d+\]", "", line) for line in "".join(shown).splitlines() if line.strip() and line[0] != "#"
    ]
    return "\n".join(lines)


def settled(text: str) -> str:
    """A dump without the order in which sets and chains happen to be listed."""
    return "\n".join(sorted(re.sub(r"elements = {|,| }$", "", line).strip() for line in text.splitlines()))


def destination(address: str, protocol: Protocol, port: int = 80) -> Destination:
    """A service address."""
    return Destination(Address(address), protocol, port)


def node_port(family: Family, protocol: Protocol, port: int) -> Destination:
    """A port on every address of the node that takes node ports."""
    return Destination(NODE_PORTS[family], protocol, port)


def rule_set(
    redirects: Mapping[Destination, int],
    *,
    own: Mapping[Destination, int] | None = None,
    internal: tuple[str, ...] = (),
    node_addresses: tuple[str, ...] = (),
    allowed: Mapping[Destination, tuple[str, ...]] | None = None,
    refused: Set[ProxyPort] = frozenset(),
    dropped: Set[ProxyPort] = frozenset(),
    landing: tuple[str, ...] = (),
    bind: tuple[str, ...] = (),
) -> RuleSet:
    """A rule set that guards every port that it redirects to."""
    own = own or {}
    return RuleSet(
        redirects={**from_anywhere(redirects), **from_node(own)},
        internal_sources=frozenset(internal),
        node_addresses=frozenset(map(Address, node_addresses)),
        allowed_sources={key: frozenset(cidrs) for key, cidrs in (allowed or {}).items()},
        proxy_ports={ProxyPort(key.protocol, port) for key, port in (*redirects.items(), *own.items())},
        refused=set(refused),
        dropped=set(dropped),
        landing={family_of(Address(text)): Address(text) for text in landing},
        bind={family_of(Address(text)): Address(text) for text in bind},
    )
