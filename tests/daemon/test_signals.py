"""Signals, sent to this process."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from kubeproxy.daemon.signals import Signals
from kubeproxy.daemon.takeover.reexec import SIGNALS


@pytest.fixture
def signals() -> Iterator[Signals]:
    """What signals do and which are let through is as before when the test is over."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield Signals()
    for number, handler in before.items():
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


async def arrived(event: asyncio.Event) -> None:
    async with asyncio.timeout(30):
        await event.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_stops_at_once(signals: Signals, number: signal.Signals) -> None:
    signals.listen()
    os.kill(os.getpid(), number)
    await arrived(signals.stop)
    assert not signals.at_once.is_set()
    os.kill(os.getpid(), number)
    await arrived(signals.at_once)
    assert not signals.reload.is_set()
    assert not signals.renew.is_set()


async def test_reload_and_reexec(signals: Signals) -> None:
    signals.listen()
    os.kill(os.getpid(), signal.SIGHUP)
    await arrived(signals.reload)
    assert not signals.renew.is_set()
    os.kill(os.getpid(), signal.SIGUSR2)
    await arrived(signals.renew)
    assert not signals.stop.is_set()


async def test_signals_during_a_reexec_arrive_after_it(signals: Signals) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    # To this thread: the process may have others, which do not hold it back, and there is no handler yet.
    signal.pthread_kill(threading.get_ident(), signal.SIGHUP)
    signals.listen()
    await arrived(signals.reload)
