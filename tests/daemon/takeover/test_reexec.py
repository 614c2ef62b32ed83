"""Reasons to refuse a re-exec; `tests/system/e2e/test_restart_and_upgrade.py` has re-execs."""

from __future__ import annotations

import sys

import pytest

from kubeproxy.daemon.takeover import reexec


def test_a_process_refuses_to_reexec_when_connections_would_be_lost() -> None:
    assert reexec.obstacle(holds_connections=False, settled=True) is None
    assert "every connection would be lost" in (reexec.obstacle(holds_connections=True, settled=True) or "")
    assert "takeover" in (reexec.obstacle(holds_connections=False, settled=False) or "")


@pytest.mark.parametrize(("words", "why"), [
    (["/nonexistent/python"], "cannot execute /nonexistent/python: No such file or directory"),
    ([sys.executable, "-c", "import sys; sys.exit('that is no configuration')"], "that is no configuration"),
    ([sys.executable, "-c", "import sys; sys.exit(3)"], "the new code ended with status 3"),
    ([sys.executable, "-c", ""], None),
])  # fmt: skip
async def test_code_that_does_not_start_is_refused(words: list[str], why: str | None) -> None:
    assert await reexec.why_not(words) == why


async def test_code_that_does_not_answer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reexec, "CHECK_S", 0.1)
    words = [sys.executable, "-c", "import time; time.sleep(600)"]
    assert await reexec.why_not(words) == "the new code did not answer within 0.1 s"
