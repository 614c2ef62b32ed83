"""Writes to standard output and standard error. All commands print with this module.

Most lines contain text from servers and tenants, so control characters that could affect a terminal are escaped.
"""

from __future__ import annotations

import sys
from typing import TextIO

from kubeproxy.model.printable import printable


def echo(*lines: str, err: bool = False) -> None:
    """Print lines to standard output, or with `err` to standard error."""
    write_lines(sys.stderr if err else sys.stdout, *lines)


def write_lines(stream: TextIO, *lines: str) -> None:
    """Write each text as one line, with characters that are not printable escaped."""
    stream.write("".join(f"{printable(line)}\n" for line in lines))
    stream.flush()


def write_data(stream: TextIO, text: str) -> None:
    """Write the text of objects. It is written unchanged to a file or pipe, and made printable for a terminal. `text`
    has its line ends."""
    if stream.isatty():
        text = "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))
    stream.write(text)
    stream.flush()
