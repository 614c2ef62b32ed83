"""Finds language that the rules in CONTRIBUTING.md exclude: ``python -m tests.docs.language [FILE ...]`` lists it.

``--update`` takes the files that are clean by now off the list ``tests/docs/unclean_files.txt``.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from docs.generators.log_messages import messages
from tests.docs.pages import ROOT

UNCLEAN = Path(__file__).with_name("unclean_files.txt")
"""Files that still break a rule, one in each line. The list may only become shorter."""

FIRST_SENTENCE_WORDS = 20
"""The rule is 15; a name that is a path or a metric makes some sentences longer."""

MESSAGE_WORDS = 8
"""The rule is 6."""

_PERSONS = r"who|whoever|whom|whomever|whose|nobody|somebody|anybody|everybody|someone|everyone"
_BE = r"is|are|was|were|be|been|being"

WORDING = re.compile(
    rf"""
      (?<![-\w])(?: whoever | whom | whomever | nobody | somebody | anybody | everybody )\b
    | \b(?: {_BE} )\s+ (?:not\s+|never\s+|also\s+|then\s+)? (?: told | said | heard | spoken )\b
    | \b(?: told | tells? | asks? | knows ) \s+ (?: {_PERSONS} )\b
    | \b(?: takes? \s+ leave | makes? \s+ way | made \s+ way | lets? \s+ go | looks? \s+ after | gives? \s+ away )\b
    """,
    re.IGNORECASE | re.VERBOSE,
)
"""Persons where a component is meant, persons' verbs in the passive voice, and metaphors that were frequent."""

NAMING = re.compile(rf"(?:^|_)(?: {_PERSONS} | told | said | heard | anybody )(?:_|$)", re.VERBOSE)
"""The same in the name of a test."""

SUFFIXES = (".py", ".md", ".yaml", ".sh", ".service", ".sysusers", ".tmpfiles")
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
    tests = (ROOT / "tests").rglob("*.py")
    found = [*folders, *tests, *ROOT.glob("*.md"), ROOT / "Makefile", ROOT / "Dockerfile"]
    named = (path for path in found if path.is_file() and (path.suffix in SUFFIXES or path.name in NAMES))
    return tuple(sorted({str(path.relative_to(ROOT)) for path in named} - EXCEPT))


@cache
def findings() -> tuple[Finding, ...]:
    """All of them."""
    return tuple(it for file in files() for it in _in_file(file)) + tuple(_long_messages())


def listed() -> list[str]:
    """The files that may still have findings."""
    return [line for line in UNCLEAN.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]


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
    unclean = {it.file for it in findings()}
    if arguments == ["--update"]:
        head = [line for line in UNCLEAN.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
        UNCLEAN.write_text("\n".join([*head, *(file for file in listed() if file in unclean)]) + "\n", encoding="utf-8")
        return
    for it in findings():
        if not arguments or it.file in arguments:
            print(it)


if __name__ == "__main__":
    _main(sys.argv[1:])
