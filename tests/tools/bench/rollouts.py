"""Prints what clients lose while pods are replaced: ``python -m tests.tools.bench.rollouts deployment|rolling-update``.

Six pods are replaced under new connections and longer ones, once in each manner. Needs root, and KUBERNETES_BINARIES,
the directory of etcd, kube-apiserver, kube-controller-manager and kube-proxy.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from tests.system.e2e.control_plane import BINARIES, binaries
from tests.system.e2e.steady_clients import Report
from tests.system.rollouts.deployment import rollouts
from tests.system.rollouts.rolling_update import REPLICAS, Manner, laboratory
from tests.system.rollouts.traffic import Load

OPTED_IN = {"kubeproxy/drain": "true"}
OPTED_OUT = {"kubeproxy/drain": "false"}
Seen = tuple[str, Report, float]
"""The manner, what its clients saw, and how many seconds it took."""


def main() -> int:
    """Replace the pods in each manner, and print the table."""
    usual = Load()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--rate", type=int, default=usual.rate, help="new connections per second")
    parser.add_argument("--long", type=int, default=usual.long, help="long connections at once")
    parser.add_argument("--lasting", type=float, nargs=2, default=usual.lasting_s, help="their least and most seconds")
    arguments = parser.parse_args()
    programs = binaries()
    if programs is None:
        print(f"{BINARIES} is not set: it names the directory of etcd, kube-apiserver and kube-controller-manager")
        return 64
    shortest, longest = arguments.lasting
    load = Load(arguments.rate, arguments.long, (shortest, longest))
    print(
        f"{REPLICAS} pods, {load.rate} new connections a second, {load.long} that last {shortest:g} to {longest:g} s\n"
    )
    print("| manner | new connections answered | lost | longer ones ended | cut | slowest answer (ms) | took (s) |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        for seen in EXPERIMENTS[arguments.experiment](Path(directory), programs, load):
            print(row(*seen), flush=True)
    return 0


def deployment(directory: Path, programs: Path, load: Load) -> Iterator[Seen]:
    """A Deployment that our controllers roll."""
    with rollouts(directory, programs, replicas=REPLICAS) as it:
        manners: tuple[tuple[str, Callable[[], AbstractContextManager[Any]], Mapping[str, str]], ...] = (
            ("kubeproxy, with the annotation", it.ours, OPTED_IN),
            ("kubeproxy's kernel path, with it", partial(it.ours, "--drain-reports", "--data-path=kernel"), OPTED_IN),
            ("kubeproxy, without it", it.ours, OPTED_OUT),
            ("kube-proxy 1.20, mode iptables", it.kube_proxy, OPTED_OUT),
        )
        for name, proxy, annotations in manners:
            it.deploy(annotations)
            with proxy():
                outcome = it.roll(load)
            yield name, outcome.report, outcome.seconds


def rolling_update(directory: Path, programs: Path, load: Load) -> Iterator[Seen]:
    """A ReplicationController that `kubeproxy rolling-update` replaces."""
    with laboratory(directory, programs) as lab:
        for manner in Manner:
            outcome = lab.update(manner, load)
            yield manner, outcome.report, outcome.seconds


EXPERIMENTS = {"deployment": deployment, "rolling-update": rolling_update}


def row(manner: str, report: Report, seconds: float) -> str:
    """One line of the table."""
    cells = (
        manner,
        f"{report.answered:,}",
        counted(report.failures),
        f"{report.long_ended}",
        counted(report.long_broken),
        f"{report.slowest_s * 1000:.0f}",
        f"{seconds:.0f}",
    )
    return f"| {' | '.join(cells)} |"


def counted(failures: Sequence[str]) -> str:
    """``12 (TimeoutError 9, ConnectionResetError 3)``."""
    names = [re.search(r"(\w+)\(", failure) for failure in failures]
    reasons = Counter(name[1] if name else "wrong answer" for name in names)
    listed = ", ".join(f"{reason} {times}" for reason, times in reasons.most_common())
    return f"{len(failures)} ({listed})" if failures else "0"


if __name__ == "__main__":
    sys.exit(main())
