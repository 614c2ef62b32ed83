"""Markdown, as far as its claims can be checked: links, headings, code."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Page:
    """One document."""

    path: Path

    @cached_property
    def text(self) -> str:
        """All of it."""
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def prose(self) -> str:
        """Without its blocks of code."""
        return _FENCED.sub("", self.text)

    @property
    def name(self) -> str:
        """Its path from the root of the project."""
        return str(self.path.relative_to(ROOT))

    @property
    def links(self) -> list[str]:
        """Where it leads, as written."""
        return _LINK.findall(self.prose)

    @property
    def anchors(self) -> set[str]:
        """Its headings, as links name them."""
        return {_anchor(heading) for heading in _HEADING.findall(self.prose)}

    @property
    def spans(self) -> list[str]:
        """What stands between single backticks, each on one line."""
        return [" ".join(span.split()) for span in _SPAN.findall(self.prose)]

    def blocks(self, language: str) -> list[str]:
        """The blocks of code in a language."""
        return [code for found, code in _FENCED.findall(self.text) if found == language]

    @property
    def commands(self) -> list[str]:
        """Spans, and lines of shell blocks without comment and continuation."""
        lines = [line for block in self.blocks("sh") for line in block.splitlines()]
        return self.spans + [line.partition(" #")[0].strip() for line in lines]


def pages() -> list[Page]:
    """All documents, the README first."""
    readme = ROOT / "README.md"
    others = sorted(path for path in ROOT.glob("*.md") if path != readme)
    return [Page(path) for path in (readme, *others, *sorted((ROOT / "docs").glob("*.md")))]


def _anchor(heading: str) -> str:
    """As GitHub makes it."""
    kept = re.sub(r"[^\w\- ]", "", heading.lower())
    return kept.strip().replace(" ", "-")
