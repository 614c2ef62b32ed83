"""Formats the table of Services. Its columns and their order are the same in a pipe and on a terminal of any width.

To add a column, add a line to `COLUMNS`. On a narrow terminal, columns are left out, those with the highest `drop`
first. Columns with `drop` 0 always stay, and are never cut. The note gets the rest of the line, or lines of its own
below the row.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kubeproxy.observability.status import wording as words
from kubeproxy.observability.status.document import ServiceStatus

GAP: Final = "  "
LEAST_NOTE: Final = 24
"""The least number of characters for a note beside the other columns. With fewer, the note goes below the row."""
INDENT: Final = " " * 4
"""The indentation of a note below its row."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the table."""

    name: str
    cell: Callable[[ServiceStatus], str]
    right: bool = False
    """Whether the column is aligned to the right, as numbers are."""
    drop: int = 0
    """Columns with a higher number are left out earlier on a narrow terminal. A column with 0 always stays."""

    def aligned(self, text: str, width: int) -> str:
        """Return a cell padded to that width."""
        return text.rjust(width) if self.right else text.ljust(width)


def _connections(service: ServiceStatus) -> str:
    return words.rate(service.rates.connections if service.rates else None)


def _bytes(service: ServiceStatus) -> str:
    return words.size(service.rates.bytes_in + service.rates.bytes_out) if service.rates else "-"


COLUMNS: Final = (
    Column("STATE", lambda service: service.state),
    Column("SERVICE", lambda service: f"{service.namespace}/{service.name}"),
    Column("ACTIVE", lambda service: str(service.traffic.active), right=True, drop=3),
    Column("ACCEPTED", lambda service: str(service.traffic.accepted), right=True, drop=4),
    Column("FAILED", lambda service: str(service.traffic.failed), right=True, drop=2),
    Column("CONN/S", _connections, right=True, drop=5),
    Column("BYTES/S", _bytes, right=True, drop=6),
    Column("ENDPOINTS", words.endpoint_count, right=True, drop=1),
)
NOTE: Final = "NOTE"


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table: the header, or one Service."""

    service: ServiceStatus | None
    """The Service, or None for the header."""
    lines: tuple[str, ...]
    note_at: int
    """The position in the first line at which the note begins. All further lines belong to the note."""


def laid_out(
    services: Sequence[ServiceStatus],
    *,
    width: int | None,
    more: Sequence[Column] = (),
    note_lines: int | None = None,
) -> Iterator[Row]:
    """Return the header and a row for each Service.

    `width` is the terminal's width in characters, or None in a pipe. `more` are additional columns, placed before the
    endpoints. A note has at most `note_lines` lines, or as many as it needs.
    """
    *most, last = COLUMNS
    columns = [(column, _width(column, services)) for column in (*most, *more, last)]
    needed = len(GAP) + LEAST_NOTE if any(map(words.note, services)) else 0
    choices = list(_choices(columns))
    # In the last choice even the number of endpoints is left out. Rather than use it, put notes below the rows.
    fitting = [choice for choice in choices[:-1] if width is None or _sum(choice) + needed <= width]
    beside = bool(fitting)
    columns = (fitting or [choice for choice in choices if width is None or _sum(choice) <= width] or choices[-1:])[0]
    header = GAP.join(column.aligned(column.name, size) for column, size in columns)
    yield Row(None, ((header + GAP + NOTE if beside else header).rstrip(),), len(header))
    for service in services:
        line = GAP.join(column.aligned(column.cell(service), size) for column, size in columns)
        yield Row(
            service, tuple(_with_note(line, words.note(service), width, beside=beside, most=note_lines)), len(line)
        )


def _choices(columns: list[tuple[Column, int]]) -> Iterator[list[tuple[Column, int]]]:
    """Yield all columns, and then fewer and fewer columns."""
    yield columns
    while most := max(column.drop for column, _ in columns):
        columns = [(column, size) for column, size in columns if column.drop != most]
        yield columns


def _with_note(line: str, note: str, width: int | None, *, beside: bool, most: int | None) -> Iterator[str]:
    """Yield the lines of a row, with its note beside or below it. The note is cut after `most` lines."""
    if not note:
        yield line.rstrip()
    elif width is None:
        yield line + GAP + note
    elif not beside:
        yield line.rstrip()
        yield from (INDENT + part for part in _wrapped(note, width - len(INDENT), most))
    else:
        first, *more = _wrapped(note, width - len(line) - len(GAP), most)
        yield line + GAP + first
        yield from (" " * len(line) + GAP + rest for rest in more)


def _wrapped(note: str, width: int, most: int | None) -> list[str]:
    return textwrap.wrap(note, width, break_on_hyphens=False, max_lines=most, placeholder=" ...")


def _width(column: Column, services: Sequence[ServiceStatus]) -> int:
    return max([len(column.name), *(len(column.cell(service)) for service in services)])


def _sum(columns: Sequence[tuple[Column, int]]) -> int:
    return sum(size for _, size in columns) + len(GAP) * (len(columns) - 1)
