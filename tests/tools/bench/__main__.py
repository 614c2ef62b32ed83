"""`python -m tests.tools.bench`: see --help."""

from __future__ import annotations

import json
import pstats
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import click

from kubeproxy.model import Scheduler
from tests.support.lab.privilege import require_hosts
from tests.tools.bench import machine, report
from tests.tools.bench.chart import chart
from tests.tools.bench.cpu_pinning import Cores
from tests.tools.bench.large import PROXIES, SIZES, Large
from tests.tools.bench.measures import CONNECTIONS, LOADS, REQUESTS, Measure
from tests.tools.bench.memory import IdleConnections, IdleDaemon
from tests.tools.bench.peers import (
    Bare,
    Direct,
    HAProxy,
    Kubeproxy,
    Nginx,
    Peer,
    PlainDnat,
    RedirectedHAProxy,
    Streams,
    ours,
    with_python,
)
from tests.tools.bench.processes import family
from tests.tools.bench.scale import SCENARIOS, Scale
from tests.tools.bench.schedulers import SPREADS
from tests.tools.bench.schedulers import table as table_of_schedulers
from tests.tools.bench.stage import Stage, make_stage

LANES = 3
"""Workers and threads where several serve."""

_NAMES = (*(load.name for load in LOADS), IdleConnections.name, IdleDaemon.name, Scale.name)
_ONE = (
    *("direct", "dnat", "kernel", "haproxy", "haproxy+nat", "nginx", "streams", "bare"),
    *("kubeproxy0", "pure", "kubeproxy"),
)
_EVERY = ("direct*", f"haproxy{LANES}", f"haproxy{LANES}+nat", f"nginx{LANES}", f"kubeproxy{LANES}")
_COUNTING = (("haproxy", "leastconn"), ("kubeproxy", Scheduler.LEAST_CONNECTIONS))
_SCHEDULED = (
    *(f"haproxy:{balance}" for balance in ("roundrobin", "leastconn", "source")),
    *(f"kubeproxy:{scheduler}" for scheduler in Scheduler),
    *(f"{proxy}{lanes}:{balance}" for lanes in (2, 4) for proxy, balance in _COUNTING),
    *(f"kernel:{scheduler}" for scheduler in Scheduler),
)
"""A proxy with a number of workers or threads, and its scheduler."""
_PEERS = (*_ONE, *_EVERY, *_SCHEDULED)
_USUAL = tuple(name for name in (*_ONE, *_EVERY) if name != "bare")
_QUICK = (
    *("direct", "dnat", "kernel", "haproxy", "haproxy+nat", "pure", "kubeproxy"),
    *(f"haproxy{LANES}", f"kubeproxy{LANES}"),
)
_SCHEDULERS, _LARGE = "schedulers", "large"
_QUICK_NAMES = (*(load.name for load in LOADS if load.name != "bulk1"), IdleConnections.name, IdleDaemon.name)
_WIDE = (REQUESTS, CONNECTIONS)
"""What is measured on every core."""


def _names_of(allowed: Sequence[str]) -> Callable[[click.Context, click.Parameter, str | None], tuple[str, ...] | None]:
    """A callback for options that take names out of `allowed`, separated by commas."""

    def names(_context: click.Context, _option: click.Parameter, value: str | None) -> tuple[str, ...] | None:
        if value is None:
            return None
        for name in value.split(","):
            if name not in allowed:
                raise click.BadParameter(f"{name!r} is none of {', '.join(allowed)}")
        return tuple(value.split(","))

    return names


def _make_peer(name: str, netfilter: str, profile: Path | None) -> Peer:
    base, _, scheduler = name.partition(":")
    if scheduler:
        workers = int(base.lstrip("abcdefghijklmnopqrstuvwxyz") or 1)
        if base.startswith("haproxy"):
            return HAProxy(name, lanes=workers, balance=scheduler)
        path = "kernel" if base == "kernel" else "userspace"
        return Kubeproxy(name, workers=workers, netfilter=netfilter, data_path=path, scheduler=scheduler)
    lanes = LANES if name in _EVERY else 1
    if name.endswith("+nat"):
        return RedirectedHAProxy(name, lanes=lanes)
    match name.rstrip("0123456789*"):
        case "direct":
            return Direct(name, lanes=lanes)
        case "dnat":
            return PlainDnat(name, lanes=lanes)
        case "kernel":
            return Kubeproxy(name, workers=lanes, netfilter=netfilter, data_path="kernel", profile=profile)
        case "haproxy":
            return HAProxy(name, lanes=lanes)
        case "nginx":
            return Nginx(name, lanes=lanes)
        case "streams":
            return Streams(name)
        case "pure":
            return Kubeproxy(name, workers=lanes, netfilter=netfilter, program=ours(compiled=False))
        case "bare":
            return Bare(name, profile=profile)
        case _:
            workers = 0 if name.endswith("0") else lanes
            return Kubeproxy(name, workers=workers, netfilter=netfilter, profile=profile)


def _does(peer: Peer, load: Measure) -> bool:
    if peer.lanes > 1 and load not in SPREADS:
        return load in _WIDE
    return load.name != "udp" or not isinstance(peer, HAProxy | Streams | Bare)


def measure_loads(
    results: report.Results,
    peers: Sequence[Peer],
    loads: Sequence[Measure],
    *,
    rounds: int,
    seconds: float,
    perf: Path | None = None,
) -> None:
    """The alternating rounds, reported on stderr as they come. All peers stand at once, and one is loaded at a time.
    With `perf`, the last of them is sampled."""
    with ExitStack() as stack:
        stages: list[tuple[Peer, Stage]] = []
        for peer in peers:
            stage = stack.enter_context(make_stage(peer.name, peer.cores))
            stack.callback(peer.stop)
            peer.start(stage)
            stages.append((peer, stage))
        stack.enter_context(_sampled(peers[-1].pid(), perf))
        for number in range(1, rounds + 1):
            for load in loads:
                seen = []
                for peer, stage in stages:
                    if not _does(peer, load):
                        continue
                    sample = report.Sample(number, load.name, peer.name, load.run(stage, peer, seconds))
                    results.samples.append(sample)
                    first = load.metrics[0]
                    seen.append(f"{peer.name} {sample.figures[first.key]:,.{first.digits}f}")
                _tell(f"round {number}/{rounds}  {load.name:<12} {'  '.join(seen)}")


def _measure_once(results: report.Results, measure: str, peer: str, run: Callable[[], report.Figures]) -> None:
    _tell(f"{measure}: {peer}")
    sample = report.Sample(1, measure, peer, run())
    results.samples.append(sample)
    _tell("  " + "  ".join(f"{key} {figure:,.2f}" for key, figure in sample.figures.items()))


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _print_profile(path: Path) -> None:
    print(f"\nWhere it spent its time, by cProfile (all of it: python -m pstats {path}):")
    pstats.Stats(str(path)).sort_stats("tottime").print_stats(25)


@contextmanager
def _sampled(pid: int | None, path: Path | None) -> Iterator[None]:
    """perf looks at a process and its descendants meanwhile: 499 times a second, at the kernel's side of it, too."""
    if path is None or pid is None:
        yield
        return
    pids = ",".join(map(str, family(pid)))
    sampler = subprocess.Popen(["perf", "record", "-q", "-F", "499", "-g", "-o", str(path), "-p", pids])
    try:
        yield
    finally:
        sampler.send_signal(signal.SIGINT)
        sampler.wait(30)


def _print_samples(path: Path) -> None:
    print(f"\nWhere it spent its time, by perf (all of it: perf report -i {path}):")
    command = ["perf", "report", "-i", str(path), "--stdio", "--no-children", "-g", "none", "--percent-limit", "0.7"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print("\n".join(line for line in done.stdout.splitlines() if line.strip() and not line.startswith("#")))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--rounds", type=click.IntRange(min=1), help="How often each is measured; the median counts. [4; quick 2]"
)
@click.option("--seconds", type=click.FloatRange(min=0.2), help="How long each time. [2; quick 1]")
@click.option(
    "--only",
    metavar="NAME,...",
    callback=_names_of((*_NAMES, _SCHEDULERS, _LARGE)),
    help=f"Only these of {', '.join((*_NAMES, _SCHEDULERS, _LARGE))}.",
)
@click.option(
    "--peers",
    metavar="NAME,...",
    callback=_names_of(_PEERS),
    help=f"These of {', '.join(_PEERS)}, in this order. [{','.join(_USUAL)}]",
)
@click.option(
    "--python",
    "pythons",
    metavar="PATH",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Also kubeproxy with this Python, of an environment of `make pythons`, from the sources and compiled.",
)
@click.option("--netfilter", type=click.Choice(["nftables", "iptables"]), default="nftables", show_default=True)
@click.option("--services", type=click.IntRange(min=10), default=10_000, show_default=True, help="How many for scale.")
@click.option(
    "--scenarios",
    metavar="NAME,...",
    callback=_names_of((*(scenario.name for scenario in SCENARIOS), *PROXIES)),
    help=f"Scale: only these of {', '.join(scenario.name for scenario in SCENARIOS)}; large: of {', '.join(PROXIES)}.",
)
@click.option(
    "--sizes",
    metavar="NAME,...",
    callback=_names_of(tuple(map(str, SIZES))),
    help=f"Large: only these of {', '.join(map(str, SIZES))}.",
)
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write everything there.")
@click.option("--chart", "chart_path", type=click.Path(dir_okay=False, path_type=Path), help="Draw an SVG there.")
@click.option(
    "--docs",
    "docs_path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Put the tables into this page, between its marks.",
)
@click.option("--quick", is_flag=True, help="For experiments, in two minutes: fewer peers, few and short rounds.")
@click.option(
    "--profile",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Run ours under cProfile, write its profile there, and print its top; it is much slower then.",
)
@click.option(
    "--perf",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Let perf sample ours, write its data there, and print its top: the kernel's part, and the interpreter's.",
)
def main(
    rounds: int | None,
    seconds: float | None,
    only: tuple[str, ...] | None,
    peers: tuple[str, ...] | None,
    pythons: tuple[Path, ...],
    netfilter: str,
    services: int,
    scenarios: tuple[str, ...] | None,
    sizes: tuple[str, ...] | None,
    json_path: Path | None,
    chart_path: Path | None,
    docs_path: Path | None,
    quick: bool,
    profile: Path | None,
    perf: Path | None,
) -> None:
    """Measure the daemon beside HAProxy, nginx and the direct path, in network namespaces of its own: with one core
    for the proxy and the others for load and backends, and with every core for all; then its memory, and how it does
    with thousands of Services."""
    machine.require_programs()
    # Ended by either signal it takes its hosts, programs and files along, in the background of a shell too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    chosen = peers or (_SCHEDULED if only == (_SCHEDULERS,) else _QUICK if quick else _USUAL)
    if (profile or perf) and chosen not in (("bare",), ("kubeproxy0",)):
        raise click.UsageError("--profile and --perf are for bare or kubeproxy0 alone: name it with --peers")
    if perf is not None and shutil.which("perf") is None:
        sys.exit(
            "bench: there is no perf here; it comes in the package linux-perf. Without it, --profile tells of Python"
        )
    rounds = rounds or (2 if quick else 4)
    seconds = seconds or (1.0 if quick else 2.0)
    names = only or (_QUICK_NAMES if quick else _NAMES)
    known = [_make_peer(name, netfilter, profile) for name in chosen]
    known += [peer for python in pythons for peer in with_python(python.absolute())]
    loads = [load for load in LOADS if load.name in names] + ([*SPREADS] if _SCHEDULERS in names else [])
    facts = machine.facts(Cores.split())
    if facts["load_average_before"] > 1:
        _tell(f"bench: others use this machine (load average {facts['load_average_before']:.1f}); trust ratios at most")
    began = time.monotonic()
    results = report.Results()
    if loads:
        measure_loads(results, known, loads, rounds=rounds, seconds=seconds, perf=perf)
    idle, standing, scale = IdleConnections(), IdleDaemon(), Scale(services)
    if idle.name in names:
        for peer in known:
            if not isinstance(peer, Direct | Bare | PlainDnat) and peer.name != "kernel":
                _measure_once(results, idle.name, peer.name, lambda peer=peer: idle.run(peer))  # type: ignore[misc]
    if standing.name in names:
        for source in standing.sources:
            _measure_once(results, standing.name, source, lambda source=source: standing.run(source))  # type: ignore[misc]
    if scale.name in names:
        for scenario in SCENARIOS:
            if scenarios is not None and scenario.name not in scenarios:
                continue
            _measure_once(results, scale.name, scenario.name, lambda scenario=scenario: scale.run(scenario))  # type: ignore[misc]
    larges = [Large(size) for size in SIZES if sizes is None or str(size) in sizes] if _LARGE in names else []
    for large in larges:
        for proxy in PROXIES:
            if scenarios is None or proxy in scenarios:
                _measure_once(results, large.name, proxy, lambda large=large, proxy=proxy: large.run(proxy))  # type: ignore[misc]
    usual = [load for load in loads if load not in SPREADS]
    sections = [
        report.Section("one core", [peer.name for peer in known if peer.lanes == 1], [*usual, idle]),
        report.Section("every core", [peer.name for peer in known if peer.lanes > 1], [*usual, idle]),
        report.Section("memory", standing.sources, [standing]),
        report.Section("scale", [scenario.name for scenario in SCENARIOS], [scale]),
        *(report.Section(large.name, PROXIES, [large]) for large in larges),
    ]
    text = (
        f"{facts['cores']} cores ({facts['cpu']}), Linux {facts['kernel']}, Python {facts['python']}\n"
        f"{facts['haproxy']}; {facts['nginx']}\n"
        f"medians of {rounds} alternating rounds of {seconds:g} s;"
        f" load average before: {facts['load_average_before']:.1f}\n\n"
        f"{report.table(results, sections)}"
        f"{table_of_schedulers(results, chosen) if _SCHEDULERS in names else ''}"
    )
    print(f"\n{text}")
    if docs_path is not None:
        docs_path.write_text(report.put_between_marks(docs_path.read_text(), text))
    if json_path is not None:
        settings = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "rounds": rounds,
            "seconds": seconds,
            "netfilter": netfilter,
            "services": services,
            "took_s": round(time.monotonic() - began, 1),
        }
        document = report.document(results, sections, machine=facts, settings=settings)
        json_path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    if chart_path is not None:
        chart_path.write_text(chart(results))
    if perf is not None:
        _print_samples(perf)
    if profile is not None:
        _print_profile(profile)


if __name__ == "__main__":
    require_hosts("tests.tools.bench")
    main()
