"""Turns the figures into medians, ratios, aims, a table and JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol

from tests.tools.bench.measures import Metric

DIRECT = "direct"
DNAT = "dnat"
_ADDED = "added_"
_TIMES = "times_dnat_"


Figures = Mapping[str, float]
"""Figures by the keys of metrics."""


class Described(Protocol):
    """The properties of a measure that a report uses."""

    name: str
    title: str

    @property
    def metrics(self) -> Sequence[Metric]:
        """The metrics of the measure."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The figures of one measure of one peer in one round."""

    round: int
    measure: str
    peer: str
    figures: Figures


@dataclass(frozen=True, slots=True)
class Aim:
    """The target of one of ours: at least (or at most) a figure, or `beside` a peer so many times its figure."""

    measure: str
    metric: str
    ours: str
    figure: float
    beside: str | None = None
    at_most: bool = False

    def met(self, figure: float) -> bool:
        """Whether that figure, or ratio, is good enough."""
        return figure <= self.figure if self.at_most else figure >= self.figure

    def __str__(self) -> str:
        beside = "" if self.beside is None else f" × {self.beside}"
        return f"{'≤' if self.at_most else '≥'} {self.figure:g}{beside}"


def _aims() -> Iterable[Aim]:
    for measure, one, three in (("requests", 1.0, 0.95), ("connections", 0.95, 0.95)):
        yield Aim(measure, "per_s", "kubeproxy", one, "haproxy")
        yield Aim(measure, "per_s", "kubeproxy3", three, "haproxy3")
        yield Aim(measure, "per_s", "kubeproxy3", 2.0, "kubeproxy")
    for measure in ("bulk1", "bulk8"):
        yield Aim(measure, "gbit_per_s", "kubeproxy", 1.5, "haproxy")
        yield Aim(measure, "gbit_per_s", "kubeproxy", 0.9, DIRECT)
    for measure in ("bulk1", "bulk8"):
        yield Aim(measure, "cpu_s", "kubeproxy", 1.0, "haproxy", at_most=True)
    yield Aim("connections", "per_s", "kubeproxy", 1.05, "haproxy+nat")
    yield Aim("connections", "cpu_s", "kubeproxy", 1.0, "haproxy+nat", at_most=True)
    for metric in ("added_p50_us", "added_p99_us"):
        yield Aim("latency", metric, "kubeproxy", 1.0, "haproxy", at_most=True)
    for measure in ("requests", "connections"):
        yield Aim(measure, "per_s", "kernel", 0.95, DNAT)
        yield Aim(measure, "times_dnat_all_cpu_s", "kernel", 1.10, at_most=True)
    yield Aim("udp", "per_s", "kubeproxy", 1.0, "nginx")
    yield Aim("idle", "pss_kib", "kubeproxy", 3.0, at_most=True)
    for source, most in (("manifests", 90.0), ("API", 150.0)):
        yield Aim("standing", "pss_mib", source, most, at_most=True)
        yield Aim("standing", "worker_mib", source, 25.0, at_most=True)
        yield Aim("scale", "last_s", source, 10.0, at_most=True)
    yield Aim("scale", "change_p99_ms", "API", 100.0, at_most=True)
    yield Aim("scale", "meanwhile_ratio", "under-load", 2.0, at_most=True)


AIMS = tuple(_aims())


@dataclass(slots=True)
class Results:
    """All samples so far."""

    samples: list[Sample] = field(default_factory=list)

    def figures(self, measure: str, metric: str, peer: str) -> dict[int, float]:
        """The figures by round. An `added_` metric is the difference to the direct path in the same round, a
        `times_dnat_` metric the ratio to plain DNAT."""
        if metric.startswith(_TIMES):
            metric = metric.removeprefix(_TIMES)
            dnat = self.figures(measure, metric, DNAT)
            return {
                number: figure / dnat[number]
                for number, figure in self.figures(measure, metric, peer).items()
                if dnat.get(number)
            }
        if metric.startswith(_ADDED):
            metric = metric.removeprefix(_ADDED)
            direct = self.figures(measure, metric, DIRECT)
            return {
                number: figure - direct[number]
                for number, figure in self.figures(measure, metric, peer).items()
                if number in direct and peer != DIRECT
            }
        return {
            sample.round: sample.figures[metric]
            for sample in self.samples
            if (sample.measure, sample.peer) == (measure, peer) and metric in sample.figures
        }

    def median(self, measure: str, metric: str, peer: str) -> float | None:
        """The median of the rounds; None without any."""
        figures = self.figures(measure, metric, peer)
        return median(figures.values()) if figures else None

    def ratio(self, measure: str, metric: str, peer: str, beside: str) -> float | None:
        """The median of the rounds' ratios: a slow round slows both sides of its ratio. None where there is no figure
        to compare, or only zero."""
        ours, theirs = self.figures(measure, metric, peer), self.figures(measure, metric, beside)
        ratios = [ours[number] / theirs[number] for number in ours.keys() & theirs.keys() if theirs[number]]
        return median(ratios) if ratios else None

    def standing(self, aim: Aim) -> float | None:
        """The figure or ratio of an aim; None where it was not measured."""
        if aim.beside is None:
            return self.median(aim.measure, aim.metric, aim.ours)
        return self.ratio(aim.measure, aim.metric, aim.ours, aim.beside)


@dataclass(frozen=True, slots=True)
class Section:
    """One table: some measures of some peers."""

    title: str
    peers: Sequence[str]
    measures: Sequence[Described]


def table(results: Results, sections: Iterable[Section], aims: Sequence[Aim] = AIMS) -> str:
    """The table for people: medians by peer, and our distance to the aims."""
    return "\n\n".join(text for section in sections if (text := _section(results, section, aims)) is not None)


def _section(results: Results, section: Section, aims: Sequence[Aim]) -> str | None:
    lines: list[list[str]] = [[section.title, *section.peers, "aim"]]
    for measure in section.measures:
        rows = [row for metric in measure.metrics if (row := _row(results, section, measure, metric, aims))]
        if rows:
            lines += [[measure.title], *rows]
    return _aligned(lines) if len(lines) > 1 else None


def _row(
    results: Results, section: Section, measure: Described, metric: Metric, aims: Sequence[Aim]
) -> list[str] | None:
    medians = [results.median(measure.name, metric.key, peer) for peer in section.peers]
    if all(figure is None for figure in medians) or (metric.rare and not any(medians)):
        return None
    here = [
        (aim, standing)
        for aim in aims
        if (aim.measure, aim.metric) == (measure.name, metric.key)
        and aim.ours in section.peers
        and (standing := results.standing(aim)) is not None
    ]
    named = len({aim.ours for aim, _ in here}) > 1
    verdicts = [verdict(aim, standing, named=named) for aim, standing in here]
    return [
        f"  {metric.title}",
        *("–" if figure is None else f"{figure:,.{metric.digits}f}" for figure in medians),
        "; ".join(verdicts),
    ]


def verdict(aim: Aim, standing: float, *, named: bool = False) -> str:
    """Like ``✓ 1.03 ≥ 1 × haproxy``."""
    mark = "✓" if aim.met(standing) else "✗"
    ours = f"{aim.ours} " if named else ""
    digits = 2 if abs(standing) < 100 else 0
    return f"{mark} {ours}{standing:.{digits}f} {aim}"


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    """Aligns columns: the first and the last to the left, the others to the right. A line of one cell spans all of
    them."""
    columns = len(lines[0])
    widths = [max(len(line[column]) for line in lines if len(line) == columns) for column in range(columns)]
    text = []
    for line in lines:
        if len(line) == 1:
            text.append(line[0])
            continue
        cells = [f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True)]
        cells[0], cells[-1] = f"{line[0]:<{widths[0]}}", line[-1]
        text.append("  ".join(cells).rstrip())
    return "\n".join(text)


_BEGIN, _END = "<!-- figures: begin -->", "<!-- figures: end -->"


def put_between_marks(page: str, text: str) -> str:
    """Replaces the text between the marks of a page. ValueError where it has none."""
    head, begin, rest = page.partition(_BEGIN)
    _, end, tail = rest.partition(_END)
    if not (begin and end):
        raise ValueError(f"the page has no {_BEGIN} and {_END}")
    return f"{head}{begin}\n```text\n{text}\n```\n{end}{tail}"


def document(results: Results, sections: Iterable[Section], aims: Sequence[Aim] = AIMS, **facts: Any) -> dict[str, Any]:
    """The report for programs: the facts, every sample, and the content of `table`."""
    summary: dict[str, Any] = {}
    for section in sections:
        for measure in section.measures:
            for metric in measure.metrics:
                medians = {peer: results.median(measure.name, metric.key, peer) for peer in section.peers}
                known = {peer: figure for peer, figure in medians.items() if figure is not None}
                entry = summary.setdefault(measure.name, {}).setdefault(metric.key, {"title": metric.title})
                entry.setdefault("median", {}).update(known)
    verdicts = []
    for aim in aims:
        standing = results.standing(aim)
        if standing is not None:
            verdicts.append(
                {
                    "measure": aim.measure,
                    "metric": aim.metric,
                    "ours": aim.ours,
                    "aim": str(aim),
                    "standing": standing,
                    "met": aim.met(standing),
                }
            )
    return {
        **facts,
        "summary": summary,
        "aims": verdicts,
        "samples": [
            {
                "round": sample.round,
                "measure": sample.measure,
                "peer": sample.peer,
                "figures": dict(sample.figures),
            }
            for sample in results.samples
        ],
    }
