"""Log lines with a slow, stopped or missing reader."""

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

from kubeproxy.observability.logs.setup import configure, writer_problem
from kubeproxy.observability.logs.writer import BACKLOG_BYTES, LogWriter

PIPE_BYTES = 1 << 16
LINE = "x" * 1000


class Pipe:
    """A pipe with a reading end that is not read before `read`."""

    def __init__(self) -> None:
        self.reading, writing = os.pipe()
        self.stream = os.fdopen(writing, "w")
        self.received = b""

    def read(self, until: Callable[[str], bool]) -> str:
        """Read until the text fulfils the condition; AssertionError if it never does."""
        deadline = time.monotonic() + 30
        while not until(self.received.decode()):
            assert time.monotonic() < deadline, self.received[-1000:]
            if select.select([self.reading], [], [], 0.01)[0]:
                self.received += os.read(self.reading, PIPE_BYTES)
        return self.received.decode()


@pytest.fixture
def pipe(logging_restored: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipe]:
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    pipe = Pipe()
    configure(verbosity=0, stream=pipe.stream)
    yield pipe
    os.close(pipe.reading)
    writer_of(pipe.stream).flush(within_s=10)  # writing fails now, so the thread has nothing left to do
    pipe.stream.close()


def writer_of(stream: TextIOWrapper) -> LogWriter:
    writers = (getattr(handler, "log_writer", None) for handler in logging.getLogger().handlers)
    return next(it for it in writers if isinstance(it, LogWriter) and it.stream is stream)


def log_lines(numbers: range) -> None:
    log = structlog.get_logger("kubeproxy.test")
    for number in numbers:
        log.info(LINE, number=number)


def numbers_in(received: str) -> list[int]:
    return [int(found) for found in re.findall(rf"{LINE} number=(\d+)\n", received)]


def test_writing_does_not_block_and_the_backlog_is_written(pipe: Pipe) -> None:
    count = 5 * PIPE_BYTES // len(LINE)
    log_lines(range(count))
    assert os.get_blocking(pipe.stream.fileno()), "other processes share stderr"
    # The backlog is written without a further line.
    received = pipe.read(lambda received: received.endswith(f"number={count - 1}\n"))
    assert numbers_in(received) == list(range(count))


def test_lost_lines_are_counted_in_their_place(pipe: Pipe) -> None:
    count = 2 * (PIPE_BYTES + BACKLOG_BYTES) // len(LINE)
    log_lines(range(count))
    log_writer = writer_of(pipe.stream)
    assert 0 < log_writer.waiting <= BACKLOG_BYTES
    lost = log_writer.lost
    assert writer_problem() is not None
    kept = count - lost
    pipe.read(lambda received: f"number={kept - 1}\n" in received)
    log_lines(range(count, count + 1))
    received = pipe.read(lambda received: received.endswith(f"number={count}\n"))
    assert numbers_in(received) == [*range(kept), count]
    assert f" warning log lines lost lines={lost}\n" in received
    log_lines(range(count + 1, count + 2))
    assert pipe.read(lambda received: received.endswith(f"number={count + 1}\n")).count("log lines lost") == 1


def test_a_missing_reader_is_a_problem(pipe: Pipe) -> None:
    assert writer_problem() is None
    log_lines(range(2 * PIPE_BYTES // len(LINE)))
    writer_problem()
    assert writer_problem() == "stderr has no reader; log lines wait"
    pipe.read(lambda received: writer_of(pipe.stream).waiting == 0)
    assert writer_problem() is None


def test_lines_longer_than_a_pipe_stay_whole_across_configure(pipe: Pipe) -> None:
    log = structlog.get_logger("kubeproxy.test")
    log.info("a" * 3 * PIPE_BYTES)
    configure(verbosity=0, stream=pipe.stream)
    log.info("b" * 3 * PIPE_BYTES)
    first, second = pipe.read(lambda received: received.count("\n") == 2).splitlines()
    assert first.endswith(" " + "a" * 3 * PIPE_BYTES)
    assert second.endswith(" " + "b" * 3 * PIPE_BYTES)


def test_flush_waits_for_a_reader_for_a_limited_time(pipe: Pipe) -> None:
    log_lines(range(2 * PIPE_BYTES // len(LINE)))
    log_writer = writer_of(pipe.stream)
    began = time.monotonic()
    log_writer.flush(within_s=0.2)
    assert log_writer.waiting
    assert time.monotonic() - began >= 0.2
    reader = Thread(target=pipe.read, args=(lambda received: not log_writer.waiting,))
    reader.start()
    log_writer.flush(within_s=30)
    assert not log_writer.waiting
    reader.join()


def test_a_full_disk_and_a_closed_pipe_are_problems(logging_restored: None) -> None:
    for number, path in enumerate(("/dev/full", "")):
        reading, writing = os.pipe()
        os.close(reading)
        with Path(path).open("w") if path else os.fdopen(writing, "w") as stream:
            configure(verbosity=0, stream=stream)
            log_lines(range(3))
            assert writer_of(stream).lost == 3, number
            assert writer_problem() == "cannot write to stderr; log lines are lost"
            assert writer_problem() is None
        if path:
            os.close(writing)
