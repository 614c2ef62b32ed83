"""A Service of four pods behind a node with the rescue rules, and clients of it."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from kubeproxy.model import Family
from tests.rescue.guardian_process import NODE_PORT, PORT, SERVICE
from tests.support.lab import Host, Network, make_network

PODS = 4
POD_PORT = 8080
HANG_S = 30.0
"""Longer than anything takes that does not hang."""
_RETRANSMISSIONS_AT = 100
"""Of tcpi_total_retrans in struct tcp_info (linux/tcp.h)."""


class Answer(NamedTuple):
    """What a client got."""

    text: str
    """``pod0`` to ``pod3``, or the name of an error."""
    repeats: int = 0
    """How often the client's kernel had to repeat a segment: a rescued client need not."""


class Stage:
    """The network, the guardian on the node, and the pods' servers."""

    def __init__(self, network: Network, family: Family, *, affinity: bool) -> None:
        self.network = network
        self.family = family
        self.inet = socket.AF_INET if family is Family.IPV4 else socket.AF_INET6
        address = Network.pod_v4 if family is Family.IPV4 else Network.pod_v6
        self.addresses = [str(ipaddress.ip_address(address(index))) for index in range(len(network.pods))]
        self.service = (SERVICE[family.value], PORT)
        self.node_port = ("10.2.0.1" if family is Family.IPV4 else "fd00:2::1", NODE_PORT)
        self.guardian: subprocess.Popen[str] = network.node.popen(
            [sys.executable, "-m", "tests.rescue.guardian_process", *(["affinity"] if affinity else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.guardian.stdin is not None
        self.guardian.stdin.write("".join(f"{address} {POD_PORT}\n" for address in self.addresses))
        self.guardian.stdin.close()
        self.ejected: list[list[Any]] = []
        """The ejected endpoints after the last change."""
        self.noticed: Counter[str] = Counter()
        """Reasons of all ejections."""
        self.dialed: Counter[str] = Counter()
        """The guardian's dials of each endpoint."""
        self.dialed_before: dict[str, int] = {}
        """How many there were before the last ejection of an endpoint."""
        self.counts: Counter[str] = Counter()
        """Of the rescue process (`kubeproxy.rescue.protocol.Counts`)."""
        self._output = threading.Thread(target=self._read_output)
        self._output.start()
        self._servers: dict[tuple[int, int], tuple[socket.socket, threading.Thread]] = {}

    def _read_output(self) -> None:
        assert self.guardian.stdout is not None
        for line in self.guardian.stdout:
            if line.startswith("[["):
                before = {tuple(each) for each in self.ejected}
                self.ejected = json.loads(line)
                for key in {tuple(each) for each in self.ejected} - before:
                    self.noticed[key[2]] += 1
                    self.dialed_before[key[1]] = self.dialed[key[1]]
            elif line.startswith("[]"):
                self.ejected = []
            elif line.startswith("{"):
                said = json.loads(line)
                self.counts = Counter(said.get("counts", self.counts))
                if "dialed" in said:
                    self.dialed[said["dialed"]] += 1

    def close(self) -> None:
        """End the servers and the guardian."""
        self.guardian.kill()
        self.guardian.wait()
        self._output.join()
        for key in list(self._servers):
            self.stop(*key)

    # Pods.

    def serve(self, pod: int, kind: int = socket.SOCK_STREAM) -> None:
        """Start a pod's server: it answers with the pod's name."""
        if kind == socket.SOCK_STREAM:
            sock = self.network.pods[pod].listen((self.addresses[pod], POD_PORT))
        else:
            sock = self.network.pods[pod].make_socket(self.inet, kind)
            sock.bind((self.addresses[pod], POD_PORT))
        sock.settimeout(0.2)
        thread = threading.Thread(target=_answer, args=(sock, f"pod{pod}".encode()))
        thread.start()
        self._servers[pod, kind] = sock, thread

    def stop(self, pod: int, kind: int = socket.SOCK_STREAM) -> None:
        """End a pod's server: its port refuses."""
        sock, thread = self._servers.pop((pod, kind))
        if kind == socket.SOCK_STREAM:
            sock.shutdown(socket.SHUT_RDWR)  # wakes up the thread
        sock.close()
        thread.join()  # which keeps the socket open as long as it waits

    def filter(self, pod: int, verdict: str) -> None:
        """Have a pod's packet filter drop or reject what comes."""
        self.network.pods[pod].run(
            [
                "nft",
                "add table inet t; add chain inet t c { type filter hook input priority 0; }; flush chain inet t c; "
                f"add rule inet t c meta l4proto != {{ icmp, ipv6-icmp }} {verdict}",
            ]
        )

    def unfilter(self, pod: int) -> None:
        """Have it accept everything again."""
        self.network.pods[pod].run(["nft", "delete table inet t"])

    # Clients.

    def hosts(self) -> dict[str, Host]:
        """Where clients are."""
        return {"client": self.network.client, "node": self.network.node, "pod": self.network.pods[0]}

    def ask(self, host: Host, to: tuple[str, int] | None = None, *, timeout: float = HANG_S) -> Answer:
        """One connection."""
        try:
            with host.connect(to or self.service, timeout=timeout) as sock:
                text = sock.recv(10).decode()
                info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
                return Answer(text, int(struct.unpack_from("=I", info, _RETRANSMISSIONS_AT)[0]))
        except OSError as error:
            return Answer(type(error).__name__)

    def ask_at_once(self, host: Host, count: int, *, timeout: float = HANG_S) -> Counter[str]:
        """Many connections at the same time: what they got."""
        with ThreadPoolExecutor(count) as pool:
            return Counter(pool.map(lambda _: self.ask(host, timeout=timeout).text, range(count)))

    def ask_often(self, host: Host, count: int, to: tuple[str, int] | None = None) -> tuple[Counter[str], int]:
        """Many connections one after the other: what they got, and how many had to repeat their SYN."""
        answers = [self.ask(host, to) for _ in range(count)]
        return Counter(answer.text for answer in answers), sum(answer.repeats > 0 for answer in answers)

    def target(self, pod: int) -> str:
        """A pod's endpoint, as ejections name it."""
        address = self.addresses[pod]
        return f"[{address}]:{POD_PORT}" if ":" in address else f"{address}:{POD_PORT}"

    # The rules.

    def alive(self) -> bool:
        """Whether the rescue rules work."""
        return "tcp" in self.network.node.run(["nft", "list", "set", "inet", "kubeproxy", "alive"], check=False).stdout

    def rescue_pid(self) -> int | None:
        """The rescue process."""
        with contextlib.suppress(OSError):
            process = Path(f"/proc/{self.guardian.pid}")
            for child in (process / f"task/{self.guardian.pid}/children").read_text().split():
                with contextlib.suppress(OSError):
                    if b"kubeproxy.rescue.main" in Path(f"/proc/{child}/cmdline").read_bytes():
                        return int(child)
        return None

    def signal_rescue(self, number: signal.Signals) -> int:
        """Send the rescue process a signal; its pid."""
        pid = self.rescue_pid()
        assert pid is not None
        os.kill(pid, number)
        return pid


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Return when the condition holds; AssertionError if it never does."""
    until = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < until, f"never: {what}"
        time.sleep(0.05)


@contextlib.contextmanager
def stage(
    family: Family, *, kinds: tuple[int, ...] = (socket.SOCK_STREAM,), pods: int = PODS, affinity: bool = False
) -> Iterator[Stage]:
    """Everything running, and the rules alive. `affinity`: clients stay with their endpoint."""
    with make_network(pods=pods) as network:
        made = Stage(network, family, affinity=affinity)
        try:
            for pod in range(pods):
                for kind in kinds:
                    made.serve(pod, kind)
            wait_for(made.alive, "the rules work")
            yield made
        finally:
            made.close()


def _answer(sock: socket.socket, text: bytes) -> None:
    while True:
        try:
            if sock.type == socket.SOCK_STREAM:
                connection, _ = sock.accept()
                connection.sendall(text)
                connection.close()
            else:
                data, sender = sock.recvfrom(2000)
                sock.sendto(text + b" " + data, sender)
        except TimeoutError:
            continue
        except OSError:
            return
