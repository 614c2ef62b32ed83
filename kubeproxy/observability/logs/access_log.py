"""The access log: one line for each ended connection, in its own file or in the log.

Ended connections of both data paths are fetched twice a second, so that no client waits for a disk. The file is opened
for appending, and its name is looked up before every write. So renaming the file is enough to rotate it.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import structlog

from kubeproxy.dataplane.interface import Ended
from kubeproxy.model.errors import KubeproxyError
from kubeproxy.observability.logs.ratelimit import RateLimitedLog
from kubeproxy.observability.logs.setup import OURS, bare_value
from kubeproxy.runtime.time_slice import TimeSlice

FETCH_S: Final = 0.5
"""The number of seconds between two fetches. Each process of the data plane keeps at most a few thousand ended
connections."""
BATCH: Final = 1000
"""The number of lines that are rendered and written at a time."""
SLICE_S: Final = 0.002
"""How many seconds of work are done between two yields to the event loop."""
THE_LOG: Final = "-"
"""The value of the setting that sends the lines to the log itself."""
MODE: Final = 0o640
"""The permissions of a new file. Addresses of clients are not for every user."""

log = structlog.get_logger(__name__)
access = structlog.get_logger(f"{OURS}.access")


class AccessLog:
    """Writes a line for each connection that `ended` returns, to the place set by `use`.

    `on_lost` is called with the number of lines that could not be written. A failing file is logged once, and tried
    again with the next lines.
    """

    def __init__(
        self,
        ended: Callable[[], Awaitable[Sequence[Ended]]],
        *,
        on_lost: Callable[[int], None],
        fetch_s: float = FETCH_S,
    ) -> None:
        self._ended = ended
        self._on_lost = on_lost
        self._fetch_s = fetch_s
        self._where = ""
        self._json = False
        self._enabled = asyncio.Event()
        self._file: _File | None = None
        self._writing = asyncio.Lock()
        self._log = RateLimitedLog(log)
        self._complaint: str | None = None

    def complaint(self) -> str | None:
        """Return why the last lines were lost, or None if they were written."""
        return self._complaint

    def use(self, where: str, *, as_json: bool) -> None:
        """Set where lines go: a file, the log itself (``-``), or nowhere if `where` is empty.

        A file gets JSON lines if `as_json` is true, and otherwise logfmt lines; the log keeps its own format. Each call
        reopens the file.
        """
        self._where, self._json = where, as_json
        self._complaint = None
        self._file = _File(Path(where)) if where not in ("", THE_LOG) else None
        if where:
            self._enabled.set()
        else:
            self._enabled.clear()

    async def run(self) -> None:
        """Write every `fetch_s` seconds, until cancelled."""
        while True:
            await self._enabled.wait()
            await self.flush()
            await asyncio.sleep(self._fetch_s)

    async def flush(self) -> None:
        """Write the connections that have ended since the last call."""
        async with self._writing:
            if not self._where:
                return
            try:
                ended = sorted(await self._ended(), key=_end)  # The connections of several processes are merged.
            except KubeproxyError as error:
                self._log.warning("cannot fetch ended connections", reason=str(error))
                return
            for start in range(0, len(ended), BATCH):
                await self._write(ended[start : start + BATCH])

    async def _write(self, ended: Sequence[Ended]) -> None:
        if self._file is None:
            time_slice = TimeSlice(SLICE_S)
            for one in ended:
                access.info("connection ended", **facts(one))
                await time_slice.offer()
            return
        render = json_line if self._json else text_line
        text, file = "".join([render(one) for one in ended]).encode(), self._file
        try:
            await asyncio.to_thread(file.append, text)
        except OSError as error:
            reason = error.strerror or str(error)
            self._on_lost(len(ended))
            self._complaint = f"cannot write {file.path}: {reason}"
            self._log.error(
                "cannot write the access log",
                key="file",
                path=str(file.path),
                reason=reason,
                lines_lost=len(ended),
            )
        else:
            self._complaint = None
            self._log.reset("file")


class _File:
    """A file that may be renamed at any time. Its methods may block on the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1

    def append(self, text: bytes) -> None:
        """Append complete lines. Raise OSError if not all of them could be written."""
        self._reopen()
        remaining = memoryview(text)
        while remaining:
            remaining = remaining[os.write(self._descriptor, remaining) :]

    def _reopen(self) -> None:
        """Open the file, unless it is open and still has its old name."""
        if self._descriptor >= 0:
            try:
                there, here = os.stat(self.path), os.fstat(self._descriptor)
            except FileNotFoundError:
                pass
            else:
                if (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino):
                    return
            self.close()
        # Without O_NONBLOCK a pipe without a reader would block the thread for ever.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        self._descriptor = os.open(self.path, flags, MODE)

    def close(self) -> None:
        """Close the file. The next `append` opens it again."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


def facts(ended: Ended) -> dict[str, Any]:
    """Return the fields of a line by name. Seconds are rounded to microseconds."""
    service_port = ended.frontend.service_port
    return {
        "service": str(service_port.service),
        "port": service_port.port,
        "protocol": str(ended.protocol),
        "client": str(ended.client),
        "endpoint": None if ended.endpoint is None else str(ended.endpoint),
        "attempts": ended.attempts,
        "bytes_in": ended.bytes_in,
        "bytes_out": ended.bytes_out,
        "dial_s": None if ended.dial_s is None else round(ended.dial_s, 6),
        "duration_s": None if ended.duration_s is None else round(ended.duration_s, 6),
        "end": ended.reason,
        "path": ended.path,
    }


def text_line(ended: Ended) -> str:
    """Return a logfmt line that begins with the time of the end. ``-`` stands for a missing value."""
    words = [f"{key}={'-' if value in (None, '') else bare_value(value)}" for key, value in facts(ended).items()]
    return f"{_moment(ended)} {' '.join(words)}\n"


def json_line(ended: Ended) -> str:
    """Return a line with one JSON object."""
    line: Mapping[str, Any] = {"ts": _moment(ended), **facts(ended)}
    return json.dumps(line, ensure_ascii=False) + "\n"


def _end(ended: Ended) -> float:
    return ended.began + (ended.duration_s or 0.0)


def _moment(ended: Ended) -> str:
    moment = datetime.fromtimestamp(_end(ended), UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
