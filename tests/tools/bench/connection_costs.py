"""What a connection, or a request, costs a proxy: CPU time, and system calls by name.

    nice -n -10 .venv/bin/python -m tests.tools.bench.connection_costs [--requests] [--clients N] [--also NAME=COMMAND]

as root. The same Service by HAProxy behind a redirect, by this checkout with one worker, from the sources and, after
`make compiled`, compiled, and by other programs `kubeproxy` (of another checkout, of another Python). All stand at
once, and one is loaded at a time, in alternating rounds. Other work on the machine spoils rates; it spoils CPU time for
an operation much less, and counts hardly at all. The table has the medians of the rounds. System calls are counted in a
round of their own, as counting takes time.
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import subprocess
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.support.compiled_modules import ARE_THERE
from tests.support.lab.privilege import require_hosts
from tests.tools.bench.measures import Http
from tests.tools.bench.peers import Kubeproxy, Peer, RedirectedHAProxy, ours
from tests.tools.bench.processes import family
from tests.tools.bench.stage import Stage, make_stage

CALLS = (
    *(
        "accept4",
        "bind",
        "clock_gettime",
        "close",
        "connect",
        "epoll_ctl",
        "epoll_pwait",
        "epoll_wait",
        "fcntl",
        "futex",
    ),
    *("getpeername", "getsockname", "getsockopt", "ioctl", "read", "recvfrom", "recvmsg", "sendmsg", "sendto"),
    *("setsockopt", "shutdown", "socket", "splice", "write"),
)
OTHER_EVENTS = {"raw_syscalls:sys_enter": "all system calls", "sched:sched_waking": "wake-ups of others"}

Figures = Mapping[str, float]


def cpu_s(pids: Sequence[int]) -> tuple[float, float]:
    """CPU time of processes so far in seconds: all of it, and the kernel's part as its ticks divide it."""
    ran, system, user = 0.0, 0, 0
    for pid in pids:
        ran += int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        user, system = user + int(fields[11]), system + int(fields[12])
    return ran, system / os.sysconf("SC_CLK_TCK")


def loaded(stage: Stage, peer: Peer, load: Http, seconds: float) -> Figures:
    """Load a peer; its CPU time by operation in microseconds."""
    pids = family(peer.pid() or 0)
    ran, system = cpu_s(pids)
    done = load.load(stage, peer, seconds)
    ran_then, system_then = cpu_s(pids)
    each = 1e6 / done.requests
    return {
        "operations/s": done.requests / done.seconds,
        "CPU, µs": each * (ran_then - ran),
        "of that outside the kernel, µs": each * ((ran_then - ran) - (system_then - system)),
    }


def counted(stage: Stage, peer: Peer, load: Http, seconds: float) -> Figures:
    """Load a peer; its system calls by operation."""
    events = [*(f"syscalls:sys_enter_{name}" for name in CALLS), *OTHER_EVENTS]
    pids = ",".join(map(str, family(peer.pid() or 0)))
    command = ["perf", "stat", "-x,", "-p", pids, *(word for event in events for word in ("-e", event))]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as perf:
        done = load.load(stage, peer, seconds)
        perf.send_signal(2)
        _, lines = perf.communicate(timeout=30)
    figures = {}
    for line in lines.splitlines():
        number, _, name, *_ = *line.split(","), "", "", ""
        name = OTHER_EVENTS.get(name, name.removeprefix("syscalls:sys_enter_"))
        if number.isdigit() and int(number) / done.requests >= 0.005:
            figures[name] = int(number) / done.requests
    return figures


def measure(peers: Sequence[Peer], load: Http, *, rounds: int, seconds: float) -> dict[str, dict[str, float]]:
    """The medians of each peer."""
    seen: dict[str, dict[str, list[float]]] = {peer.name: defaultdict(list) for peer in peers}
    with ExitStack() as stack:
        stages = []
        for peer in peers:
            stages.append(stack.enter_context(make_stage(peer.name, peer.cores)))
            stack.callback(peer.stop)
            peer.start(stages[-1])
        for number in range(rounds + 1):
            for stage, peer in zip(stages, peers, strict=True):
                for key, figure in (loaded if number else counted)(stage, peer, load, seconds).items():
                    seen[peer.name][key].append(figure)
    return {name: {key: statistics.median(values) for key, values in figures.items()} for name, figures in seen.items()}


def print_table(figures: Mapping[str, Figures]) -> None:
    """One line for each figure, one column for each peer."""
    keys = dict.fromkeys(key for each in figures.values() for key in each)
    print(f"{'':32}" + "".join(f"{name:>16}" for name in figures))
    for key in keys:
        print(
            f"{key:32}" + "".join(f"{each[key]:16,.2f}" if key in each else f"{'-':>16}" for each in figures.values())
        )


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--requests", action="store_true", help="requests on kept-alive connections")
    parser.add_argument("--clients", type=int, default=64, help="connections at a time")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--also", action="append", default=[], metavar="NAME=COMMAND")
    options = parser.parse_args()
    peers: list[Peer] = [RedirectedHAProxy("haproxy+nat")]
    for form in ("pure", "compiled") if ARE_THERE else ("pure",):
        peers.append(Kubeproxy(form, workers=options.workers, program=ours(compiled=form == "compiled")))
    for also in options.also:
        name, _, program = also.partition("=")
        peers.append(Kubeproxy(name, workers=options.workers, program=shlex.split(program)))
    print(f"load average before: {os.getloadavg()[0]:.1f}", flush=True)
    load = Http(kept_alive=options.requests, connections=options.clients)
    print_table(measure(peers, load, rounds=options.rounds, seconds=options.seconds))


if __name__ == "__main__":
    require_hosts("tests.tools.bench.connection_costs")
    main()
