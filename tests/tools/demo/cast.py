"""The parts of the demo: the hosts, the backends in their pods, and the clients."""

from __future__ import annotations

import http.client
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.lab import Host, Network, get, make_network, service_manifest, write_manifest
from tests.tools.demo import backend

SERVICE = ("10.96.0.10", 80)
BACKEND_PORT = 8080
PODS = 4


@dataclass(frozen=True, slots=True)
class Tally:
    """The answers of each backend, and the failures."""

    answers: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        counts = [f"{name} {count}" for name, count in sorted(self.answers.items())]
        if self.failures:
            counts.append(f"{len(self.failures)} failed ({self.failures[0]})")
        return ", ".join(counts)


@dataclass(slots=True)
class Cast:
    """The hosts and backends, with the manifest directory that the daemon reads."""

    network: Network
    manifests: Path
    backends: dict[str, subprocess.Popen[Any]] = field(default_factory=dict)

    @property
    def client(self) -> Host:
        """The host in front of the node."""
        return self.network.client

    @property
    def node(self) -> Host:
        """The host of the daemon."""
        return self.network.node

    def start_backend(self, index: int) -> str:
        """Start a backend in that pod; back when it listens; its name."""
        name, pod = f"pod-{index + 1}", self.network.pods[index]
        address = (Network.pod_v4(index), BACKEND_PORT)
        command = [sys.executable, "-S", "-E", backend.__file__, name, address[0], str(address[1])]
        # A process group of its own: Ctrl-C reaches the story only, which then ends all programs in good order.
        self.backends[name] = pod.popen(command, process_group=0)
        deadline = time.monotonic() + 10
        while True:
            try:
                get(pod, address)
            except OSError as error:
                if time.monotonic() > deadline:
                    raise AssertionError(f"the backend {name} does not answer: {error}") from None
                time.sleep(0.01)
            else:
                return name

    def kill_backend(self, name: str) -> None:
        """SIGKILL: after it, the port answers with a reset."""
        self.backends[name].kill()
        self.backends[name].wait()

    def write_manifest(self, pods: Sequence[int]) -> None:
        """The Service and its EndpointSlice, with these pods as endpoints."""
        text = service_manifest(
            "hello",
            cluster_ip=SERVICE[0],
            ports={"http": (SERVICE[1], BACKEND_PORT)},
            endpoints=[Network.pod_v4(index) for index in pods],
        )
        write_manifest(self.manifests / "hello.yaml", text)


def ask(host: Host, times: int, tally: Tally | None = None, *, path: str = "/") -> Tally:
    """Send so many requests to the Service, one after the other. Each has a connection of its own."""
    tally = tally if tally is not None else Tally()
    for _ in range(times):
        try:
            answer = get(host, SERVICE, path)
        except (OSError, http.client.HTTPException) as error:
            tally.failures.append(repr(error))
        else:
            if answer.status == 200:
                tally.answers[answer.body.strip()] += 1
            else:
                tally.failures.append(f"status {answer.status}")
    return tally


@contextmanager
def assemble(directory: Path) -> Iterator[Cast]:
    """The hosts, without programs at first; manifests go into `directory`."""
    with ExitStack() as stack:
        network = stack.enter_context(make_network(pods=PODS))
        yield Cast(network, directory)
