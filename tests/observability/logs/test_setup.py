from __future__ import annotations

import io
import json
import logging
import os
import pty
import re
import warnings
from pathlib import Path
from typing import TextIO

import pytest
import structlog
from structlog.testing import capture_logs

from kubeproxy.model import ServicePortName
from kubeproxy.observability.logs.setup import configure, levels

TIME = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$")


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch, logging_restored: None) -> None:
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)


@pytest.fixture
def pipe() -> io.StringIO:
    return io.StringIO()


def ours() -> structlog.stdlib.BoundLogger:
    logger: structlog.stdlib.BoundLogger = structlog.get_logger("kubeproxy.sources.kubernetes")
    return logger


def test_text_in_a_pipe_is_one_plain_line(pipe: io.StringIO) -> None:
    configure(verbosity=0, stream=pipe)
    ours().warning(
        "watch ended",
        source="kubernetes",
        reason="connection reset",
        retry_in_s=0.30000000000000004,
        port=ServicePortName("default", "web", "http"),
        names=["a", "b"],
        first=True,
        until=None,
    )
    moment, rest = pipe.getvalue().split(" ", 1)
    assert TIME.match(moment)
    assert rest == (
        'warning watch ended source=kubernetes reason="connection reset" retry_in_s=0.3 '
        "port=default/web:http names=a,b first=true until=null\n"
    )


def test_lines_of_libraries_have_our_format_and_their_logger(pipe: io.StringIO) -> None:
    configure(verbosity=0, stream=pipe)
    logging.getLogger("aiohttp.server").warning("odd %s", "request")
    assert pipe.getvalue().split(" ", 1)[1] == "warning odd request logger=aiohttp.server\n"


def test_a_logger_in_use_follows_a_later_configuration(pipe: io.StringIO) -> None:
    log, early = ours(), io.StringIO()
    configure(verbosity=0, stream=early)
    log.info("early")
    structlog.reset_defaults()
    with capture_logs() as captured:
        log.info("captured")
    assert [line["event"] for line in captured] == ["captured"]
    configure(verbosity=0, stream=pipe)
    log.info("late")
    assert ("early" in early.getvalue(), "late" in early.getvalue(), "late" in pipe.getvalue()) == (True, False, True)


def test_library_warnings_are_log_lines(pipe: io.StringIO) -> None:
    configure(verbosity=0, stream=pipe)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        logging.captureWarnings(False)
        logging.captureWarnings(True)
        warnings.warn("old call", DeprecationWarning, stacklevel=1)
    assert "warning" in pipe.getvalue()
    assert "old call" in pipe.getvalue()
    assert "logger=py.warnings" in pipe.getvalue()


def test_values_cannot_forge_a_line_or_control_the_terminal(pipe: io.StringIO) -> None:
    configure(verbosity=0, stream=pipe)
    ours().error("service\x1b[2J refused\nfake", name='a\nlevel=info "x"\x9b1m\x7f\u2028', **{"bad key=": 1})
    line = pipe.getvalue()
    assert line.count("\n") == 1
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028]", line)
    assert line.endswith('name="a\\nlevel=info \\"x\\"\\u009b1m\\u007f\\u2028" badkey=1\n')


def test_a_traceback_follows_its_line_indented(pipe: io.StringIO) -> None:
    configure(verbosity=0, stream=pipe)
    try:
        raise OSError("no\nroute")
    except OSError:
        ours().exception("sync failed", attempt=3)
        logging.getLogger("asyncio").error("callback failed", exc_info=True)
    lines = pipe.getvalue().splitlines()
    assert lines[0].endswith("error   sync failed attempt=3")
    assert lines[1] == "    Traceback (most recent call last):"
    second = next(number for number, line in enumerate(lines) if line.endswith("callback failed logger=asyncio"))
    assert lines[second - 2 : second] == ["    OSError: no", "    route"]
    assert all(line.startswith("    ") for line in lines[1:second] + lines[second + 1 :])


def test_json_is_one_object_per_line(pipe: io.StringIO) -> None:
    configure(verbosity=0, fmt="json", stream=pipe)
    ours().info(
        "synced", service=ServicePortName("a", "b", ""), ports={3, 1}, took_s=float("inf"), nested={1: OSError("x")}
    )
    try:
        raise ValueError("bad")
    except ValueError:
        logging.getLogger("aiohttp.server").exception("failed %d", 7)
    first, second = (json.loads(line) for line in pipe.getvalue().splitlines())
    assert TIME.match(first.pop("ts"))
    assert re.fullmatch(r"test_setup\.py:\d+", first.pop("caller"))
    assert first == {
        "v": 0,
        "level": "info",
        "logger": "kubeproxy.sources.kubernetes",
        "msg": "synced",
        "service": "a/b",
        "ports": ["1", "3"],
        "took_s": "inf",
        "nested": {"1": "x"},
    }
    assert second["msg"] == "failed 7"
    assert second["logger"] == "aiohttp.server"
    assert second["exception"].endswith("ValueError: bad")
    assert second["err"] == "ValueError('bad')"
    assert re.fullmatch(r"test_setup\.py:\d+", second["caller"])
    assert "v" not in second


def test_json_has_the_error_of_our_own_exceptions(pipe: io.StringIO) -> None:
    configure(verbosity=4, fmt="json", stream=pipe)
    try:
        raise OSError("no route")
    except OSError as error:
        ours().exception("failed")
        caught = error
    ours().debug("failed", exc_info=caught)
    first, second = (json.loads(line) for line in pipe.getvalue().splitlines())
    assert first["err"] == second["err"] == "OSError('no route')"
    assert second["v"] == 4


@pytest.mark.parametrize("fmt", ["text", "json"])
def test_the_journal_gets_a_priority_on_every_line(fmt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal"
    with path.open("w") as stream:
        status = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
        configure(verbosity=4, fmt="json" if fmt == "json" else "text", stream=stream)
        ours().critical("gone")
        ours().info("started", port=80)
        ours().debug("looked")
        try:
            raise OSError("no")
        except OSError:
            ours().exception("failed")
    lines = path.read_text().splitlines()
    assert [line[:3] for line in lines[:3]] == ["<2>", "<6>", "<7>"]
    assert {line[:3] for line in lines[3:]} == {"<3>"}
    if fmt == "text":
        assert lines[:3] == ["<2>gone", "<6>started port=80", "<7>looked"]
        assert len(lines) > 4
    else:
        assert json.loads(lines[1][3:])["msg"] == "started"
        assert len(lines) == 4


def test_a_stderr_that_was_redirected_is_not_the_journal(pipe: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOURNAL_STREAM", "8:12345")
    configure(verbosity=0, stream=pipe)
    ours().info("started")
    assert TIME.match(pipe.getvalue().split(" ")[0])


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
def test_colours_on_a_terminal_only(
    environment: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    leader, follower = pty.openpty()
    try:
        with os.fdopen(follower, "w") as terminal:
            configure(verbosity=0, stream=terminal)
            ours().error("sync failed", reason="locked")
            line = os.read(leader, 4096).decode()
    finally:
        os.close(leader)
    assert ("\x1b[31merror" in line) is coloured
    assert ("\x1b" in line) is coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip().endswith("error   sync failed reason=locked")


@pytest.mark.parametrize(
    ("verbosity", "expected"),
    [
        (0, (logging.INFO, logging.WARNING)),
        (1, (logging.INFO, logging.WARNING)),
        (2, (logging.INFO, logging.INFO)),
        (4, (logging.DEBUG, logging.INFO)),
        (7, (logging.DEBUG, logging.INFO)),
        (8, (logging.DEBUG, logging.DEBUG)),
        (10, (logging.DEBUG, logging.DEBUG)),
    ],
)
def test_verbosity(verbosity: int, expected: tuple[int, int]) -> None:
    assert levels(verbosity) == expected


def test_verbosity_and_format_change_for_loggers_in_use(pipe: io.StringIO) -> None:
    log, library = ours(), logging.getLogger("aiohttp.client")

    def log_all(stream: TextIO) -> None:
        log.debug("a")
        log.info("b")
        library.info("c")
        library.debug("d")

    def logged() -> list[str]:
        lines = [json.loads(line)["msg"] for line in pipe.getvalue().splitlines()]
        pipe.seek(0)
        pipe.truncate()
        return lines

    configure(verbosity=0, fmt="text", stream=io.StringIO())
    log_all(pipe)
    assert pipe.getvalue() == ""
    for verbosity, expected in [(0, ["b"]), (4, ["a", "b", "c"]), (8, ["a", "b", "c", "d"]), (2, ["b", "c"])]:
        configure(verbosity=verbosity, fmt="json", stream=pipe)
        log_all(pipe)
        assert logged() == expected
