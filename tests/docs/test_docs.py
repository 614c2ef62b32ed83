"""What README and docs/ name exists: links, files, tests, make targets, modules, commands, flags; and what they show as
configuration or manifest is taken."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import click
import pytest

from kubeproxy.cli.main import commands, status_of
from kubeproxy.config.flags import flags
from kubeproxy.config.load import load
from kubeproxy.sources.manifests.check import check
from tests.docs.pages import ROOT, Page, pages

every_page = pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)

ROOMS = ("kubeproxy", "tests", "deploy", "systemd", "docs")
"""Directories of this project that paths in documents begin with."""


@cache
def names_of_tests() -> frozenset[str]:
    found = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        found.add(path.name)
        found.update(re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8")))
    return frozenset(found)


@cache
def targets() -> frozenset[str]:
    return frozenset(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def command(name: str) -> click.Command | None:
    return commands.get_command(click.Context(commands), name)


@cache
def options() -> frozenset[str]:
    """Of all commands."""
    context = click.Context(commands)
    found = {flag.dashed for flag in flags().values()} | {"--help"}
    for name in commands.list_commands(context):
        known = command(name)
        assert known is not None
        parts = known.commands.values() if isinstance(known, click.Group) else ()
        found.update(opt for it in (known, *parts) for parameter in it.params for opt in parameter.opts)
    return frozenset(found)


@every_page
def test_links_lead_somewhere(page: Page) -> None:
    dead = []
    for link in page.links:
        if re.match(r"https?:", link):
            continue
        target, _, anchor = link.partition("#")
        path = page.path.parent / target if target else page.path
        if not path.exists() or (anchor and anchor not in Page(path).anchors):
            dead.append(link)
    assert dead == []


def test_every_page_is_reached_from_the_readme() -> None:
    linked = {(ROOT / link.partition("#")[0]).resolve() for link in pages()[0].links}
    assert [page.name for page in pages()[1:] if page.path not in linked] == []


@every_page
def test_named_tests_exist(page: Page) -> None:
    named = set(re.findall(r"\btest_\w+(?:\.py)?", page.text))
    assert named - names_of_tests() == set()


@cache
def annotation_keys() -> frozenset[str]:
    """The annotations of ours, which look like paths: ``kubeproxy/drain``."""
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "kubeproxy").rglob("*.py"))
    return frozenset(found for text in sources for found in re.findall(r'"(kubeproxy/[a-z-]+)"', text))


@every_page
def test_named_files_exist(page: Page) -> None:
    named = set()
    for text in page.commands:
        for word in re.split(r"[\s=\"']+", text):
            path = word.partition("::")[0].rstrip(".,;:)")
            if path.partition("/")[0] in ROOMS and "/" in path and not re.search(r"[*<{…]", path):
                named.add(path)
    named_by_end = {text for text in page.spans if re.fullmatch(r"[\w/]+\.py", text)}
    modules = {str(path.relative_to(ROOT)) for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    assert [name for name in sorted(named_by_end) if not any(f"/{it}".endswith(f"/{name}") for it in modules)] == []
    made_by_reader = "deploy/mine"
    missing = [path for path in sorted(named - annotation_keys()) if not (ROOT / path).exists()]
    assert [path for path in missing if not path.startswith(made_by_reader)] == []


@every_page
def test_named_make_targets_exist(page: Page) -> None:
    named = {found for text in page.commands for found in re.findall(r"(?:^|sudo )make ([a-z-]+)(?![a-z-]*=)", text)}
    assert named - targets() == set()


@every_page
def test_named_modules_exist(page: Page) -> None:
    named = {found for text in page.commands for found in re.findall(r"python -m ((?:kubeproxy|tests)[\w.]*)", text)}
    assert [module for module in sorted(named) if find_spec(module) is None] == []


def _ours(page: Page) -> Iterator[list[str]]:
    """The command lines of ours that a page shows, as words after the program's name."""
    for text in page.commands:
        if found := re.match(r"(?:= )?(?:sudo )?(?:\S*/)?kubeproxy (.+)", text):
            yield found[1].split()


@every_page
def test_named_commands_exist(page: Page) -> None:
    assert [words for words in _ours(page) if re.fullmatch("[a-z]+", words[0]) and command(words[0]) is None] == []


@every_page
def test_flags_in_command_lines_exist(page: Page) -> None:
    given = {word.partition("=")[0] for words in _ours(page) for word in words if word.startswith("--")}
    assert {flag.rstrip(".,;)") for flag in given} - options() == set()


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(block, id=f"{page.name} {number}")
        for page in pages()
        for number, block in enumerate(page.blocks("yaml"))
    ],
)
def test_what_is_shown_as_yaml_is_taken(text: str, tmp_path: Path) -> None:
    file = tmp_path / "shown.yaml"
    file.write_text(text)
    if "KubeProxyConfiguration" in text:
        assert load({"config": [str(file)]}).warnings == ()
        return
    survey = check([str(file)])
    assert survey.faults == ()
    assert survey.services
    assert survey.slices


def test_the_configuration_that_is_installed_is_taken() -> None:
    for file in [ROOT / "systemd/etc/config.yaml", *(ROOT / "deploy").rglob("config.yaml")]:
        assert load({"config": [str(file)]}).warnings == (), file


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["--help"]) == 0
    said = capsys.readouterr().out
    for name in commands.list_commands(click.Context(commands)):
        assert re.search(rf"^  {name} +\S", said, re.MULTILINE), name


def test_the_readme_names_every_command() -> None:
    shown = {words[0] for words in _ours(pages()[0])}
    assert set(commands.list_commands(click.Context(commands))) - shown - {"version"} == set()
