"""The whole, from the first process to the report."""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE

from tests.support.lab import PodLinks
from tests.system.soak import audit, hostile
from tests.system.soak.actions import GRACE_S, ROOT, World, make_world
from tests.system.soak.audit import Measure
from tests.system.soak.clients import Outcome, outcome
from tests.system.soak.event_record import Chronicle
from tests.system.soak.schedule import acts, balances_of, first_path, links
from tests.system.soak.verdict import Tally, Verdict, slow_repairs, spans_text, tally

EXPECTED = re.compile(
    "|".join(
        (
            "worker process has ended",  # we killed it
            "update failed, retrying",  # rules were removed in the middle of a change
        )
    )
)
"""Errors in the daemons' logs that what was done to them explains."""
LISTED_MAX = 200
"""Unexplained outcomes that the report lists."""


@dataclass(slots=True)
class Report:
    """How it went."""

    seed: int
    seconds: float
    netfilter: str
    both_paths: bool
    links: PodLinks
    began: float = field(default_factory=time.monotonic)
    chronicle: Chronicle = field(default_factory=Chronicle)
    outcomes: list[Outcome] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """Everything that ought not to be, but clients' failures."""
    measures: dict[str, Measure] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)

    @property
    def good(self) -> bool:
        """Whether all was as it ought to be."""
        return not self.faults and not self.tally.unexplained

    def text(self) -> str:
        """For people."""
        chronicle, counted = self.chronicle, self.tally
        events = Counter(re.sub(r" (guest|pod|\d|\().*| [a-z]+$(?<=services)", "", what) for _, what in chronicle.notes)
        lines = [
            f"soak: SOAK_SEED={self.seed} SOAK_SECONDS={self.seconds:g} ({self.netfilter},"
            f" {'both data paths' if self.both_paths else 'userspace path'}, {self.links}) repeats the events",
            f"events: {sum(events.values())}",
            *(f"  {count:6} {what}" for what, count in sorted(events.items())),
            "answered, and every byte was right:",
            *(f"  {count:6} {kind}" for kind, count in sorted(counted.right.items())),
            f"  {counted.words['long']} words on long connections, {counted.words['large'] / 1e6:.0f} MB each way,"
            f" {counted.words['udp']} datagrams for {counted.right['udp']} answers",
            *(f"  {count:6} {path}" for path, count in sorted(counted.paths.items())),
            "not answered, or late, and why:",
            *(f"  {count:6} {why}" for why, count in sorted(counted.explained.items())),
        ]
        if counted.slowest is not None:
            slowest = counted.slowest
            lines.append(
                f"steady services: slowest answer {slowest.ended - slowest.began:.3f} s"
                f" (at {slowest.began - self.began:.1f} s), longest gap between two {counted.longest_gap_s:.3f} s"
            )
        lines += [f"{name}: {measure}" for name, measure in self.measures.items()]
        lines.append(f"unexplained: {len(counted.unexplained)}; other faults: {len(self.faults)}")
        for seen in counted.unexplained[:LISTED_MAX]:
            lines.append(f"  {self._outcome(seen)}")
        lines += [f"  {fault}" for fault in self.faults]
        if not self.good:
            lines += [f"    {when - self.began:8.2f} {what}" for when, what in sorted(chronicle.notes)]
            lines.append(
                "    " + ", ".join(f"{it.data_path} from {it.since - self.began:.2f}" for it in chronicle.policies)
            )
            others = (chronicle.unforwarded, chronicle.unattended, chronicle.inert)
            for spans in (chronicle.faults, chronicle.blind, chronicle.gaps, chronicle.robbed, *others):
                lines.append(f"    {spans_text(spans, self.began)}")
            for it in chronicle.retired:
                times = (time - self.began for time in (it.since, it.until, it.ended))
                lines.append("    process {} ordered to end {:.2f}..{:.2f}, ended {:.2f}".format(it.pid, *times))
            for kill in chronicle.kills:
                lines.append(f"    worker killed {kill.stopped - self.began:.2f}..{kill.killed - self.began:.2f}")
        return "\n".join(lines)

    def _outcome(self, seen: Outcome) -> str:
        return (
            f"{seen.kind} from {seen.host} port {seen.port} to {seen.place} by IPv{seen.family},"
            f" {seen.began - self.began:.3f} to {seen.ended - self.began:.3f}, pod {seen.pod},"
            f" {seen.path or 'either'} path: {seen.error or 'the wrong pod or path, or late'}"
        )


def soak(
    *, seed: int, seconds: float, netfilter: str = "nftables", both_paths: bool = True, logs: Path | None = None
) -> Report:
    """Run it all. `both_paths`: Services move between the kernel path and the userspace path. `logs`: where the
    daemons' logs are left."""
    report = Report(seed, seconds, netfilter, both_paths, links(seed))
    data_path = first_path(seed) if both_paths else "userspace"
    with (
        make_world(
            report.chronicle,
            netfilter=netfilter,
            data_path=data_path,
            balances=balances_of(f"{seed} first"),
            links=report.links,
        ) as world,
        tempfile.TemporaryDirectory() as directory,
        _capture(world, logs),
    ):
        for act in acts(seed, seconds, both_paths=both_paths):
            report.chronicle.note(f"act: {act.name}")
            try:
                with (
                    hostile.knocking(world.network.client, f"{seed} hostile"),
                    _clients(world, seed, Path(directory), report.outcomes),
                ):
                    world.play(act)
                    world.heal(act.data_path, act.balances)
                with report.chronicle.during(report.chronicle.quiet, "quiet"):
                    report.measures[act.name] = audit.look(world, report.faults)
            finally:
                if logs is not None:
                    _keep_logs(world, report, logs)
                    _judge(report)
                    (logs / "report").write_text(report.text())
                    _keep_outcomes(report, Verdict(report.chronicle, grace_s=GRACE_S), logs / "outcomes.json")
        report.faults += _grown(report) + slow_repairs(report.chronicle)
        report.faults += [fault for daemon in world.daemons for fault in _in_log(daemon.log())]
    _judge(report)
    return report


def _judge(report: Report) -> None:
    report.tally = tally(Verdict(report.chronicle, grace_s=GRACE_S), report.outcomes, quiet=report.chronicle.quiet)


def _grown(report: Report) -> list[str]:
    return report.measures["endurance"].grown(report.measures["warming up"])


def _in_log(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if line.startswith("Traceback") or (line.split(" ")[1:2] == ["error"] and not EXPECTED.search(line)):
            yield f"in a log: {line}"


def _keep_logs(world: World, report: Report, logs: Path) -> None:
    logs.mkdir(parents=True, exist_ok=True)
    with (logs / "events").open("w") as out:
        for when, what in report.chronicle.notes:
            print(f"{when - report.began:8.2f} {what}", file=out)
    for number, daemon in enumerate(world.daemons):
        (logs / f"{number:03}.log").write_text(daemon.log())


def _keep_outcomes(report: Report, verdict: Verdict, path: Path) -> None:
    """Those that were not simply right, with times since the beginning."""
    with path.open("w") as out:
        print(json.dumps({"began": report.began}), file=out)
        for seen in report.outcomes:
            if (why := verdict.of(seen)) != "":
                times = {"began": round(seen.began - report.began, 3), "ended": round(seen.ended - report.began, 3)}
                print(json.dumps({**seen._asdict(), **times, "why": why}), file=out)


@contextmanager
def _capture(world: World, logs: Path | None) -> Iterator[None]:
    """Begins and resets of connections on the node go to a file beside the logs."""
    if logs is None:
        yield
        return
    logs.mkdir(parents=True, exist_ok=True)
    with (logs / "packets").open("w") as out:
        command = [sys.executable, "-m", "tests.system.soak.capture"]
        process = world.network.node.popen(command, stdout=out, cwd=ROOT)
        world.observers.add(process.pid)
        try:
            yield
        finally:
            process.kill()
            process.wait()


@contextmanager
def _clients(world: World, seed: int, directory: Path, outcomes: list[Outcome]) -> Iterator[None]:
    """The traffic; their outcomes are there at the end."""
    running = []
    for host in (world.network.client, world.network.node):
        path = directory / host.name
        command = [sys.executable, "-m", "tests.system.soak.clients", host.name, str(seed)]
        with path.open("w") as out:
            running.append((host.popen(command, stdin=PIPE, stdout=out, cwd=ROOT), path))
    try:
        yield
    finally:
        for process, path in running:
            process.communicate(timeout=90)
            assert process.returncode == 0, f"clients ended with status {process.returncode}"
            outcomes += [outcome(line) for line in path.read_text().splitlines()]
