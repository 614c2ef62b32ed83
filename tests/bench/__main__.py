"""`python -m tests.bench`: see --help."""

from __future__ import annotations

import json
import pstats
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import click

from tests.bench import machine, report
from tests.bench.cores import Cores
from tests.bench.measures import MEASURES, Measure
from tests.bench.peers import Bare, Direct, HAProxy, Kubeproxy, Peer, Streams
from tests.bench.stage import Stage, make_stage
from tests.lab.privilege import require_hosts

_MEASURES = tuple(measure.name for measure in MEASURES)
_PEERS = ("direct", "haproxy", "streams", "bare", "kubeproxy")
_USUAL = ("direct", "haproxy", "kubeproxy")
_QUICK_MEASURES = ("requests", "connections", "bulk8")


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


def measure_all(
    peers: Sequence[tuple[Peer, Stage]], measures: Sequence[Measure], *, rounds: int, seconds: float
) -> report.Results:
    """The alternating rounds, told on stderr as they come."""
    results = report.Results([peer.name for peer, _ in peers])
    for number in range(1, rounds + 1):
        for measure in measures:
            seen = []
            for peer, stage in peers:
                sample = report.Sample(number, measure.name, peer.name, measure.run(stage, peer, seconds))
                results.samples.append(sample)
                first = measure.metrics[0]
                seen.append(f"{peer.name} {sample.figures[first.key]:,.{first.digits}f}")
            print(f"round {number}/{rounds}  {measure.name:<12} {'  '.join(seen)}", file=sys.stderr, flush=True)
    return results


def _print_profile(path: Path) -> None:
    print(f"\nWhere it spent its time (all of it: python -m pstats {path}):")
    pstats.Stats(str(path)).sort_stats("tottime").print_stats(25)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--rounds", type=click.IntRange(min=1), help="How often each is measured; the median counts. [5; quick 3]"
)
@click.option("--seconds", type=click.FloatRange(min=0.2), help="How long each time. [3; quick 1]")
@click.option(
    "--only", metavar="NAME,...", callback=_names_of(_MEASURES), help=f"Only these of {', '.join(_MEASURES)}."
)
@click.option(
    "--peers",
    metavar="NAME,...",
    callback=_names_of(_PEERS),
    help=f"These of {', '.join(_PEERS)}, in this order. [{','.join(_USUAL)}]",
)
@click.option("--netfilter", type=click.Choice(["nftables", "iptables"]), default="nftables", show_default=True)
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write everything there.")
@click.option("--quick", is_flag=True, help=f"For experiments: {', '.join(_QUICK_MEASURES)}, few and short rounds.")
@click.option(
    "--profile",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Run ours under cProfile, write its profile there, and print its top; it is much slower then.",
)
def main(
    rounds: int | None,
    seconds: float | None,
    only: tuple[str, ...] | None,
    peers: tuple[str, ...] | None,
    netfilter: str,
    json_path: Path | None,
    quick: bool,
    profile: Path | None,
) -> None:
    """Measure the daemon beside HAProxy and the direct path, in network namespaces of its own: one core for the proxy,
    the others for load and backends."""
    machine.require_programs()
    # Ended by either signal it takes its hosts, programs and files along, in the background of a shell too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    chosen = peers or _USUAL
    if profile is not None and len({"bare", "kubeproxy"} & set(chosen)) != 1:
        raise click.UsageError("--profile is for one of bare and kubeproxy: name it with --peers")
    rounds = rounds or (3 if quick else 5)
    seconds = seconds or (1.0 if quick else 3.0)
    names = only or (_QUICK_MEASURES if quick else _MEASURES)
    measures = [measure for measure in MEASURES if measure.name in names]
    known: dict[str, Peer] = {
        peer.name: peer
        for peer in (
            Direct(),
            HAProxy(),
            Streams(),
            Bare(profile=profile),
            Kubeproxy(netfilter=netfilter, profile=profile),
        )
    }
    cores = Cores.split()
    facts = machine.facts(cores)
    began = time.monotonic()
    with ExitStack() as stack:
        stages: list[tuple[Peer, Stage]] = []
        for name in chosen:
            stage = stack.enter_context(make_stage(name, cores))
            stack.callback(known[name].stop)
            known[name].start(stage)
            stages.append((known[name], stage))
        results = measure_all(stages, measures, rounds=rounds, seconds=seconds)
    print(
        f"\n{facts['cores']} cores ({facts['cpu']}), Linux {facts['kernel']}, Python {facts['python']}\n"
        f"{facts['haproxy']}\n"
        f"medians of {rounds} alternating rounds of {seconds:g} s; proxy on core {','.join(map(str, cores.proxy))},"
        f" load and backends on {','.join(map(str, cores.load))}\n"
    )
    print(report.table(results, measures))
    if json_path is not None:
        settings = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "rounds": rounds,
            "seconds": seconds,
            "netfilter": netfilter,
            "took_s": round(time.monotonic() - began, 1),
        }
        document = report.document(results, measures, machine=facts, settings=settings)
        json_path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    if profile is not None:
        _print_profile(profile)


if __name__ == "__main__":
    require_hosts("tests.bench")
    main()
