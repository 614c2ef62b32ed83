"""How long a client waits for a start: from exec to the first answer, beside what the log says on the way.

``python -m tests.tools.bench.starting [--runs N] [flags of kubeproxy run]``, as root. Bytecode is compiled beforehand, as in
a package. The best run is printed in full, for the machine may be busy otherwise.
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
from pathlib import Path
from typing import IO

from tests.support.lab import Host, make_network, service_manifest, write_manifest
from tests.support.lab.daemon import KUBEPROXY, environment

VIP = "10.96.0.10"
PATIENCE_S = 0.02
"""How long one attempt waits: this fine is the answer. A client of the kernel's would send its SYN again after 1 s."""
LIMIT_S = 30.0

Line = tuple[float, str]


def start(node: Host, client: Host, directory: Path, options: Sequence[str]) -> tuple[float, list[Line]]:
    """Seconds until the first answer, and each line of the log with its own."""
    lines: list[Line] = []
    began = time.monotonic()
    process = node.popen(
        [KUBEPROXY, "run", "--manifests", str(directory / "manifests"), *options],
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
        time.sleep(1.0)  # for what comes after
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        reading.join()
        node.run(["nft", "flush", "ruleset"])
    return first_s, lines


def answers(client: Host) -> bool:
    """Whether a connection of now is answered."""
    with contextlib.suppress(OSError), client.connect((VIP, 80), timeout=PATIENCE_S) as sock:
        sock.settimeout(LIMIT_S)
        return bool(sock.recv(1))
    return False


def greet(listening: socket.socket) -> None:
    """One byte for everybody."""
    while True:
        try:
            sock, _ = listening.accept()
            with sock:
                sock.sendall(b"x")
        except OSError:
            return


def main(arguments: Sequence[str]) -> None:
    """As typed."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.bench.starting", description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    own, options = parser.parse_known_args(arguments)
    with make_network(pods=1) as network, tempfile.TemporaryDirectory(prefix="kubeproxy-bench-") as name:
        directory = Path(name)
        (directory / "manifests").mkdir()
        text = service_manifest("web", cluster_ip=VIP, ports={"http": (80, 8080)}, endpoints=[network.pod_v4(0)])
        write_manifest(directory / "manifests" / "web.yaml", text)
        with network.pods[0].listen(("0.0.0.0", 8080)) as listening:
            threading.Thread(target=greet, args=(listening,), daemon=True).start()
            start(network.node, network.client, directory, options)  # compiles
            runs = [start(network.node, network.client, directory, options) for _ in range(own.runs)]
    best_s, lines = min(runs)
    for when, line in lines:
        print(f"{when:7.3f}  {line}")
    print("first answer after", ", ".join(f"{first_s:.2f}" for first_s, _ in sorted(runs)), f"s; best {best_s:.2f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
