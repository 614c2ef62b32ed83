"""The figures as a picture: an SVG of small bar charts, readable on dark and on light. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from tests.tools.bench.report import Results


@dataclass(frozen=True, slots=True)
class Panel:
    """One small chart: a metric of some peers, those measured."""

    title: str
    note: str
    measure: str
    metric: str
    peers: Sequence[str]
    digits: int = 0


_ONE = ("direct", "haproxy", "nginx", "streams", "kubeproxy")
PANELS = (
    Panel("Requests per second", "one core, 64 kept-alive connections", "requests", "per_s", _ONE),
    Panel("New connections per second", "one core", "connections", "per_s", _ONE),
    Panel("Bulk, Gbit/s", "one core, 8 streams", "bulk8", "gbit_per_s", _ONE, digits=1),
    Panel("UDP round trips per second", "one core, 64 clients", "udp", "per_s", ("direct", "nginx", "kubeproxy")),
    Panel("CPU seconds per GB", "8 streams; less is better", "bulk8", "cpu_s", _ONE[1:], digits=2),
    Panel("CPU seconds per 10,000 connections", "less is better", "connections", "cpu_s", _ONE[1:], digits=2),
    Panel("Requests per second", "every core", "requests", "per_s", ("direct*", "haproxy3", "nginx3", "kubeproxy3")),
    Panel(
        "New connections per second",
        "every core",
        "connections",
        "per_s",
        ("direct*", "haproxy3", "nginx3", "kubeproxy3"),
    ),
    Panel("Latency added, µs", "median; less is better", "latency", "added_p50_us", _ONE[1:], digits=0),
    Panel("KiB per idle connection", "less is better", "idle", "pss_kib", ("haproxy", "nginx", "kubeproxy"), digits=1),
)

_STYLE = """\
.ground{fill:#fff}.title{fill:#1f2328;font-weight:600;font-size:13px}.note{fill:#656d76;font-size:11px}
.label,.figure{fill:#1f2328;font-size:12px}.theirs{fill:#afb8c1}.ours{fill:#0969da}
@media (prefers-color-scheme:dark){.ground{fill:#0d1117}.title,.label,.figure{fill:#e6edf3}.note{fill:#8d96a0}
.theirs{fill:#484f58}.ours{fill:#4493f8}}"""

_WIDTH, _PER_ROW, _MARGIN = 400, 2, 20
_LABEL, _FIGURE, _BAR, _STEP, _HEAD = 78, 62, 14, 20, 44


def chart(results: Results, panels: Sequence[Panel] = PANELS) -> str:
    """The SVG's text; panels of which nothing was measured are left out."""
    filled = [(panel, bars) for panel in panels if (bars := _bars(results, panel))]
    parts: list[str] = []
    top = _MARGIN
    for start in range(0, len(filled), _PER_ROW):
        row = filled[start : start + _PER_ROW]
        for column, (panel, bars) in enumerate(row):
            parts += _draw(panel, bars, _MARGIN + column * (_WIDTH + _MARGIN), top)
        top += _HEAD + _STEP * max(len(bars) for _, bars in row) + _MARGIN
    width = _MARGIN + _PER_ROW * (_WIDTH + _MARGIN)
    font = "system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top}" width="{width}" height="{top}"'
            f' font-family="{font}" role="img" aria-label="kubeproxy beside its peers">',
            f"<style>{_STYLE}</style>",
            f'<rect class="ground" width="{width}" height="{top}" rx="6"/>',
            *parts,
            "</svg>\n",
        ]
    )


def _bars(results: Results, panel: Panel) -> list[tuple[str, float]]:
    medians = ((peer, results.median(panel.measure, panel.metric, peer)) for peer in panel.peers)
    return [(peer, figure) for peer, figure in medians if figure is not None]


def _draw(panel: Panel, bars: Sequence[tuple[str, float]], left: int, top: int) -> Iterator[str]:
    yield f'<text class="title" x="{left}" y="{top + 12}">{escape(panel.title)}</text>'
    yield f'<text class="note" x="{left}" y="{top + 28}">{escape(panel.note)}</text>'
    longest = max(figure for _, figure in bars) or 1.0
    room = _WIDTH - _LABEL - _FIGURE
    for index, (peer, figure) in enumerate(bars):
        y = top + _HEAD + index * _STEP
        length = max(1.0, room * max(0.0, figure) / longest)
        kind = "ours" if peer.startswith("kubeproxy") else "theirs"
        middle = y + _BAR - 3
        yield f'<text class="label" x="{left + _LABEL - 8}" y="{middle}" text-anchor="end">{escape(peer)}</text>'
        yield f'<rect class="{kind}" x="{left + _LABEL}" y="{y}" width="{length:.1f}" height="{_BAR}" rx="2"/>'
        yield (
            f'<text class="figure" x="{left + _LABEL + length + 6:.1f}" y="{middle}">{figure:,.{panel.digits}f}</text>'
        )
