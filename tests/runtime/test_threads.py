"""Threads that do not delay the end of the process."""

from __future__ import annotations

import asyncio
import gc
import importlib
import sys
import threading
from pathlib import Path

import pytest

from kubeproxy.runtime import threads
from kubeproxy.runtime.threads import ThreadNotStartedError, imported, in_thread


async def test_the_work_runs_in_another_thread() -> None:
    assert await in_thread(threading.get_ident) != threading.get_ident()


async def test_an_error_reaches_the_caller() -> None:
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 // 0)


async def test_a_thread_without_memory_to_begin_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "BEGIN_S", 0.05)
    monkeypatch.setattr("_thread.start_new_thread", lambda call, arguments: 1)
    with pytest.raises(MemoryError, match="no memory for a new thread"):
        await in_thread(threading.get_ident)


async def test_a_refused_thread_has_done_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(call: object, arguments: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("_thread.start_new_thread", refuse)
    with pytest.raises(ThreadNotStartedError, match="can't start new thread"):
        await in_thread(threading.get_ident)


async def test_a_slow_thread_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "BEGIN_S", 0.05)
    release = threading.Event()
    threading.Timer(0.2, release.set).start()
    assert await in_thread(lambda: release.wait(10))


async def test_an_error_after_cancellation_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    begun, release, over = threading.Event(), threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def fail() -> None:
        begun.set()
        release.wait(30)
        loop.call_soon_threadsafe(loop.call_soon, over.set)  # behind what is settled
        raise ZeroDivisionError

    task = asyncio.ensure_future(in_thread(fail))
    while not begun.is_set():
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    release.set()
    async with asyncio.timeout(30):
        await over.wait()
    await asyncio.sleep(0.01)
    gc.collect()
    assert not caplog.records


async def test_the_loop_goes_on_while_modules_are_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_module.py").write_text("import threads_turn\nTURNED = threads_turn.event.wait(30)\n")
    (tmp_path / "threads_turn.py").write_text("import threading\nevent = threading.Event()\n")
    monkeypatch.syspath_prepend(tmp_path)
    turn = importlib.import_module("threads_turn")
    asyncio.get_running_loop().call_later(0.05, turn.event.set)
    try:
        await imported("slow_module")
        assert sys.modules["slow_module"].TURNED
    finally:
        del sys.modules["slow_module"], sys.modules["threads_turn"]
