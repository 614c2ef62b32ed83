"""What becomes of the figures: medians, ratios, aims, a table and JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from tests.bench.measures import Measure

OURS = ("kubeproxy", "bare")
"""The peers that are ours: the first of them that was measured is held beside all others."""
DIRECT = "direct"
_ADDED = "added_"


@dataclass(frozen=True, slots=True)
class Sample:
    """The figures of one measure of one peer in one round."""

    round: int
    measure: str
    peer: str
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Aim:
    """Where ours should stand: at least (or at most) `factor` times the other's figure."""

    measure: str
    metric: str
    factor: float
    beside: str
    at_most: bool = False

    def met(self, ratio: float) -> bool:
        """Whether that ratio is good enough."""
        return ratio <= self.factor if self.at_most else ratio >= self.factor

    def __str__(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.factor:g} × {self.beside}"


AIMS = (
    Aim("requests", "per_s", 0.8, "haproxy"),
    Aim("connections", "per_s", 0.7, "haproxy"),
    Aim("bulk8", "gbit_per_s", 1.3, "haproxy"),
)


@dataclass(slots=True)
class Results:
    """All samples so far."""

    peers: Sequence[str]
    samples: list[Sample] = field(default_factory=list)

    @property
    def ours(self) -> str | None:
        """The peer that is held beside the others."""
        return next((name for name in OURS if name in self.peers), None)

    def ratio_of_ours(self, measure: str, metric: str, beside: str) -> float | None:
        """`ratio` of ours; None without us."""
        return None if self.ours is None else self.ratio(measure, metric, self.ours, beside)

    def figures(self, measure: str, metric: str, peer: str) -> dict[int, float]:
        """By round; an `added_` metric is what the peer has more of than the direct path had in the same round."""
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
            if (sample.measure, sample.peer) == (measure, peer)
        }

    def median(self, measure: str, metric: str, peer: str) -> float | None:
        """Over the rounds; None without any."""
        figures = self.figures(measure, metric, peer)
        return median(figures.values()) if figures else None

    def ratio(self, measure: str, metric: str, peer: str, beside: str) -> float | None:
        """The median of the rounds' ratios: what slows a whole round slows both sides of its ratio. None where there
        is nothing to compare, or only with zero."""
        ours, theirs = self.figures(measure, metric, peer), self.figures(measure, metric, beside)
        ratios = [ours[number] / theirs[number] for number in ours.keys() & theirs.keys() if theirs[number]]
        return median(ratios) if ratios else None


def table(results: Results, measures: Iterable[Measure], aims: Sequence[Aim] = AIMS) -> str:
    """For people: medians by peer, ours beside the others, and how that stands to the aims."""
    others = [] if results.ours is None else [peer for peer in results.peers if peer != results.ours]
    lines = [["", *results.peers, *(f"÷ {other}" for other in others), "aim" if others else ""]]
    for measure in measures:
        lines.append([measure.title])
        for metric in measure.metrics:
            medians = [results.median(measure.name, metric.key, peer) for peer in results.peers]
            if metric.rare and not any(medians):
                continue
            ratios = [
                results.ratio_of_ours(measure.name, metric.key, other) if metric.compared else None for other in others
            ]
            verdicts = [
                f"{aim}: {'met' if aim.met(ratio) else 'MISSED'}"
                for aim in aims
                if (aim.measure, aim.metric) == (measure.name, metric.key)
                and (ratio := results.ratio_of_ours(aim.measure, aim.metric, aim.beside)) is not None
            ]
            lines.append(
                [
                    f"  {metric.title}",
                    *("–" if figure is None else f"{figure:,.{metric.digits}f}" for figure in medians),
                    *("" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
                    ", ".join(verdicts),
                ]
            )
    return _aligned(lines)


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    """Columns: the first and the last to the left, the others to the right. A line of one cell spans them all."""
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


def document(results: Results, measures: Iterable[Measure], aims: Sequence[Aim] = AIMS, **facts: Any) -> dict[str, Any]:
    """For programs: the facts given, every sample, and what `table` shows."""
    summary: dict[str, Any] = {}
    for measure in measures:
        for metric in measure.metrics:
            summary.setdefault(measure.name, {})[metric.key] = {
                "title": metric.title,
                "median": {peer: results.median(measure.name, metric.key, peer) for peer in results.peers},
                "ratio": {
                    other: results.ratio_of_ours(measure.name, metric.key, other)
                    for other in results.peers
                    if metric.compared and other != results.ours
                },
            }
    verdicts = []
    for aim in aims:
        ratio = results.ratio_of_ours(aim.measure, aim.metric, aim.beside)
        if ratio is not None:
            verdicts.append(
                {
                    "measure": aim.measure,
                    "metric": aim.metric,
                    "aim": str(aim),
                    "ratio": ratio,
                    "met": aim.met(ratio),
                }
            )
    return {
        **facts,
        "ours": results.ours,
        "peers": list(results.peers),
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
