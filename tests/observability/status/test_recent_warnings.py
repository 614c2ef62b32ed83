from __future__ import annotations

import logging

import pytest
import structlog

from kubeproxy.observability.logs import setup as ours
from kubeproxy.observability.status.recent_warnings import KEPT, RecentWarnings


@pytest.fixture
def recent_warnings(logging_restored: None) -> RecentWarnings:
    handler = RecentWarnings()
    ours.configure(verbosity=0)
    handler.attach()
    return handler


def test_warnings_and_errors_are_kept_newest_first(recent_warnings: RecentWarnings) -> None:
    log = structlog.get_logger("kubeproxy.test")
    log.info("all is well")
    log.warning("watch ended", source="kubernetes", retry_in_s=1.5)
    logging.getLogger("aiohttp").error("oh %s", "dear")
    kept = recent_warnings.newest_first()
    assert [(it.level, it.text, it.details) for it in kept] == [
        ("error", "oh dear", ""),
        ("warning", "watch ended", "source=kubernetes retry_in_s=1.5"),
    ]
    assert kept[0].at >= kept[1].at > 1_600_000_000


def test_repeats_are_counted(recent_warnings: RecentWarnings) -> None:
    log = structlog.get_logger("kubeproxy.test")
    for _ in range(3):
        log.warning("again")
    log.warning("another")
    assert [(it.text, it.times) for it in recent_warnings.newest_first()] == [("another", 1), ("again", 3)]


def test_only_the_text_of_an_exception_is_kept(recent_warnings: RecentWarnings) -> None:
    try:
        raise ValueError("no such thing")
    except ValueError:
        structlog.get_logger("kubeproxy.test").exception("internal error", part="proxier")
    (kept,) = recent_warnings.newest_first()
    assert kept.details == "part=proxier error=ValueError: no such thing"


def test_memory_is_bounded(recent_warnings: RecentWarnings) -> None:
    log = structlog.get_logger("kubeproxy.test")
    for number in range(2 * KEPT):
        log.warning("w" * 5000, number=number, text="d" * 5000)
    assert len(recent_warnings.newest_first()) == KEPT
    assert max(len(it.text) + len(it.details) for it in recent_warnings.newest_first()) <= 800


def test_a_second_handler_replaces_the_first(recent_warnings: RecentWarnings) -> None:
    second = RecentWarnings()
    second.attach()
    structlog.get_logger("kubeproxy.test").warning("logged once")
    assert recent_warnings.newest_first() == ()
    assert len(second.newest_first()) == 1
    logging.getLogger().removeHandler(second)


def test_secrets_of_urls_are_redacted(recent_warnings: RecentWarnings) -> None:
    structlog.get_logger("kubeproxy.test").warning("cannot read", url="https://me:secret@host/a?token=secret")
    assert "secret" not in str(recent_warnings.newest_first())
