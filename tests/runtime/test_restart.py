"""Parts that fail are started again, and it is said whose fault it was."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from kubeproxy.model.errors import KernelError
from kubeproxy.runtime import restart
from kubeproxy.runtime.restart import kept_running

NO_THREAD = RuntimeError("can't start new thread")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KernelError("nft is not there"), "cannot go on; tries again"),
        (MemoryError(), "short of memory or threads; starts again"),
        (NO_THREAD, "short of memory or threads; starts again"),
        (
            ExceptionGroup("tasks", [MemoryError(), ExceptionGroup("more", [NO_THREAD])]),
            "short of memory or threads; starts again",
        ),
        (ExceptionGroup("tasks", [MemoryError(), ValueError()]), "internal error; starts again"),
        (RuntimeError("no running event loop"), "internal error; starts again"),
    ],
    ids=repr,
)
async def test_whose_fault_it_was(error: Exception, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restart, "RESTART_S", 0.001)
    fails = [error, error]

    async def part() -> None:
        if fails:
            raise fails.pop()

    with capture_logs() as logs:
        await kept_running("part", part)
    assert [(line["event"], line["part"]) for line in logs] == [(said, "part")] * 2
