"""docs/log-messages.md lists what the sources log."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from docs.generators.log_explanations import EXPLANATIONS
from docs.generators.log_messages import computed, log_calls, messages, render
from tests.docs.pages import Page, pages

COMPUTED = {"kubeproxy/observability/monitor/monitor.py"}
"""Files that log a text which another component returns."""

PAGE = Path(__file__).parents[2] / "docs" / "log-messages.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run: make docs"


def test_log_messages_have_constant_texts() -> None:
    assert {"kubeproxy/" + place.partition(":")[0] for place in computed()} <= COMPUTED


def test_every_explained_message_is_logged() -> None:
    assert EXPLANATIONS.keys() - {it.text for it in messages()} == set()


def test_every_warning_and_error_is_explained() -> None:
    texts = {it.text for it in messages() if it.level in ("warning", "error")}
    assert texts - EXPLANATIONS.keys() == set(), "explain it in docs/generators/log_explanations.py"


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_messages_that_a_page_links_to_are_logged(page: Page) -> None:
    named = {" ".join(text.split()) for text in re.findall(r"\[`([^`]+)`\]\([\w./]*log-messages\.md\)", page.text)}
    assert named - {it.text for it in messages()} == set()


def test_calls_of_a_logger_are_found_with_their_texts_and_fields() -> None:
    source = """
MISSING = "no node"
def look(self, error):
    log.info("serving", services=1, **more)
    self._log.warning(f"deleted {what}", key=1, count=2)
    (log.debug if quiet else log.error)("cannot listen", reason=error)
    tell = log.warning if bad else log.info
    tell("a watch ended", exc_info=error)
    log.error(MISSING if gone else "node leaving")
    dialog.show("no call of a logger")
    log.warning(complaint)
    self._limited = RateLimitedLog(log)
    self._limited.error("too many", key=1)
"""
    found = [(it.level, it.texts, it.fields) for it in log_calls(ast.parse(source))]
    assert sorted(found) == [
        ("error", ("cannot listen",), ("reason",)),
        ("error", ("no node", "node leaving"), ()),
        ("error", ("too many",), ()),
        ("info", ("serving",), ("services", "…")),
        ("warning", (), ()),
        ("warning", ("a watch ended",), ()),
        ("warning", ("deleted …",), ("count",)),
    ]
