"""What stands against a renewal; renewals themselves are in `tests/system/e2e/test_succession.py`."""

from __future__ import annotations

import sys

import pytest

from kubeproxy.daemon.takeover import reexec


def test_the_process_itself_may_stand_against_it() -> None:
    assert reexec.obstacle(workers=True, settled=True) is None
    assert "every connection would be lost" in (reexec.obstacle(workers=False, settled=True) or "")
    assert "taking over" in (reexec.obstacle(workers=True, settled=False) or "")


@pytest.mark.parametrize(("words", "why"), [
    (["/nonexistent/python"], "cannot execute /nonexistent/python: No such file or directory"),
    ([sys.executable, "-c", "import sys; sys.exit('that is no configuration')"], "that is no configuration"),
    ([sys.executable, "-c", "import sys; sys.exit(3)"], "the new code ended with status 3"),
    ([sys.executable, "-c", ""], None),
])  # fmt: skip
async def test_the_code_on_disk_may(words: list[str], why: str | None) -> None:
    assert await reexec.why_not(words) == why


async def test_code_that_does_not_answer_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reexec, "CHECK_S", 0.1)
    words = [sys.executable, "-c", "import time; time.sleep(600)"]
    assert await reexec.why_not(words) == "the new code did not answer within 0.1 s"
