"""Parts that fail start again, and the log names the kind of failure."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from kubeproxy.model.errors import KernelError
from kubeproxy.runtime import keep_running
from kubeproxy.runtime.keep_running import kept_running

NO_THREAD = RuntimeError("can't start new thread")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (KernelError("nft is not there"), "part failed"),
        (MemoryError(), "part lacks memory or threads"),
        (NO_THREAD, "part lacks memory or threads"),
        (
            ExceptionGroup("tasks", [MemoryError(), ExceptionGroup("more", [NO_THREAD])]),
            "part lacks memory or threads",
        ),
        (ExceptionGroup("tasks", [MemoryError(), ValueError()]), "part failed by internal error"),
        (RuntimeError("no running event loop"), "part failed by internal error"),
    ],
    ids=repr,
)
async def test_a_failed_part_is_logged_and_starts_again(
    error: Exception, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keep_running, "RESTART_S", 0.001)
    fails = [error, error]

    async def part() -> None:
        if fails:
            raise fails.pop()

    with capture_logs() as logs:
        await kept_running("part", part)
    assert [(line["event"], line["part"]) for line in logs] == [(expected, "part")] * 2
