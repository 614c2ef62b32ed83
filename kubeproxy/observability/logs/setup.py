"""Sets up the log: one format for our lines and those of libraries.

The formats are text (terminal, pipe), JSON and the systemd journal. All lines go through the standard library's root
logger, so lines of aiohttp look like ours. `configure` replaces one handler and sets levels, so it may be called again
at any time.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO, cast

import structlog
from structlog.stdlib import ProcessorFormatter

from kubeproxy.model.printable import printable
from kubeproxy.observability.logs.tenant_limit import TENANTS
from kubeproxy.observability.logs.writer import LogWriter

Format = Literal["text", "json"]

OURS: Final = "kubeproxy"
"""The parent of our loggers. All other loggers belong to libraries."""

_JOURNAL_PRIORITY: Final = {"critical": 2, "error": 3, "warning": 4, "info": 6, "debug": 7}
"""The priorities of syslog(3). The journal reads them from a ``<N>`` before each line (sd-daemon(3))."""

_VERBOSITY: Final = {"info": 0, "debug": 4}
"""The lowest value of kube-proxy's ``-v`` with which messages of a level are logged."""

_COLOUR: Final = {"critical": "\x1b[1;31m", "error": "\x1b[31m", "warning": "\x1b[33m", "info": "\x1b[32m", "debug": ""}
_DIM: Final = "\x1b[2m"
_BOLD: Final = "\x1b[1m"
_RESET: Final = "\x1b[0m"

_BARE = re.compile(r"[^\s\"'=\\\x00-\x1f\x7f-\x9f\u2028\u2029]+")
"""Matches values that need no quotes."""


def levels(verbosity: int) -> tuple[int, int]:
    """Return the levels of our loggers and of libraries for a value of kube-proxy's ``-v``.

    0 logs messages for the operator, 2 also those of libraries, 4 also debug messages, and 8 also those of libraries.
    (client-go logs bodies of requests from 8 on.)
    """
    ours = logging.DEBUG if verbosity >= 4 else logging.INFO
    libraries = logging.DEBUG if verbosity >= 8 else logging.INFO if verbosity >= 2 else logging.WARNING
    return ours, libraries


def configure(*, verbosity: int, fmt: Format | None = None, stream: TextIO | None = None) -> None:
    """Log to `stream` (by default stderr) in `fmt` (by default text) with kube-proxy's `verbosity`. This replaces the
    setup of an earlier call."""
    stream = sys.stderr if stream is None else stream
    journal = _is_journal(stream)
    root = logging.getLogger()
    before = [old for old in root.handlers if isinstance(old, _Handler)]
    # If there is already a handler for this stream, its writer is used again, because the writer may have a backlog,
    # which has to be written first.
    handler = _Handler(
        next((old.log_writer for old in before if old.log_writer.stream is stream), None) or LogWriter(stream)
    )
    handler.setFormatter(
        ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, structlog.stdlib.add_log_level],
            processors=[
                _timestamp,
                *([_origin] if fmt == "json" else []),
                structlog.processors.StackInfoRenderer(),
                structlog.processors.format_exc_info,
                ProcessorFormatter.remove_processors_meta,
                JsonLine(priority=journal)
                if fmt == "json"
                else TextLine(colours=_takes_colours(stream), priority=journal, timestamp=not journal),
            ],
        )
    )
    for old in before:
        root.removeHandler(old)
    root.addHandler(handler)
    ours, libraries = levels(verbosity)
    root.setLevel(libraries)
    logging.getLogger(OURS).setLevel(ours)
    logging.captureWarnings(True)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            TENANTS,
            structlog.contextvars.merge_contextvars,
            structlog.stdlib.add_logger_name,
            structlog.stdlib.add_log_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        # A cached logger would keep its first configuration. The byte path logs nothing, so speed does not matter.
        cache_logger_on_first_use=False,
    )


def configure_command() -> None:
    """Configure the log of a short-lived command. Warnings and errors go to stderr, because stdout is for the command's
    output."""
    configure(verbosity=0)
    logging.getLogger(OURS).setLevel(logging.WARNING)


def writer_problem() -> str | None:
    """Return what went wrong with writing the log since the last call, or None if nothing did."""
    problems = (
        handler.log_writer.problem() for handler in logging.getLogger().handlers if isinstance(handler, _Handler)
    )
    return next(filter(None, problems), None)


class TextLine:
    """``2026-01-02T03:04:05.678901Z warning watch ended source=kubernetes reason="connection reset"``

    Each event is one line, whatever its values are. A traceback follows on indented lines. Lines for the journal have a
    priority instead of the time, which the journal adds itself.
    """

    def __init__(self, *, colours: bool, priority: bool, timestamp: bool) -> None:
        self._colours = colours
        self._priority = priority
        self._timestamp = timestamp

    def __call__(self, logger: Any, method: str, event: MutableMapping[str, Any]) -> str:
        level = str(event.pop("level", method))
        moment = event.pop("timestamp")
        name = str(event.pop("logger", "") or "")
        text = printable(str(event.pop("event", "")))
        attachments = [str(event.pop(key)) for key in ("exception", "stack") if event.get(key)]
        if not _is_ours(name):
            event["logger"] = name
        words = [self._paint(_DIM, moment)] if self._timestamp else []
        if not self._priority:
            words.append(self._paint(_COLOUR.get(level, ""), f"{level:<7}"))
        words.append(self._paint(_BOLD, text))
        words += [f"{self._paint(_DIM, _bare(key) + '=')}{bare_value(value)}" for key, value in event.items()]
        lines = [" ".join(words)]
        for attachment in attachments:
            lines += ["    " + printable(line) for line in attachment.split("\n")]
        prefix = f"<{_JOURNAL_PRIORITY.get(level, 6)}>" if self._priority else ""
        return "\n".join(prefix + line for line in lines)

    def _paint(self, colour: str, text: str) -> str:
        return f"{colour}{text}{_RESET}" if self._colours and colour else text


class JsonLine:
    """``{"ts": …, "caller": …, "msg": …, "v": …, "level": …, "logger": …, …}``.

    The keys are those of Kubernetes' own JSON logs: ``ts``, ``caller`` (file and line), ``msg``, ``v`` (missing in
    warnings and errors) and ``err`` (an exception, whose traceback is in ``exception``). The time is RFC 3339, which
    log collectors read without configuration.
    """

    def __init__(self, *, priority: bool) -> None:
        self._priority = priority

    def __call__(self, logger: Any, method: str, event: MutableMapping[str, Any]) -> str:
        level = str(event.pop("level", method))
        head = {
            "ts": event.pop("timestamp"),
            "caller": event.pop("caller", None),
            "msg": str(event.pop("event", "")),
            **({"v": _VERBOSITY[level]} if level in _VERBOSITY else {}),
            "level": level,
            "logger": event.pop("logger", None),
        }
        fields = {key: _plain(value) for key, value in event.items()}
        line = printable(json.dumps({**head, **fields}, ensure_ascii=False))
        return f"<{_JOURNAL_PRIORITY.get(level, 6)}>{line}" if self._priority else line


class _Handler(logging.Handler):
    """A handler with a class of its own, so that it can be told from handlers of libraries and tests."""

    def __init__(self, log_writer: LogWriter) -> None:
        super().__init__()
        self.log_writer = log_writer
        self._reported = log_writer.lost

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record) + "\n"
            if lost := self.log_writer.lost - self._reported:
                line = self.format(_loss(lost)) + "\n" + line
            if self.log_writer.write(line):
                self._reported += lost
        except Exception:
            self.handleError(record)

    def flush(self) -> None:
        self.log_writer.flush()


def _loss(lines: int) -> logging.LogRecord:
    """Return a log record that says how many lines were lost."""
    event: Any = {"event": "log lines lost", "level": "warning", "logger": __name__, "lines": lines}
    record = logging.LogRecord(__name__, logging.WARNING, __file__, 0, event, None, None)
    # ProcessorFormatter reads the fields of a record that has these two attributes.
    vars(record).update(_logger=None, _name="warning")
    return record


def _timestamp(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    created = datetime.fromtimestamp(event["_record"].created, UTC)
    event["timestamp"] = created.isoformat(timespec="microseconds").replace("+00:00", "Z")
    return event


def _origin(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    record: logging.LogRecord = event["_record"]
    event["caller"] = f"{record.filename}:{record.lineno}"
    match event.get("exc_info") or record.exc_info:
        case BaseException() as error:
            event["err"] = repr(error)
        case (_, BaseException() as error, _):
            event["err"] = repr(error)
        case True:
            event["err"] = repr(sys.exc_info()[1])
    return event


def _is_ours(name: str) -> bool:
    return name == OURS or name.startswith(OURS + ".")


def _is_journal(stream: TextIO) -> bool:
    """Return whether the stream is connected to the journal.

    systemd puts the device and inode of the journal's socket into the environment (systemd.exec(5)). Those of a
    redirected stderr differ.
    """
    expected = os.environ.get("JOURNAL_STREAM", "")
    if not expected:
        return False
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return expected == f"{status.st_dev}:{status.st_ino}"


def _takes_colours(stream: TextIO) -> bool:
    """Return whether the stream is a terminal with colours, and NO_COLOR is not set (no-color.org)."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb" and not os.environ.get("NO_COLOR")


def _bare(key: str) -> str:
    return "".join(_BARE.findall(key)) or "_"


def bare_value(value: object) -> str:
    """Return a value as text for a log line, quoted if necessary, without characters that could forge a line."""
    plain = _plain(value)
    if isinstance(plain, bool) or plain is None:
        text = json.dumps(plain)
    elif isinstance(plain, list):
        text = ",".join(map(str, plain))
    else:
        text = str(plain)
    bare = text.isprintable() and _BARE.fullmatch(text)
    return text if bare else printable(json.dumps(text, ensure_ascii=False))


def _plain(value: object) -> object:
    """Return a value that JSON can represent. Names, addresses and errors become text (`str`)."""
    if value is None or isinstance(value, bool) or type(value) in (int, str):
        return value
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if type(value) in (list, tuple):
        return [_plain(part) for part in cast(Sequence[object], value)]
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    return str(value)
