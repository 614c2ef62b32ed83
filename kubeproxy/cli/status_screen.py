"""Draws the status on a terminal with tables and colours. Other outputs get plain text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from kubeproxy.observability.status import text as status_text
from kubeproxy.observability.status import wording as words
from kubeproxy.observability.status.document import (
    EndpointStatus,
    FrontendStatus,
    ServiceStatus,
    Standing,
    State,
    Status,
)
from kubeproxy.observability.status.table import Column, laid_out

_STATE = {
    State.PROBLEM: "bold red",
    State.EJECTED: "red",
    State.EMPTY: "yellow",
    State.WAITING: "yellow",
    State.OK: "green",
}
_COLOURS = {
    Standing.READY: "green",
    Standing.EJECTED: "red",
    Standing.PROBING: "yellow",
    Standing.TERMINATING: "yellow",
    Standing.DRAINING: "yellow",
    Standing.UNREADY: "bright_black",
    Standing.ELSEWHERE: "bright_black",
}
_BARS = " ▁▂▃▄▅▆▇█"
TREND = 20
"""The number of points in a trend line."""
MOST_WARNINGS = 3
"""The largest number of recent warnings shown with --watch."""
LEAST_ROWS = 3
"""The smallest number of lines of the table, even if the terminal is too low."""
FULL_HEAD = 40
"""A terminal with at least this number of lines shows all facts about the daemon above the table."""
IN_SHORT = ("config", "traffic", "services")
"""The facts that a terminal with fewer lines shows."""


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The symbols that the terminal's encoding can show."""

    standings: Mapping[Standing, str]
    bars: str
    more: str


_GLYPHS: Final = Glyphs(dict(zip(Standing, "●■◆◐◒○·", strict=True)), _BARS, "…")
_ASCII: Final = Glyphs(dict(zip(Standing, "*x!~%-.", strict=True)), " .:-=+*#@", "...")


def draw(status: Status, *, detailed: bool, height: int | None, console: Console | None = None) -> None:
    """Draw the status on the console, by default standard output. `height` is the largest number of lines, or None for
    no limit."""
    console = console or Console(highlight=False, markup=False)
    glyphs = _GLYPHS if console.encoding.lower().startswith("utf") else _ASCII
    head = list(_head(status, in_short=height is not None and height < FULL_HEAD))
    if detailed:
        console.print(Group(*head[:1], *(_details(service, glyphs) for service in status.services)))
        return
    used = sum(len(console.render_lines(part)) for part in head)
    # Two lines are for the note about what is left out, and for the cursor.
    room = None if height is None else max(LEAST_ROWS, height - used - 2)
    shown, lines = _table(status.services, console.width, room, glyphs)
    console.print(Group(*head), soft_wrap=False)
    console.print(Group(*lines), crop=False)  # Let the terminal wrap lines that are too long.
    left = status.matched - status.offset - shown
    if left > 0:
        console.print(Text(f"  {glyphs.more} and {left:,} more", style="dim"))
    # The remaining lines show the log. Long lines are wrapped, because their end names the endpoint.
    free = None if room is None else room - len(lines)
    for part in _warnings(status, MOST_WARNINGS if height is not None else status_text.WARNINGS_SHOWN):
        taken = len(console.render_lines(part))
        if free is not None and (free := free - taken) < 0:
            break
        console.print(part)


def _warnings(status: Status, most: int) -> Iterator[RenderableType]:
    """Yield the recent warnings and errors, below a rule."""
    if status.recent_warnings:
        yield Rule("recent warnings and errors", style="dim", align="left")
    for one in status.recent_warnings[:most]:
        yield Text(status_text.recent_warning(one), style="yellow" if one.level == "warning" else "red")


def _head(status: Status, *, in_short: bool) -> Iterator[RenderableType]:
    well = "yellow" if status.draining or status.problems else "green"
    colour = well if status.healthy or status.draining else "bold red"
    yield Text(status_text.headline(status), style=colour)
    for problem in status.problems:
        yield Text(f"  {problem}", style="red")
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column()
    shown = ""
    for name, text in status_text.facts(status):
        shown = name or shown
        if not in_short or shown in IN_SHORT:
            grid.add_row(name, Text(text))
    yield grid


def _table(
    services: Sequence[ServiceStatus], width: int, room: int | None, glyphs: Glyphs
) -> tuple[int, list[RenderableType]]:
    """Return the number of Services that fit, and the lines of the table. Colours repeat what the words say."""
    trend = Column(
        "TREND",
        lambda service: sparkline(service.trend.connections[-TREND:], glyphs.bars) if service.trend else "",
        drop=9,
    )
    lines: list[RenderableType] = []
    shown = 0
    # The column widths must not depend on Services that are not shown.
    services = services if room is None else services[:room]
    more = (trend,) if any(service.trend for service in services) else ()
    for row in laid_out(services, width=width, more=more, note_lines=None if room is None else 1):
        if row.service is None:
            lines.append(Text(row.lines[0], style="dim", no_wrap=True))
            continue
        if room is not None and len(lines) + len(row.lines) > room:
            break
        shown += 1
        colour = _STATE[row.service.state]
        for number, line in enumerate(row.lines):
            text = Text(line, no_wrap=True, overflow="ignore")
            if number == 0:
                text.stylize(colour, 0, len(row.service.state))
            text.stylize(colour, row.note_at if number == 0 else 0)
            lines.append(text)
    return shown, lines


def sparkline(points: Iterable[float], bars: str = _BARS) -> str:
    """Draw a line of one character for each point, scaled to the highest point. Every value above 0 is visible."""
    points = list(points)
    most = max(points, default=0.0)
    return "".join(bars[max(1, round(8 * point / most))] if point > 0 else " " for point in points)


def _details(service: ServiceStatus, glyphs: Glyphs) -> RenderableType:
    colour = _STATE[service.state]
    head = [
        Rule(Text(f"{service.namespace}/{service.name}: {service.state}", style=colour), style=colour, align="left")
    ]
    plain = list(status_text.details(service))
    facts = [Text(line) for line in plain[1 : plain.index("") if "" in plain else None]]
    return Group(*head, *facts, *(_listener(frontend, glyphs) for frontend in service.frontends))


def _listener(frontend: FrontendStatus, glyphs: Glyphs) -> RenderableType:
    plain = list(status_text.listener(frontend))
    facts = [line for line in plain if not line.lstrip().startswith(tuple(Standing))]
    table = Table(box=None, show_header=False, padding=(0, 1))
    for endpoint in frontend.endpoints:
        colour = _COLOURS[endpoint.standing]
        mark = Text(f"{glyphs.standings[endpoint.standing]} {endpoint.standing}", style=colour)
        table.add_row("  ", mark, endpoint.address, endpoint.node, _remark(endpoint))
    return Group("", Text(f"  {facts[0]}", style="bold"), *(Text(f"  {line}") for line in facts[1:]), table)


def _remark(endpoint: EndpointStatus) -> Text:
    text = words.endpoint(endpoint) or ("dialed from the client's address" if endpoint.preserved else "")
    return Text(text, style=_COLOURS[endpoint.standing] if endpoint.standing is not Standing.READY else "dim")
