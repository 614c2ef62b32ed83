"""A start with tens of thousands of Services, and what it costs at rest.

``python -m tests.tools.bench.many_services [--services 50000] [--endpoints 2] [--files 20000] [--data-path kernel]``,
as root. It prints the time and CPU time until all is in force, how many of a sample of 401 Services answer,
descriptors, memory, and what 30 s at rest cost. The Services come from the test API server.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from pathlib import Path

from tests.support.apiserver.generate import service
from tests.support.lab import Daemon, Host
from tests.support.lab.daemon import KUBEPROXY
from tests.support.lab.node import CLIENT_V4
from tests.tools.bench import traffic
from tests.tools.bench.cpu_pinning import Cores
from tests.tools.bench.processes import cpu_seconds, family, memory
from tests.tools.bench.stage import make_stage

ROOT = Path(__file__).parents[3]
API_PORT = "8001"
SAMPLE = 400
REST_S = 30.0
PORTS = "32768 60999"
"""The kernel's default of ip_local_port_range."""


def answering(client: Host, services: int) -> tuple[int, int]:
    """Ask a sample of the Services, the last one among them. Return how many answered, and how many were asked."""
    asked = [*random.Random(1).sample(range(services), min(SAMPLE, services)), services - 1]
    answered = 0
    for number in asked:
        try:
            with client.connect((service(number)["spec"]["clusterIP"], 80), timeout=3) as connection:
                connection.sendall(traffic.QUESTION)
                answered += bool(connection.recv(1))
        except OSError:
            continue
    return answered, len(asked)


def await_serving(daemon: Daemon, within_s: float) -> None:
    """Return when everything is in force. AssertionError if that is not so in time."""
    deadline = time.monotonic() + within_s
    while not any(" serving " in line for line in daemon.log().splitlines()):
        assert daemon.process.poll() is None, daemon.log()
        assert time.monotonic() < deadline, daemon.log()
        time.sleep(0.2)


def measure(services: int, endpoints: int, files: int, data_path: str, within_s: float) -> None:
    """Start the daemon and print what is seen."""
    with make_stage("many", Cores.shared(), everywhere=["10.0.0.0/15"]) as stage:
        stage.node.sysctl("net.ipv4.ip_local_port_range", PORTS)
        server = [sys.executable, "-m", "tests.support.apiserver", "--host", CLIENT_V4, "--port", API_PORT]
        generated = ["--generate", f"{services}x{endpoints}"]
        api = stage.client.popen([*server, *generated], stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert api.stdout is not None
        url = api.stdout.readline().strip()
        began = time.monotonic()
        daemon = Daemon(
            stage.node,
            manifests=None,
            netfilter="nftables",
            options=["--workers=2", "--master", url, f"--data-path={data_path}", "--shutdown-grace=100ms"],
            command=["prlimit", f"--nofile={files}:{files}", KUBEPROXY],
            ready_within_s=None,
        )
        try:
            await_serving(daemon, within_s)
            pid = daemon.process.pid
            print(f"in force after {time.monotonic() - began:.1f} s, {cpu_seconds(pid):.1f} s of CPU time")
            print("answered: {} of {}".format(*answering(stage.client, services)))
            descriptors = [len(os.listdir(f"/proc/{each}/fd")) for each in family(pid)]
            print(f"descriptors by process: {descriptors}; PSS {memory(pid).pss / 1024:.0f} MiB")
            used_s, lines, since = cpu_seconds(pid), len(daemon.log().splitlines()), time.monotonic()
            time.sleep(REST_S)
            used = (cpu_seconds(pid) - used_s) / (time.monotonic() - since)
            print(
                f"at rest: {used:.1%} of a core, {len(daemon.log().splitlines()) - lines} log lines in {REST_S:.0f} s"
            )
        finally:
            daemon.close()


def main() -> None:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--services", type=int, default=50_000)
    parser.add_argument("--endpoints", type=int, default=2)
    parser.add_argument("--files", type=int, default=20_000, help="the hard limit of open files")
    parser.add_argument("--data-path", choices=("userspace", "kernel"), default="userspace")
    parser.add_argument("--within", type=float, default=600.0, help="the longest start in seconds")
    words = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}, {words.services} Services of {words.endpoints}, {words.data_path}")
    measure(words.services, words.endpoints, words.files, words.data_path, words.within)


if __name__ == "__main__":
    main()
