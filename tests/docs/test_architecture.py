"""The modules and names that architecture.md, CONTRIBUTING.md, the glossary, docstrings and comments mention exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Page

PACKAGE = ROOT / "kubeproxy"
ARCHITECTURE = Page(ROOT / "docs/architecture.md")
PAGES = (ARCHITECTURE, Page(ROOT / "CONTRIBUTING.md"), Page(ROOT / "docs/glossary.md"))

_ROW = re.compile(r"^\| `([a-z/]+)/` \| (.+) \|$", re.MULTILINE)
_LISTED = re.compile(r"^ *([a-z_]+/?(?:, [a-z_]+/?)*) {2,}\S", re.MULTILINE)


@cache
def modules() -> frozenset[str]:
    """Modules and folders, as paths from the package: ``proxier/plan``, ``proxier``."""
    found = {path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py")}
    return frozenset(str(path) for it in found for path in (it, it.parent))


def docstring(room: Path) -> str:
    return ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8"))) or ""


def rooms() -> list[Path]:
    return sorted(path.parent for path in PACKAGE.rglob("__init__.py"))


@pytest.mark.parametrize("page", [ARCHITECTURE, PAGES[1]], ids=lambda page: page.name)
def test_rooms_in_tables_hold_the_named_modules(page: Page) -> None:
    rows = _ROW.findall(page.text)
    assert rows
    named = {f"{room}/{name}" for room, text in rows for name in re.findall(r"`([a-z_]+)/?`(?!\S*/)", text)}
    assert {name for name in named - modules() if name.rpartition("/")[2] not in modules()} == set()


def test_the_table_of_architecture_names_every_room() -> None:
    top = {name for name in modules() if "/" not in name and (PACKAGE / name).is_dir() and name != "."}
    assert top - {room for room, _ in _ROW.findall(ARCHITECTURE.text)} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_within_the_package_exist(page: Page) -> None:
    """``proxier/plan`` and ``workers/pool``: a path from the package or from a folder in it."""
    folders = {path.name for path in rooms()}
    named = {
        text.removesuffix(".py").rstrip("/") for text in page.spans if re.fullmatch(r"[a-z_]+(/[a-z_]*)+(\.py)?", text)
    }
    ends = {name[at:] for name in modules() for at in [0, *(found.end() for found in re.finditer("/", name))]}
    assert {name for name in named if name.partition("/")[0] in folders - {PACKAGE.name}} - ends == set()


@pytest.mark.parametrize("room", rooms(), ids=lambda room: str(room.relative_to(ROOT)))
def test_the_docstring_of_a_room_names_what_exists(room: Path) -> None:
    text = docstring(room)
    listed = {name.rstrip("/") for names in _LISTED.findall(text) for name in names.split(", ")}
    assert sorted(name for name in listed if not find_module(room, name)) == []
    sources = "\n".join(path.read_text(encoding="utf-8") for path in room.rglob("*.py") if path.name != "__init__.py")
    for name in re.findall(r"(?<!`)`([A-Za-z_.]+)`(?!`)", text):
        if name.startswith("kubeproxy."):
            assert find_spec(name), name
        else:
            defined = re.search(rf"^ *(?:async )?(?:def|class) {name}\b|^ +{name}: ", sources, re.MULTILINE)
            assert defined or any(path.stem == name for path in room.rglob("*")), name
    for name in re.findall(r"``(kubeproxy\.[a-z_.]+)``", text):
        assert find_spec(name), name


def find_module(room: Path, name: str) -> bool:
    return (room / name).is_dir() or (room / f"{name}.py").is_file()


# The program's text in three kinds: strings in triple quotes, which are docstrings; comments; and all other strings. It
# takes a fraction of the time of `tokenize`.
_TEXTS = re.compile(
    r'(?P<comment>"""(?:[^\\]|\\.)*?"""|#[^\n]*)|"(?:[^"\\\n]|\\.)*"' r"|'(?:[^'\\\n]|\\.)*'", re.DOTALL
)


def test_comments_mention_what_exists() -> None:
    """Single backticks are for names of this program; double ones for all else."""
    names: set[str] = set()
    mentioned: list[tuple[Path, str]] = []
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        names.update(path.relative_to(ROOT).with_suffix("").parts)
        names.update(re.findall(r"\w+", _TEXTS.sub(" ", text)))
        mentioned += [
            (path, it)
            for found in _TEXTS.finditer(text)
            for it in re.findall(r"(?<!`)`([A-Za-z_][\w./]*)`(?!`)", found["comment"] or "")
        ]
    assert [it for it in mentioned if not {part for part in re.split("[./]", it[1]) if part} <= names] == []
