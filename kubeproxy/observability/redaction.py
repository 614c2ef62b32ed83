"""Removes secrets from text that leaves the node."""

from __future__ import annotations

import re
from typing import Final

HIDDEN: Final = "[redacted]"

_PATTERNS: Final = (
    # PEM blocks of keys, and keys or certificates as one line of base64, as in a kubeconfig.
    (re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[^-]*-----END [A-Z ]{0,40}PRIVATE KEY-----"), HIDDEN),
    (re.compile(r"\bLS0tLS1CRUdJTi[A-Za-z0-9+/=]+"), HIDDEN),
    # JSON web tokens, such as those of ServiceAccounts.
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,4096}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*"), HIDDEN),
    (re.compile(r"(?i)\b(bearer|basic) +[A-Za-z0-9._~+/=-]{8,}"), rf"\1 {HIDDEN}"),
    # The value of a field or flag whose name says that it is a credential: `token: x`, `"password": "x"`, `--token=x`.
    # The name of a file with a credential may stay.
    (
        re.compile(
            r"(?i)\b((?:[a-z-]{0,20}[-_])?(?:token|password|passwd|secret|api[-_]?key|client-key-data)(?:-data)?)"
            r"(\"? {0,4}= {0,4}|: {1,4}|\" {0,4}[:,] {0,4}|[ ](?=[^-\s]))"
            r"(?!\[redacted)(\"[^\"\n]*\"|'[^'\n]*'|[^\s,}\]\"']+)"
        ),
        rf"\1\2{HIDDEN}",
    ),
    # The user and the query of a URL. No match extends beyond the next `://`, so that each character is examined once.
    (re.compile(r"(\w://)[^\s/@\"']+@"), rf"\1{HIDDEN}@"),
    (re.compile(r"(\w://(?:[^\s?:\"']|:(?!//))+)\?[^\s\"']+"), rf"\1?{HIDDEN}"),
)


def redact(text: str) -> str:
    """Replace what looks like a credential: private keys, tokens, passwords, and the user and query of URLs."""
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text
