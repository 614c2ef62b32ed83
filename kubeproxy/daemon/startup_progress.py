"""Shows the progress of a start, which takes seconds with ten thousand Services.

On a terminal, the progress is one line that is redrawn until everything is served, and then erased. Elsewhere it is a
log line every few seconds. A short start shows nothing. `status` returns the line for service managers, also after the
start.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import Final, TextIO

import structlog

from kubeproxy.model.snapshot import Summary
from kubeproxy.runtime.backoff import DoublingBackoff

log = structlog.get_logger(__name__)

LINE_S: Final = 0.2
"""The interval in seconds at which the line on a terminal is redrawn."""
LOG_S: Final = 5.0
MOST_LOG_S: Final = 300.0
"""The longest pause between two log lines, in seconds. The first pause is `LOG_S`. Each later pause is twice as long as
the one before, up to this limit."""
_ERASE: Final = "\r\x1b[K"


def words(summary: Summary) -> str:
    """Return the progress in words."""
    known = summary.services + summary.waiting
    if summary.failing:
        return summary.failing
    if not known:
        return f"waits for {', '.join(summary.listing) or 'the packet filter'}"
    if summary.waiting:
        done = 100 * summary.services // known
        return f"{summary.services:,} of {known:,} Services have listeners ({done} %)"
    return f"{summary.listeners:,} listeners for {known:,} Services; waits for the packet filter"


def status(summary: Summary, *, connections: int, serving: bool, stopping: bool) -> str:
    """Return the state of the daemon in one line for `systemctl status`."""
    if stopping:
        return f"draining; open connections: {connections}"
    if not serving:
        return f"starting; {words(summary)}"
    parts = [f"services: {summary.services}, listeners: {summary.listeners}, open connections: {connections}"]
    if summary.services_degraded:
        parts.append(f"services with problems: {summary.services_degraded}")
    if summary.failing:
        parts.append(f"cannot be brought up to date: {summary.failing}")
    return "; ".join(parts)


async def show(
    summary: Callable[[], Summary],
    serving: asyncio.Event,
    *,
    as_text: bool,
    trouble: Callable[[], str] = lambda: "",
    stream: TextIO | None = None,
) -> None:
    """Show the progress until `serving` is set.

    `as_text` says that the log is text, so that a redrawn line fits among its lines. `trouble` returns why a source
    cannot be listed, or an empty text.
    """
    stream = stream or sys.stderr
    if as_text and _can_be_redrawn(stream):
        with _line(stream) as draw:
            while not await _is_set(serving, within_s=LINE_S):
                draw(f"starting: {words(summary())}")
        return
    pause = DoublingBackoff(first_s=LOG_S, limit_s=MOST_LOG_S)
    while not await _is_set(serving, within_s=pause.next()):
        now = summary()
        progress = words(now) + (f": {reason}" if now.listing and (reason := trouble()) else "")
        log.info("starting", progress=progress, services=now.services, waiting=now.waiting, listeners=now.listeners)


async def _is_set(event: asyncio.Event, *, within_s: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await event.wait()
    return event.is_set()  # The timeout and the event may coincide.


@contextlib.contextmanager
def _line(stream: TextIO) -> Iterator[Callable[[str], None]]:
    """Yield a function that redraws the line. Log lines overwrite it, and it is then redrawn below them."""

    def erase(record: logging.LogRecord) -> bool:
        stream.write(_ERASE)
        return True

    def draw(text: str) -> None:
        stream.write(_ERASE + text[: shutil.get_terminal_size().columns - 1])
        stream.flush()

    handlers = list(logging.getLogger().handlers)
    for handler in handlers:
        handler.addFilter(erase)
    try:
        yield draw
    finally:
        for handler in handlers:
            handler.removeFilter(erase)
        stream.write(_ERASE)
        stream.flush()


def _can_be_redrawn(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
