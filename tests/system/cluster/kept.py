"""Programs that are started again when they end."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

PAUSE_S: Final = 1.0
"""Between the end of a program and its next start."""
STOPPING_S: Final = 10.0


class Kept:
    """A program that is started again when it ends, until `close`; the process id of the running one is in `pid_file`.

    `start` is called in a thread that lives as long as the program, because the program is killed when the thread that
    started it ends (`Host.popen`).
    """

    def __init__(self, pid_file: Path, start: Callable[[], subprocess.Popen[Any]]) -> None:
        self._pid_file = pid_file
        self._start = start
        self._closing = threading.Event()
        self._process: subprocess.Popen[Any] | None = None
        self._thread = threading.Thread(target=self._keep, name=pid_file.stem, daemon=True)
        self._thread.start()

    def _keep(self) -> None:
        while not self._closing.is_set():
            process = self._start()
            self._process = process
            self._pid_file.write_text(str(process.pid))
            process.wait()
            self._pid_file.unlink(missing_ok=True)
            self._closing.wait(PAUSE_S)

    def close(self) -> None:
        """End the program, by SIGKILL if it does not end by SIGTERM in time."""
        self._closing.set()
        if (process := self._process) is not None:
            process.terminate()
            try:
                process.wait(STOPPING_S)
            except subprocess.TimeoutExpired:
                process.kill()
        self._thread.join(STOPPING_S)
