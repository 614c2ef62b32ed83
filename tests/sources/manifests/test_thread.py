"""Threads that nobody waits for at the end."""

from __future__ import annotations

import threading

import pytest

from kubeproxy.sources.manifests import thread
from kubeproxy.sources.manifests.thread import NotBegun, in_thread


async def test_the_result_is_that_of_another_thread() -> None:
    assert await in_thread(threading.get_ident) != threading.get_ident()


async def test_an_error_is_the_callers() -> None:
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 // 0)


async def test_one_that_finds_no_memory_to_begin_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread, "BEGIN_S", 0.05)
    monkeypatch.setattr("_thread.start_new_thread", lambda call, arguments: 1)
    with pytest.raises(MemoryError, match="no memory to begin"):
        await in_thread(threading.get_ident)


async def test_one_that_the_kernel_refuses_has_done_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(call: object, arguments: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("_thread.start_new_thread", refuse)
    with pytest.raises(NotBegun, match="can't start new thread"):
        await in_thread(threading.get_ident)


async def test_one_that_takes_its_time_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread, "BEGIN_S", 0.05)
    let_go = threading.Event()
    threading.Timer(0.2, let_go.set).start()
    assert await in_thread(lambda: let_go.wait(10))
