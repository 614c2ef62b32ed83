"""Prints the progress of an update: a line for each event, and on a terminal a block about both controllers, which is
redrawn.

Like kubectl, it prints events to standard output. With ``-o``, events go to standard error, because standard output
gets the resulting object. With ``-o json``, every event is a JSON object on one line. What the update waits for is
printed to standard error: in the block on a terminal, and otherwise as a line once the wait has lasted `SETTLED_S`
seconds.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Final, TextIO

from kubeproxy.commands.rolling_update.snapshot import Side, Snapshot
from kubeproxy.controllers.deployments.explain import duration
from kubeproxy.controllers.deployments.rollout_status import Waiting
from kubeproxy.kubernetes import timestamps
from kubeproxy.model.printable import printable
from kubeproxy.runtime.output import write_data, write_lines

SETTLED_S: Final = 5.0
"""Without a terminal, a line is printed about a wait only if it lasts this long."""
_COLUMNS: Final = 80
"""The assumed width of a terminal that does not report its width."""
_UP_AND_ERASE: Final = "\x1b[1A\x1b[2K"


class ProgressOutput:
    """Writes to standard output and standard error."""

    def __init__(
        self,
        output: str,
        *,
        out: TextIO | None = None,
        err: TextIO | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`output` is the format of ``-o`` without its argument, such as ``json`` or ``jsonpath``."""
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self._clock = clock
        self._json = output == "json"
        self._events = self._err if output and not self._json else self._out
        self._redraws = self._err.isatty() and not self._json
        self._drawn = 0
        self._snapshot: Snapshot | None = None
        self._waiting: Waiting | None = None
        self._waiting_began = 0.0
        self._noted = ""
        self._warned: set[str] = set()

    # Events and results

    def event(self, event: str, text: str, **fields: Any) -> None:
        """Print an event: something that was done, or is about to be done. `fields` are added to its JSON form."""
        self._waiting = None
        self._erase()
        if self._json:
            write_lines(self._out, self._encoded(event, text, fields))
        else:
            write_lines(self._events, text)
        self._draw()

    def result(self, text: str) -> None:
        """Print an object or a text on standard output. `text` already ends with a line end."""
        self.end()
        write_data(self._out, text)

    def note(self, text: str) -> None:
        """Print a note for the user on standard error."""
        self.error(text)

    def warning(self, text: str) -> None:
        """Print a warning, unless the same warning was printed before."""
        if text in self._warned:
            return
        self._warned.add(text)
        self.error(f"Warning: {text}")

    def error(self, text: str) -> None:
        """Print a line on standard error."""
        self._erase()
        write_lines(self._err, text)

    def failed(self, text: str) -> None:
        """Print the failure as a JSON event, if the output is JSON. `error` prints the text for people."""
        if self._json:
            write_lines(self._out, self._encoded("failed", text, self._counts()))

    # Waits

    def see(self, snapshot: Snapshot) -> None:
        """Use this snapshot of both controllers for the block and for later events."""
        self._snapshot = snapshot
        self.tick()

    def waits(self, waiting: Waiting) -> None:
        """Show what the update waits for, until the next event."""
        if self._waiting is None or waiting.text != self._waiting.text:
            self._waiting_began = self._clock()
        self._waiting = waiting
        self.tick()

    def tick(self) -> None:
        """Redraw the block on a terminal, or else print what the update waits for if the wait has lasted long
        enough."""
        waiting = self._waiting
        if self._redraws:
            self._erase()
            self._draw()
        elif waiting is not None and waiting.text != self._noted and self._lasted() >= SETTLED_S:
            self._noted = waiting.text
            text = f"waits for {waiting.text}"
            if self._json:
                since = None if waiting.since is None else timestamps.seconds(waiting.since)
                write_lines(self._out, self._encoded("waiting", text, {"since": since, **self._counts()}))
            else:
                write_lines(self._err, f"{self._summary()}{text}")

    def end(self) -> None:
        """Remove the block, and do not draw it again."""
        self._erase()
        self._redraws = False
        self._waiting = None

    def _lasted(self) -> float:
        return self._clock() - self._waiting_began

    # Texts

    def _encoded(self, event: str, text: str, fields: dict[str, Any]) -> str:
        head = {"event": event, "time": timestamps.seconds(self._clock()), "message": text}
        return json.dumps(head | {key: value for key, value in fields.items() if value is not None}, ensure_ascii=False)

    def _counts(self) -> dict[str, Any]:
        if self._snapshot is None:
            return {}
        sides = (("new", self._snapshot.up), ("old", self._snapshot.down))
        return {role: counts(side) for role, side in sides if side is not None}

    def _summary(self) -> str:
        if self._snapshot is None:
            return ""
        sides = [side for side in (self._snapshot.up, self._snapshot.down) if side is not None]
        return (
            ", ".join(f"{each.controller.name}: {each.ready} of {each.controller.replicas} ready" for each in sides)
            + "; "
        )

    def _rows(self) -> list[str]:
        found = []
        if self._snapshot is not None:
            found = rows(self._snapshot)
        if self._waiting is not None:
            now = self._clock()
            since = self._waiting_began if self._waiting.since is None else self._waiting.since
            found.append(f"waits {duration(now - since)} for {self._waiting.text}")
        return found

    def _draw(self) -> None:
        if not self._redraws:
            return
        width = self._width()
        lines = [_fitted(line, width) for line in self._rows()]
        write_lines(self._err, *lines)
        self._drawn = len(lines)

    def _width(self) -> int:
        try:
            return os.get_terminal_size(self._err.fileno()).columns or _COLUMNS
        except OSError:
            return _COLUMNS

    def _erase(self) -> None:
        if self._drawn:
            self._err.write(_UP_AND_ERASE * self._drawn)
            self._err.flush()
            self._drawn = 0


def counts(side: Side) -> dict[str, Any]:
    """Return the name and the counts of one controller, for a JSON event."""
    return {
        "name": side.controller.name,
        "wanted": side.controller.replicas,
        "present": len(side.active),
        "ready": side.ready,
        "ending": len(side.ending),
    }


def rows(snapshot: Snapshot) -> list[str]:
    """Return a line about each controller, aligned in columns."""
    sides = [("old", snapshot.down), ("new", snapshot.up)]
    present = [(role, side) for role, side in sides if side is not None]
    width = max(len(side.controller.name) for _, side in present)
    found = []
    for role, side in present:
        ending = f"  {len(side.ending)} ending" if side.ending else ""
        found.append(
            f"{role}  {side.controller.name:<{width}}  {side.controller.replicas:>3} wanted"
            f"  {len(side.active):>3} present  {side.ready:>3} ready{ending}"
        )
    return found


def _fitted(line: str, width: int) -> str:
    """Cut a line to the terminal's width, because a line that wraps could not be erased."""
    line = printable(line)
    return line if len(line) < width else f"{line[: max(1, width - 2)]}…"
