"""Programs that hang, and programs that cannot be started."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kubeproxy.model.errors import KernelError
from kubeproxy.netfilter.subprocess import run


@pytest.mark.timeout(30)
async def test_a_program_is_killed_when_its_call_is_cancelled(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    task = asyncio.create_task(
        run("sh", "-c", f"echo $$ > {begun}.new; mv {begun}.new {begun}; exec sleep 60", timeout_s=60.0)
    )
    while not begun.exists():
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    process = Path("/proc", begun.read_text().strip())
    while process.exists():
        await asyncio.sleep(0.01)


async def test_a_program_without_a_thread_is_not_run_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor that cannot start a thread has put the work into its queue already."""
    queued: list[Callable[[], Any]] = []

    async def to_thread(function: Callable[..., Any], *arguments: Any) -> None:
        queued.append(lambda: function(*arguments))
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    with pytest.raises(KernelError, match="cannot run touch: can't start new thread; raise the limit on processes"):
        await run("touch", str(tmp_path / "done"), timeout_s=10.0)
    with pytest.raises(KernelError, match="was cancelled before it began"):
        queued[0]()
    assert not (tmp_path / "done").exists()


async def test_an_error_names_a_program_that_cannot_be_executed(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match="cannot run nft-is-not-here: No such file or directory; is it installed"):
        await run("nft-is-not-here", timeout_s=10.0)
    with pytest.raises(KernelError, match=f"cannot run {tmp_path}: Permission denied$"):
        await run(str(tmp_path), timeout_s=10.0)
