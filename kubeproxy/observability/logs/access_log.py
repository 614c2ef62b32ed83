"""The access log: one line for each connection that has ended, in a file of its own or among the other logs.

What has ended is fetched twice a second, not told as it ends, so that the byte path waits for no disk. A file is opened
for appending and looked up by its name before every write: whoever rotates it only has to move it away.
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

FETCH_S: Final = 0.5
"""How often the data plane is asked, each of whose processes keeps a few thousand."""
BATCH: Final = 1000
"""Lines rendered between two breaths of the event loop."""
THE_LOG: Final = "-"
"""The setting that stands for the log itself."""
MODE: Final = 0o640
"""Of a new file: who talks to whom is not everybody's business."""

log = structlog.get_logger(__name__)
access = structlog.get_logger(f"{OURS}.access")


class AccessLog:
    """Writes what `ended` gives to where `use` says, as long as `run` runs.

    `on_lost` is told how many lines could not be written. What goes wrong with the file is said once in the log, and
    tried again with the next lines.
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
        self._wanted = asyncio.Event()
        self._file: _File | None = None
        self._turn = asyncio.Lock()
        self._log = RateLimitedLog(log)

    def use(self, where: str, *, as_json: bool) -> None:
        """Write to a file, to the log itself (``-``) or nowhere (empty), in logfmt or as JSON; the log itself has a
        format of its own. A file is opened anew in any case."""
        self._where, self._json = where, as_json
        self._file = _File(Path(where)) if where not in ("", THE_LOG) else None
        if where:
            self._wanted.set()
        else:
            self._wanted.clear()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._wanted.wait()
            await self.flush()
            await asyncio.sleep(self._fetch_s)

    async def flush(self) -> None:
        """Write what has ended until now."""
        async with self._turn:
            if not self._where:
                return
            try:
                ended = sorted(await self._ended(), key=_end)  # each process has its own
            except KubeproxyError as error:
                self._log.warning("cannot learn which connections have ended", reason=str(error))
                return
            for start in range(0, len(ended), BATCH):
                await self._tell(ended[start : start + BATCH])

    async def _tell(self, ended: Sequence[Ended]) -> None:
        if self._file is None:
            for one in ended:
                access.info("connection ended", **facts(one))
            await asyncio.sleep(0)
            return
        render = json_line if self._json else text_line
        text, file = "".join([render(one) for one in ended]).encode(), self._file
        try:
            await asyncio.to_thread(file.append, text)
        except OSError as error:
            self._on_lost(len(ended))
            self._log.error(
                "the access log cannot be written",
                key="file",
                path=str(file.path),
                reason=error.strerror or str(error),
                lines_lost=len(ended),
            )
        else:
            self._log.over("file")


class _File:
    """A file that may be rotated away at any time. Its methods may wait for the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1

    def append(self, text: bytes) -> None:
        """Add whole lines; OSError when not all of them could be added."""
        self._follow()
        remaining = memoryview(text)
        while remaining:
            remaining = remaining[os.write(self._descriptor, remaining) :]

    def _follow(self) -> None:
        """Open it where it is not the one that is open."""
        if self._descriptor >= 0:
            try:
                there, here = os.stat(self.path), os.fstat(self._descriptor)
            except FileNotFoundError:
                pass
            else:
                if (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino):
                    return
            self.close()
        # Without O_NONBLOCK a pipe that nobody reads would hold the thread for ever.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        self._descriptor = os.open(self.path, flags, MODE)

    def close(self) -> None:
        """Close it; the next `append` opens it again."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


def facts(ended: Ended) -> dict[str, Any]:
    """What there is to say, by the names under which it is said. Seconds to the microsecond."""
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
        "duration_s": round(ended.duration_s, 6),
        "end": ended.reason,
    }


def text_line(ended: Ended) -> str:
    """logfmt, with the time of the end first and ``-`` for what there is not."""
    words = [f"{key}={'-' if value in (None, '') else bare_value(value)}" for key, value in facts(ended).items()]
    return f"{_moment(ended)} {' '.join(words)}\n"


def json_line(ended: Ended) -> str:
    """One JSON object."""
    line: Mapping[str, Any] = {"ts": _moment(ended), **facts(ended)}
    return json.dumps(line, ensure_ascii=False) + "\n"


def _end(ended: Ended) -> float:
    return ended.began + ended.duration_s


def _moment(ended: Ended) -> str:
    moment = datetime.fromtimestamp(_end(ended), UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
