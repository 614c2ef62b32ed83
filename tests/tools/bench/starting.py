"""How long a client waits for a start of ten Services: from exec to the first answer. It prints the log lines on the
way, and the CPU time that all processes of the start have used by then.

``python -m tests.tools.bench.starting [--runs N] [--api] [flags of kubeproxy run]``, as root; with `--api` the
Services come from an API server instead of manifests. Bytecode is compiled beforehand, as in a package. The best run
is printed in full, because the machine may be busy otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO

import yaml

from tests.support.lab import Host, make_network, service_manifest, write_manifest
from tests.support.lab.daemon import KUBEPROXY, environment
from tests.system.e2e.api import ApiHost

VIP = "10.96.0.10"
PATIENCE_S = 0.02
"""The limit of one attempt, and so the precision of the result. The client's kernel would repeat its SYN after 1 s."""
LIMIT_S = 30.0
SERVICES = 10
TICKS = os.sysconf("SC_CLK_TCK")

Line = tuple[float, str]


def cpu_s(pid: int) -> float:
    """CPU time in seconds of a process and all its descendants, ended ones included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(map(int, fields[11:15])) / TICKS + sum(cpu_s(int(child)) for child in children)


def start(node: Host, client: Host, directory: Path, options: Sequence[str]) -> tuple[float, float, list[Line]]:
    """Start the daemon and time it. Returns the seconds until the first answer, the CPU seconds by then, and each line
    of the log with its CPU time."""
    lines: list[Line] = []
    began = time.monotonic()
    process = node.popen(
        [KUBEPROXY, "run", *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **environment(directory),
            "PYTHONPYCACHEPREFIX": str(directory / "bytecode"),
            "PYTHONDONTWRITEBYTECODE": "",
        },
        process_group=0,
    )

    def read(log: IO[str]) -> None:
        lines.extend((time.monotonic() - began, line.rstrip()) for line in log)

    assert process.stderr is not None
    reading = threading.Thread(target=read, args=(process.stderr,))
    reading.start()
    try:
        while not answers(client):
            if process.poll() is not None or time.monotonic() - began > LIMIT_S:
                raise SystemExit("no answer:\n" + "\n".join(line for _, line in lines))
        first_s = time.monotonic() - began
        taken_s = cpu_s(process.pid)
        time.sleep(1.0)  # for what comes after
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        reading.join()
        node.run(["nft", "flush", "ruleset"])
    return first_s, taken_s, lines


def answers(client: Host) -> bool:
    """Whether a new connection gets an answer."""
    with contextlib.suppress(OSError), client.connect((VIP, 80), timeout=PATIENCE_S) as sock:
        sock.settimeout(LIMIT_S)
        return bool(sock.recv(1))
    return False


def greet(listening: socket.socket) -> None:
    """Send one byte to each client."""
    while True:
        try:
            sock, _ = listening.accept()
            with sock:
                sock.sendall(b"x")
        except OSError:
            return


def main(arguments: Sequence[str]) -> None:
    """Run the program with these arguments."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.bench.starting", description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--api", action="store_true")
    own, options = parser.parse_known_args(arguments)
    with make_network(pods=1) as network, tempfile.TemporaryDirectory(prefix="kubeproxy-bench-") as name:
        directory = Path(name)
        (directory / "manifests").mkdir()
        addresses = [VIP, *(f"10.96.0.{20 + number}" for number in range(1, SERVICES))]
        pod = [network.pod_v4(0)]
        texts = [
            service_manifest(f"web-{number}", cluster_ip=address, ports={"http": (80, 8080)}, endpoints=pod)
            for number, address in enumerate(addresses)
        ]
        write_manifest(directory / "manifests" / "web.yaml", "---\n".join(texts))
        api: AbstractContextManager[ApiHost | None] = nullcontext()
        if own.api:
            objects = [item for text in texts for item in yaml.safe_load_all(text)]
            for item in objects:
                item["metadata"].setdefault("namespace", "default")
            api = ApiHost(network.client, *objects)
        with network.pods[0].listen(("0.0.0.0", 8080)) as listening, api as server:
            source = f"--master={server.url}" if server else f"--manifests={directory / 'manifests'}"
            threading.Thread(target=greet, args=(listening,), daemon=True).start()
            start(network.node, network.client, directory, [source, *options])  # compiles
            runs = [start(network.node, network.client, directory, [source, *options]) for _ in range(own.runs)]
    best_s, _, lines = min(runs)
    for when, line in lines:
        print(f"{when:7.3f}  {line}")
    print("first answer after", ", ".join(f"{first_s:.2f}" for first_s, *_ in sorted(runs)), f"s; best {best_s:.2f} s")
    taken = sorted(taken_s for _, taken_s, _ in runs)
    print("CPU until then", ", ".join(f"{taken_s:.2f}" for taken_s in taken), f"s; best {taken[0]:.2f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
