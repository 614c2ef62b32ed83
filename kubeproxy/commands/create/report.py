"""Prints the results of a run: a line for each object, errors, and a progress line on a terminal."""

from __future__ import annotations

import sys
import time
from typing import Final, TextIO

from kubeproxy.model.printable import printable
from kubeproxy.runtime.output import write_data, write_lines

PROGRESS_AFTER_S: Final = 1.0
_EVERY_S: Final = 0.2
_ERASE: Final = "\r\x1b[K"


class Report:
    """Writes to standard output and standard error."""

    def __init__(self, *, progress: bool, out: TextIO | None = None, err: TextIO | None = None) -> None:
        """With `progress`, show a progress line if standard error is a terminal and the run takes longer than a
        second."""
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self._shows = progress and self._err.isatty()
        self._began = time.monotonic()
        self._drawn_at = 0.0
        self._drawn = False
        self._warned: set[str] = set()
        self.created = 0
        self.skipped = 0
        self.failed = 0
        self.warnings = 0

    def line(self, text: str) -> None:
        """Print a line on standard output."""
        self._erase()
        write_lines(self._out, text)
        self._draw()

    def data(self, text: str) -> None:
        """Print an object on standard output. `text` already ends with a line end."""
        self._erase()
        write_data(self._out, text)
        self._draw()

    def warning(self, text: str) -> None:
        """Print a warning on standard error, unless the same warning was printed before."""
        if text in self._warned:
            return
        self._warned.add(text)
        self.warnings += 1
        self.error(f"Warning: {text}")

    def error(self, text: str) -> None:
        """Print a line on standard error."""
        self._erase()
        write_lines(self._err, text)

    def waits(self, seconds: float, reason: str) -> None:
        """Show on the progress line why the command waits."""
        self._draw(printable(f", waits {seconds:.1f} s: {reason}"), force=True)

    def tick(self) -> None:
        """Redraw the progress line."""
        self._draw()

    def end(self) -> None:
        """Remove the progress line, and do not draw it again."""
        self._erase()
        self._shows = False

    def _draw(self, more: str = "", *, force: bool = False) -> None:
        now = time.monotonic()
        if not self._shows or now - self._began < PROGRESS_AFTER_S or (now - self._drawn_at < _EVERY_S and not force):
            return
        self._drawn_at, self._drawn = now, True
        counts = f"{self.created} created"
        counts += f", {self.skipped} skipped" if self.skipped else ""
        counts += f", {self.failed} failed" if self.failed else ""
        self._err.write(f"{_ERASE}{counts}, {now - self._began:.0f} s{more}")
        self._err.flush()

    def _erase(self) -> None:
        if self._drawn:
            self._err.write(_ERASE)
            self._err.flush()
            self._drawn = False
