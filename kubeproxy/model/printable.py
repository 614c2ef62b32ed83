"""Makes text from servers and tenants safe for terminals and logs.

Control characters could change a terminal's title, clear or colour it, or reverse the direction of text. So every
character that is not printable is escaped as in JSON.
"""

from __future__ import annotations

import json


def printable(text: str) -> str:
    r"""Return the text on one line, with characters that are not printable escaped, such as ``\u001b``, ``\n`` and
    ``\u202e``. A JSON text keeps its meaning."""
    return text if text.isprintable() else "".join(each if each.isprintable() else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return "\\u007f" if character == "\x7f" else json.dumps(character)[1:-1]
