"""The way out for log lines, when whoever reads them is slow, stopped or gone."""

from __future__ import annotations

import logging
import os
import re
import select
import time
from collections.abc import Callable, Iterator
from io import TextIOWrapper
from pathlib import Path
from threading import Thread

import pytest
import structlog

from kubeproxy.observability.logs.setup import complaint, configure
from kubeproxy.observability.logs.writer import BACKLOG_BYTES, LogWriter

PIPE_BYTES = 1 << 16
LINE = "x" * 1000


class Pipe:
    """Ours is the end that nobody reads as yet."""

    def __init__(self) -> None:
        self.reading, writing = os.pipe()
        self.stream = os.fdopen(writing, "w")
        self.heard = b""

    def read(self, until: Callable[[str], bool]) -> str:
        """Until what has been read is as it should be; AssertionError when it does not come to that."""
        deadline = time.monotonic() + 30
        while not until(self.heard.decode()):
            assert time.monotonic() < deadline, self.heard[-1000:]
            if select.select([self.reading], [], [], 0.01)[0]:
                self.heard += os.read(self.reading, PIPE_BYTES)
        return self.heard.decode()


@pytest.fixture
def pipe(logging_restored: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipe]:
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    pipe = Pipe()
    configure(verbosity=0, stream=pipe.stream)
    yield pipe
    os.close(pipe.reading)
    outlet_of(pipe.stream).flush(within_s=10)  # it fails now, so that the thread has nothing to do
    pipe.stream.close()


def outlet_of(stream: TextIOWrapper) -> LogWriter:
    outlets = (getattr(handler, "log_writer", None) for handler in logging.getLogger().handlers)
    return next(it for it in outlets if isinstance(it, LogWriter) and it.stream is stream)


def say(numbers: range) -> None:
    log = structlog.get_logger("kubeproxy.test")
    for number in numbers:
        log.info(LINE, number=number)


def numbers_in(heard: str) -> list[int]:
    return [int(found) for found in re.findall(rf"{LINE} number=(\d+)\n", heard)]


def test_nobody_is_held_up_and_nothing_is_lost_that_finds_room(pipe: Pipe) -> None:
    count = 5 * PIPE_BYTES // len(LINE)
    say(range(count))
    assert os.get_blocking(pipe.stream.fileno()), "it belongs to others, too"
    # Without another line: what waits comes by itself.
    heard = pipe.read(lambda heard: heard.endswith(f"number={count - 1}\n"))
    assert numbers_in(heard) == list(range(count))


def test_what_does_not_find_room_is_counted_where_it_is_missing(pipe: Pipe) -> None:
    count = 2 * (PIPE_BYTES + BACKLOG_BYTES) // len(LINE)
    say(range(count))
    log_writer = outlet_of(pipe.stream)
    assert 0 < log_writer.waiting <= BACKLOG_BYTES
    lost = log_writer.lost
    assert complaint() is not None
    kept = count - lost
    pipe.read(lambda heard: f"number={kept - 1}\n" in heard)
    say(range(count, count + 1))
    heard = pipe.read(lambda heard: heard.endswith(f"number={count}\n"))
    assert numbers_in(heard) == [*range(kept), count]
    assert f" warning {lost} log lines are missing here: nobody took them\n" in heard
    say(range(count + 1, count + 2))
    assert pipe.read(lambda heard: heard.endswith(f"number={count + 1}\n")).count("missing here") == 1


def test_it_is_a_complaint_while_nobody_reads(pipe: Pipe) -> None:
    assert complaint() is None
    say(range(2 * PIPE_BYTES // len(LINE)))
    complaint()
    assert complaint() == "nobody reads what is logged to stderr"
    pipe.read(lambda heard: outlet_of(pipe.stream).waiting == 0)
    assert complaint() is None


def test_lines_longer_than_a_pipe_stay_whole_whatever_is_configured_anew(pipe: Pipe) -> None:
    log = structlog.get_logger("kubeproxy.test")
    log.info("a" * 3 * PIPE_BYTES)
    configure(verbosity=0, stream=pipe.stream)
    log.info("b" * 3 * PIPE_BYTES)
    first, second = pipe.read(lambda heard: heard.count("\n") == 2).splitlines()
    assert first.endswith(" " + "a" * 3 * PIPE_BYTES)
    assert second.endswith(" " + "b" * 3 * PIPE_BYTES)


def test_the_end_waits_for_a_reader_and_not_for_ever(pipe: Pipe) -> None:
    say(range(2 * PIPE_BYTES // len(LINE)))
    log_writer = outlet_of(pipe.stream)
    began = time.monotonic()
    log_writer.flush(within_s=0.2)
    assert log_writer.waiting
    assert time.monotonic() - began >= 0.2
    reader = Thread(target=pipe.read, args=(lambda heard: not log_writer.waiting,))
    reader.start()
    log_writer.flush(within_s=30)
    assert not log_writer.waiting
    reader.join()


def test_a_disk_that_is_full_and_a_reader_that_is_gone(logging_restored: None) -> None:
    for number, path in enumerate(("/dev/full", "")):
        reading, writing = os.pipe()
        os.close(reading)
        with Path(path).open("w") if path else os.fdopen(writing, "w") as stream:
            configure(verbosity=0, stream=stream)
            say(range(3))
            assert outlet_of(stream).lost == 3, number
            assert complaint() == "log lines are lost: stderr does not take them"
            assert complaint() is None
        if path:
            os.close(writing)
