"""The progress of a start on a terminal and in the log."""

from __future__ import annotations

import asyncio
import io
import logging
from dataclasses import replace

import pytest
import structlog.testing

from kubeproxy.daemon import startup_progress
from kubeproxy.model.snapshot import Summary

NOTHING = Summary(
    services=0, waiting=0, listeners=0, services_degraded=0, failing=None, listing=("manifests", "kubernetes")
)
UNDER_WAY = replace(NOTHING, services=2500, waiting=7500, listeners=2484, listing=())


@pytest.mark.parametrize(
    ("summary", "expected"),
    [
        (NOTHING, "waits for manifests, kubernetes"),
        (replace(NOTHING, listing=()), "waits for the packet filter"),
        (UNDER_WAY, "2,500 of 10,000 Services have listeners (25 %)"),
        (
            replace(UNDER_WAY, services=10000, waiting=0, listeners=9999),
            "9,999 listeners for 10,000 Services; waits for the packet filter",
        ),
        (replace(UNDER_WAY, failing="netfilter: Operation not permitted"), "netfilter: Operation not permitted"),
    ],
)
def test_progress_in_words(summary: Summary, expected: str) -> None:
    assert startup_progress.words(summary) == expected


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


async def until(stream: io.StringIO, text: str) -> None:
    async with asyncio.timeout(30):
        while text not in stream.getvalue():
            await asyncio.sleep(0.01)


async def test_on_a_terminal_one_line_is_redrawn_and_erased_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(startup_progress, "LINE_S", 0.01)
    terminal, serving, now = Terminal(), asyncio.Event(), NOTHING
    handler = logging.StreamHandler(terminal)
    logging.getLogger().addHandler(handler)
    try:
        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            tasks.create_task(startup_progress.show(lambda: now, serving, as_text=True, stream=terminal))
            await until(terminal, "\r\x1b[Kstarting: waits for manifests, kubernetes")
            now = UNDER_WAY
            await until(terminal, "\r\x1b[Kstarting: 2,500 of 10,000 Services have listeners (25 %)")
            logging.getLogger().warning("something else")
            serving.set()
        assert "\r\x1b[Ksomething else\n" in terminal.getvalue(), "a logged line is not written behind the other"
        assert terminal.getvalue().endswith("\r\x1b[K")
        assert "\n" not in terminal.getvalue().replace("something else\n", "")
        before = terminal.getvalue()
        logging.getLogger().warning("later")
        assert terminal.getvalue() == before + "later\n"
    finally:
        logging.getLogger().removeHandler(handler)


async def test_the_line_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr(startup_progress, "LINE_S", 0.01)
    terminal, serving = Terminal(), asyncio.Event()
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        tasks.create_task(startup_progress.show(lambda: UNDER_WAY, serving, as_text=True, stream=terminal))
        await until(terminal, "\r\x1b[Kstarting: 2,500 of \r")
        serving.set()


@pytest.mark.parametrize(("stream", "as_text", "term"), [
    (io.StringIO(), True, "xterm"), (Terminal(), False, "xterm"), (Terminal(), True, "dumb"),
])  # fmt: skip
async def test_without_a_terminal_progress_is_logged(
    stream: io.StringIO, as_text: bool, term: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(startup_progress, "LOG_S", 0.01)
    serving = asyncio.Event()
    with structlog.testing.capture_logs() as lines:
        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            tasks.create_task(startup_progress.show(lambda: UNDER_WAY, serving, as_text=as_text, stream=stream))
            while len(lines) < 2:
                await asyncio.sleep(0.01)
            serving.set()
    assert stream.getvalue() == ""
    assert lines[0] == {
        "event": "starting",
        "log_level": "info",
        "progress": "2,500 of 10,000 Services have listeners (25 %)",
        "services": 2500,
        "waiting": 7500,
        "listeners": 2484,
    }


async def test_the_line_says_why_a_source_cannot_be_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup_progress, "LOG_S", 0.01)
    waiting, serving = replace(NOTHING, listing=("kubernetes",)), asyncio.Event()
    with structlog.testing.capture_logs() as lines:
        async with asyncio.TaskGroup() as tasks:
            showing = startup_progress.show(lambda: waiting, serving, as_text=False, trouble=lambda: "answered 403")
            tasks.create_task(showing)
            while not lines:
                await asyncio.sleep(0.01)
            serving.set()
    assert lines[0]["progress"] == "waits for kubernetes: answered 403"


async def test_a_short_start_logs_nothing() -> None:
    terminal, serving = Terminal(), asyncio.Event()
    serving.set()
    with structlog.testing.capture_logs() as lines:
        await startup_progress.show(lambda: NOTHING, serving, as_text=False, stream=terminal)
        await startup_progress.show(lambda: NOTHING, serving, as_text=True, stream=terminal)
    assert lines == []
    assert "starting" not in terminal.getvalue()


@pytest.mark.parametrize(("summary", "serving", "stopping", "expected"), [
    (UNDER_WAY, False, False, "starting; 2,500 of 10,000 Services have listeners (25 %)"),
    (UNDER_WAY, True, False, "services: 2500, listeners: 2484, open connections: 7"),
    (
        replace(UNDER_WAY, services_degraded=2, failing="netfilter: table locked"), True, False,
        "services: 2500, listeners: 2484, open connections: 7; services with problems: 2; "
        "cannot be brought up to date: netfilter: table locked",
    ),
    (UNDER_WAY, True, True, "draining; open connections: 7"),
    (UNDER_WAY, False, True, "draining; open connections: 7"),
])  # fmt: skip
def test_status_line_for_the_service_manager(summary: Summary, serving: bool, stopping: bool, expected: str) -> None:
    assert startup_progress.status(summary, connections=7, serving=serving, stopping=stopping) == expected
