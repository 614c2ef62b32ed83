"""Writes to standard output and standard error for the commands, which use no other way.

Most lines have text from servers and tenants, and a terminal would obey its control characters.
"""

from __future__ import annotations

import sys
from typing import TextIO

from kubeproxy.model.printable import printable


def echo(*lines: str, err: bool = False) -> None:
    """Print lines to standard output or standard error."""
    write_lines(sys.stderr if err else sys.stdout, *lines)


def write_lines(stream: TextIO, *lines: str) -> None:
    """Write each text as one line."""
    stream.write("".join(f"{printable(line)}\n" for line in lines))
    stream.flush()


def write_data(stream: TextIO, text: str) -> None:
    """Write objects, unchanged for a program and made printable for a terminal. `text` has its line ends already."""
    if stream.isatty():
        text = "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))
    stream.write(text)
    stream.flush()
