"""What `kubeproxy status` draws on a terminal."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from kubeproxy.cli.status_screen import draw, sparkline
from kubeproxy.observability.status import text as status_text
from kubeproxy.observability.status.document import State, Status
from kubeproxy.observability.status.traffic_history import History
from tests.observability.status.observation import NOW, shop
from tests.observability.status.test_build import whole


def drawn(status: Status, *, detailed: bool = False, height: int | None = None, width: int = 140) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None, highlight=False)
    draw(status, detailed=detailed, height=height, console=console)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue().splitlines()


def test_the_screen_has_the_facts_of_the_text() -> None:
    lines = drawn(whole(shop()))
    text = "\n".join(lines)
    assert "kubeproxy" in lines[0]
    assert "healthy" in lines[0]
    row = next(line for line in lines if "shop/web" in line)
    assert row.split()[:2] == ["ejected", "shop/web"]
    assert "10.3.1.2:8080 refuses (3 times in a row)" in row
    assert "node port 30090" in text
    assert "watch ended source=kubernetes (2 times)" in text


def test_it_fits_the_terminal() -> None:
    status = whole(shop())
    assert len(drawn(status, height=20)) <= 20
    assert any("and 1 more" in line for line in drawn(status, height=9))
    assert all(len(line) <= 60 for line in drawn(status, width=60))


def many(count: int, *, name: str = "web") -> Status:
    """A status with so many ejected Services, and the log that belongs to them."""
    status = whole(shop())
    first = next(it for it in status.services if it.state is State.EJECTED)
    services = tuple(replace(first, name=f"{name}-{number}") for number in range(count))
    return replace(status, services=services, matched=count, recent_warnings=status.recent_warnings * 3)


def test_watched_on_a_small_terminal_services_come_before_the_log() -> None:
    lines = drawn(many(18), height=24, width=80)
    assert len(lines) <= 24
    rows = [line for line in lines if line.startswith("ejected")]
    assert len(rows) >= 9
    assert sum("watch ended" in line for line in lines) == 0, "the log has what Services leave"
    lines = drawn(many(2), height=24, width=80)
    assert [line.split()[1] for line in lines if line.startswith("ejected")] == ["shop/web-0", "shop/web-1"]
    assert sum("watch ended" in line for line in lines) == 3


def test_a_name_longer_than_the_terminal_is_wrapped_and_not_cut() -> None:
    name = "a-very-long-service-name-for-a-terminal-that-is-narrow-for-it"
    assert f"shop/{name}-0" in "\n".join(drawn(many(1, name=name), height=24, width=60))


@pytest.mark.parametrize("width", [60, 80, 100, 120, 150])
def test_a_narrow_terminal_drops_columns_and_never_cuts_a_name(width: int) -> None:
    """The order and the names of the columns are those of the pipe."""
    status = whole(shop())
    lines = drawn(status, width=width)
    header = next(line for line in lines if line.startswith("STATE")).split()
    pipe = next(line for line in status_text.summary(status) if line.startswith("STATE")).split()
    assert [name for name in pipe if name in header] == [name for name in header if name != "TREND"]
    assert {"STATE", "SERVICE", "ENDPOINTS"} <= set(header)
    for service in status.services:
        row = next(line for line in lines if f"{service.namespace}/{service.name}" in line)
        assert row.split()[0] == service.state
    text = " ".join(" ".join(lines).split())
    assert "10.3.1.2:8080 refuses (3 times in a row); next probe in" in _without_columns(lines)
    assert "watch ended source=kubernetes (2 times)" in text


def _without_columns(lines: list[str]) -> str:
    """The words of the note of shop/web, beside or below its row."""
    start = next(number for number, line in enumerate(lines) if "shop/web" in line)
    note = [lines[start][lines[start].find("10.3.1.2") :] if "10.3.1.2" in lines[start] else ""]
    note += [line.strip() for line in lines[start + 1 : start + 4] if line.startswith("  ")]
    return " ".join(" ".join(note).split())


def test_a_terminal_without_utf_8() -> None:
    """Only characters of ASCII; the states are words anyway."""
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii", errors="replace")
    console = Console(file=file, width=100, force_terminal=True, color_system=None, highlight=False)
    draw(whole(shop(), service="web"), detailed=True, height=None, console=console)
    file.flush()
    text = raw.getvalue().decode("ascii")
    assert "x ejected" in text
    assert "* ready" in text
    assert "?" not in text


def test_one_service_with_its_endpoints() -> None:
    text = "\n".join(drawn(whole(shop(), service="web"), detailed=True))
    assert "shop/web: ejected" in text
    assert "proxy port 40001" in text
    assert "■ ejected      10.3.1.2:8080  node-2  refuses (3 times in a row); next probe in 4.0s" in text
    assert "○ unready      10.3.3.2:8080" in text


def test_names_are_not_markup() -> None:
    """Square brackets are markup in rich."""
    status = whole(shop())
    faulty = status.services[0].problems[0].replace("is not", "[bold red]is[/] not")
    lines = drawn(with_problem(status, faulty))
    assert any("[bold red]is[/] not" in line for line in lines)


def with_problem(status: Status, problem: str) -> Status:
    first, *others = status.services
    return replace(status, services=(replace(first, problems=(problem,)), *others))


def test_trends_are_drawn() -> None:
    history = History(gap_s=10)
    observation = shop()
    list(history.add({key: type(it)() for key, it in observation.counters.items()}, NOW - 2))
    list(history.add(observation.counters, NOW))
    row = next(line for line in drawn(whole(observation, history=history)) if "shop/web" in line)
    assert "█" in row
    assert "50" in row


@pytest.mark.parametrize(
    ("points", "text"), [((), ""), ((0.0, 0.0), "  "), ((0.0, 0.001, 8.0, 4.0), " ▁█▄"), ((3.0,), "█")]
)
def test_a_sparkline(points: tuple[float, ...], text: str) -> None:
    assert sparkline(points) == text
