"""`kubeproxy create` beside kubectl, in one run against one real API server.

``KUBERNETES_BINARIES=DIR KUBECTL=FILE python -m tests.tools.bench.creating [--objects 10000] [--rounds 3]``

The server (1.20.2, etcd without fsync) runs in a network namespace of its own. Each round creates the same ConfigMaps
in new namespaces, by each program in turn; printed are the medians of time, of CPU and of the largest memory.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.lab import Host
from tests.system.e2e.control_plane import ADDRESS, BINARIES, RealCluster, binaries

OURS = str(Path(sys.executable).with_name("kubeproxy"))


class Cost(NamedTuple):
    """Of one run."""

    seconds: float
    cpu_seconds: float
    memory_mib: float


def manifest(count: int) -> str:
    """That many ConfigMaps."""
    return "".join(
        f"---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: bench-{number}\n  labels:\n    app: bench\n"
        f'data:\n  key: "value {number}"\n  config.yaml: |\n    a: 1\n    b: [1, 2, 3]\n    c: {number}\n'
        for number in range(count)
    )


def measured(host: Host, command: Sequence[str], environment: Mapping[str, str]) -> Cost:
    """Run a command to its end; AssertionError where it fails."""
    with open(os.devnull, "wb") as nothing:
        began = time.monotonic()
        process = host.popen(list(command), stdout=nothing, env=dict(environment))
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"{' '.join(command)}: exit status {process.returncode}"
    return Cost(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.bench.creating")
    parser.add_argument("--objects", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    directory, kubectl = binaries(), os.environ.get("KUBECTL", "")
    if directory is None or not kubectl:
        parser.error(f"set {BINARIES} and KUBECTL (docs/workloads.md)")
    commands = {
        "kubectl": [kubectl, "create"],
        "kubeproxy": [OURS, "create"],
        "kubeproxy --parallel 16": [OURS, "create", "--parallel=16"],
    }
    with tempfile.TemporaryDirectory() as work, Host("bench") as host:
        host.ip("link set lo up", f"address add {ADDRESS[0]}/32 dev lo")
        cluster = RealCluster(host, Path(work) / "cluster", directory)
        try:
            cluster.start_etcd()
            cluster.start_server()
            _compare(host, cluster, Path(work), commands, options.objects, options.rounds)
        finally:
            cluster.__exit__()


def _compare(
    host: Host, cluster: RealCluster, work: Path, commands: Mapping[str, list[str]], objects: int, rounds: int
) -> None:
    environment = os.environ | {"HOME": str(work), "KUBECONFIG": str(work / "cluster" / "admin.conf")}
    environment.pop("XDG_CACHE_HOME", None)
    (work / "many.yaml").write_text(manifest(objects))
    (work / "one.yaml").write_text(manifest(1))
    print(f"| {objects:,} ConfigMaps from one file | seconds | CPU seconds | memory, MiB | one object, CPU seconds |")
    print("|---|---|---|---|---|")
    costs: dict[str, list[Cost]] = {name: [] for name in commands}
    single: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(rounds):
        for index, (name, command) in enumerate(commands.items()):
            for kind in ("many", "one"):
                namespace = f"{kind}-{turn}-{index}"
                cluster.ask("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
                cost = measured(host, [*command, "-n", namespace, "-f", str(work / f"{kind}.yaml")], environment)
                if kind == "many":
                    costs[name].append(cost)
                else:
                    single[name].append(cost.cpu_seconds)
            shown = costs[name][-1]
            print(f"round {turn + 1}: {name}: {shown.seconds:.1f} s", file=sys.stderr, flush=True)
    for name in commands:
        median = [statistics.median(values) for values in zip(*costs[name], strict=True)]
        one = statistics.median(single[name])
        print(f"| {name} | {median[0]:.1f} | {median[1]:.1f} | {median[2]:.0f} | {one:.2f} |")


if __name__ == "__main__":
    main()
