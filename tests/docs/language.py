"""Finds language that the rules in CONTRIBUTING.md exclude: ``python -m tests.docs.language [FILE ...]`` lists it."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from docs.generators.log_messages import messages
from tests.docs.pages import ROOT

FIRST_SENTENCE_WORDS = 20
"""The rule is 15; a name that is a path or a metric makes some sentences longer."""

MESSAGE_WORDS = 8
"""The rule is 6."""

PERSONS = tuple(
    start + end
    for starts, ends in (
        (("no", "some", "any", "every"), ("body", "one")),
        (("wh",), ("o", "om", "ose", "oever", "omever")),
        (("to",), ("ld",)),
        (("il",), ("l",)),
    )
    for start in starts
    for end in ends
)
"""Words for persons: the component has a name. In parts, so that a search of the project finds none of them."""
_BE = r"is|are|was|were|be|been|being"

WORDING = re.compile(
    rf"""
      (?<![-A-Za-z0-9]) (?: {"|".join(PERSONS)} ) (?![A-Za-z0-9])
    | \b(?: {_BE} )\s+ (?:not\s+|never\s+|also\s+|then\s+)? (?: said | heard | spoken )\b
    | (?<![A-Za-z0-9]) (?: takes?[\s_]+leave | ma[dk]es?[\s_]+way | lets?[\s_]+go | looks?[\s_]+after
      | gives?[\s_]+away ) (?![A-Za-z0-9])
    """,
    re.IGNORECASE | re.VERBOSE,
)
"""Words for persons where a component is meant, persons' verbs in the passive voice, and metaphors that were frequent.
The words are found in identifiers, too. After a hyphen they are part of another program's option."""

NAMING = re.compile(r"(?:^|_)(?: said | heard )(?:_|$)", re.VERBOSE)
"""What else the name of a test does not have."""

SUFFIXES = (".py", ".md", ".yaml", ".sh", ".service", ".sysusers", ".tmpfiles", ".html", ".js", ".css", ".toml")
NAMES = ("Makefile", "Dockerfile")
EXCEPT = {
    *("docs/configuration.md", "docs/log-messages.md", "docs/metrics.md"),  # generated from files that are checked
    *("tests/docs/language.py", "tests/docs/test_language.py"),  # they name what is excluded
}


@dataclass(frozen=True)
class Finding:
    """One place that breaks a rule."""

    file: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.rule}: {self.text}"


@cache
def files() -> tuple[str, ...]:
    """Every file that the rules apply to, relative to the root."""
    folders = [path for name in ("kubeproxy", "docs", "deploy", "systemd") for path in (ROOT / name).rglob("*")]
    tests = [path for ending in ("*.py", "*.sh") for path in (ROOT / "tests").rglob(ending)]
    found = [*folders, *tests, *ROOT.glob("*.md"), ROOT / "pyproject.toml", ROOT / "Makefile", ROOT / "Dockerfile"]
    named = (path for path in found if path.is_file() and (path.suffix in SUFFIXES or path.name in NAMES))
    return tuple(sorted({str(path.relative_to(ROOT)) for path in named} - EXCEPT))


@cache
def findings() -> tuple[Finding, ...]:
    """All of them."""
    return tuple(it for file in files() for it in _in_file(file)) + tuple(_long_messages())


def _in_file(file: str) -> Iterator[Finding]:
    text = (ROOT / file).read_text(encoding="utf-8")
    for found in WORDING.finditer(text):
        yield Finding(file, text.count("\n", 0, found.start()) + 1, "wording", " ".join(found[0].split()))
    if file.endswith(".py"):
        yield from _definitions(file, ast.parse(text))


def _definitions(file: str, tree: ast.Module) -> Iterator[Finding]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if not isinstance(node, ast.Module) and node.name.startswith("test_") and NAMING.search(node.name):
            yield Finding(file, node.lineno, "name of a test", node.name)
        text = ast.get_docstring(node)
        if not text:
            continue
        line = getattr(node, "lineno", 1)
        first = re.split(r"(?<=[.:!?])\s|\n\n", text, maxsplit=1)[0]
        if len(first.split()) > FIRST_SENTENCE_WORDS:
            yield Finding(file, line, f"first sentence over {FIRST_SENTENCE_WORDS} words", first)
        if not isinstance(node, ast.Module) and restates(text, node.name):
            yield Finding(file, line, "docstring restates the name", f'{node.name}: "{text}"')


def restates(text: str, name: str) -> bool:
    """Whether a docstring has at most two words, all of them words of the name."""
    words = re.findall(r"[a-z]+", text.lower().replace("'s", ""))
    parts = [part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)]
    words = [word for word in words if word not in ("a", "an", "the", "its", "of")]
    same = [any(word[:4] == part[:4] for part in parts) for word in words]
    return len(words) <= 2 and all(same)


def _long_messages() -> Iterator[Finding]:
    for it in messages():
        if len(it.text.split()) > MESSAGE_WORDS:
            yield Finding(f"kubeproxy/{it.file}", it.line, f"log message over {MESSAGE_WORDS} words", it.text)


def _main(arguments: list[str]) -> None:
    for it in findings():
        if not arguments or it.file in arguments:
            print(it)


if __name__ == "__main__":
    _main(sys.argv[1:])
