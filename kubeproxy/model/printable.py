"""Makes text of servers and tenants safe for terminals and logs.

A terminal obeys control characters: they set its title, clear it, colour it, or let text run backwards. So every
character that does not print is written as JSON would escape it.
"""

from __future__ import annotations

import json


def printable(text: str) -> str:
    r"""Return the text on one line, with ``\u001b`` for an escape, ``\n`` for a line break, and ``\u202e`` for a change
    of the writing direction. A JSON text means the same afterwards."""
    return text if text.isprintable() else "".join(each if each.isprintable() else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return "\\u007f" if character == "\x7f" else json.dumps(character)[1:-1]
