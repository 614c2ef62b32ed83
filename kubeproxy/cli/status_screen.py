"""Draws the status on a terminal: the same facts as in a pipe, in tables and colours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

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

_STATE = {
    State.PROBLEM: "bold red",
    State.EJECTED: "red",
    State.EMPTY: "yellow",
    State.WAITING: "yellow",
    State.OK: "green",
}
_STANDING = {
    Standing.READY: ("●", "green"),
    Standing.EJECTED: ("■", "red"),
    Standing.PROBING: ("◆", "yellow"),
    Standing.TERMINATING: ("◐", "yellow"),
    Standing.UNREADY: ("○", "bright_black"),
    Standing.ELSEWHERE: ("·", "bright_black"),
}
_BARS = " ▁▂▃▄▅▆▇█"
TREND = 20
"""Shown points of a trend."""
DOTS = 12
"""Endpoints shown as dots in a row."""
_BELOW = 9
"""Lines reserved for recent warnings and for headings."""


def draw(status: Status, *, detailed: bool, height: int | None, console: Console | None = None) -> None:
    """Draw on the console (standard output); `height`: the maximum number of lines."""
    console = console or Console(highlight=False)
    head = list(_head(status))
    if detailed:
        console.print(Group(*head[:1], *(_details(service) for service in status.services)))
        return
    used = sum(len(console.render_lines(part)) for part in head)
    room = None if height is None else max(3, height - used - _BELOW)
    shown = status.services[:room]
    console.print(Group(*head, _table(shown)))
    left = status.matched - status.offset - len(shown)
    if left > 0:
        console.print(f"  [dim]… and {left:,} more[/dim]")
    if status.recent_warnings:
        console.print(Rule("recent warnings and errors", style="dim", align="left"))
        for one in status.recent_warnings[: 3 if height is not None else status_text.WARNINGS_SHOWN]:
            colour = "yellow" if one.level == "warning" else "red"
            console.print(
                Text(status_text.recent_warning(one), style=colour), overflow="ellipsis", no_wrap=height is not None
            )


def _head(status: Status) -> Iterator[RenderableType]:
    colour = "yellow" if status.draining else "green" if status.healthy else "bold red"
    yield Text(status_text.headline(status), style=colour)
    for problem in status.problems:
        yield Text(f"  {problem}", style="red")
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column()
    for name, text in status_text.facts(status):
        grid.add_row(name, Text(text))
    yield grid


def _table(services: Iterable[ServiceStatus]) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False, expand=False)
    table.add_column("SERVICE", no_wrap=True)
    table.add_column("ENDPOINTS", no_wrap=True)
    table.add_column("CONN/S", justify="right")
    table.add_column("", no_wrap=True)
    table.add_column("BYTES/S", justify="right", no_wrap=True)
    table.add_column("OPEN", justify="right")
    table.add_column("FAILED", justify="right")
    table.add_column("NOTE", overflow="ellipsis", no_wrap=True)
    for service in services:
        rates, trend, failed = service.rates, service.trend, service.traffic.failed
        colour = _STATE[service.state]
        table.add_row(
            Text.assemble(("● ", colour), (f"{service.namespace}/", "dim"), service.name),
            _dots(service),
            words.rate(rates.connections if rates else None),
            Text(sparkline(trend.connections[-TREND:] if trend else ()), style="blue"),
            words.size(rates.bytes_in + rates.bytes_out) if rates else "-",
            str(service.traffic.active),
            Text(str(failed), style="red" if failed else "dim"),
            Text(words.note(service), style=colour),
        )
    return table


def sparkline(points: Iterable[float]) -> str:
    """One character per point, scaled to the highest; any value above 0 is visible."""
    points = list(points)
    most = max(points, default=0.0)
    return "".join(_BARS[max(1, round(8 * point / most))] if point > 0 else " " for point in points)


def _dots(service: ServiceStatus) -> Text:
    endpoints = {it.address: it for frontend in service.frontends for it in frontend.endpoints}
    text = Text()
    for it in list(endpoints.values())[:DOTS]:
        text.append(*_STANDING[it.standing])
    if len(endpoints) > DOTS:
        text.append(f" +{len(endpoints) - DOTS}", style="dim")
    return text if endpoints else Text("none", style="yellow")


def _details(service: ServiceStatus) -> RenderableType:
    colour = _STATE[service.state]
    head = [
        Rule(Text(f"{service.namespace}/{service.name}: {service.state}", style=colour), style=colour, align="left")
    ]
    plain = list(status_text.details(service))
    facts = [Text(line) for line in plain[1 : plain.index("") if "" in plain else None]]
    return Group(*head, *facts, *(_listener(frontend) for frontend in service.frontends))


def _listener(frontend: FrontendStatus) -> RenderableType:
    plain = list(status_text.listener(frontend))
    facts = [line for line in plain if not line.lstrip().startswith(tuple(Standing))]
    table = Table(box=None, show_header=False, padding=(0, 1))
    for it in frontend.endpoints:
        table.add_row("  ", Text(*_STANDING[it.standing]), it.address, it.node, _remark(it))
    return Group("", Text(f"  {facts[0]}", style="bold"), *(Text(f"  {line}") for line in facts[1:]), table)


def _remark(endpoint: EndpointStatus) -> Text:
    text = words.endpoint(endpoint) or ("dialed from the client's address" if endpoint.preserved else "")
    return Text(text, style=_STANDING[endpoint.standing][1] if endpoint.standing is not Standing.READY else "dim")
