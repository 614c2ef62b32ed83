"""Signals, sent to this very process."""

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


async def heard(event: asyncio.Event) -> None:
    async with asyncio.timeout(30):
        await event.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_second_word_to_stop_means_at_once(signals: Signals, number: signal.Signals) -> None:
    signals.listen()
    os.kill(os.getpid(), number)
    await heard(signals.stop)
    assert not signals.at_once.is_set()
    os.kill(os.getpid(), number)
    await heard(signals.at_once)
    assert not signals.reload.is_set()
    assert not signals.renew.is_set()


async def test_reload_and_renew(signals: Signals) -> None:
    signals.listen()
    os.kill(os.getpid(), signal.SIGHUP)
    await heard(signals.reload)
    assert not signals.renew.is_set()
    os.kill(os.getpid(), signal.SIGUSR2)
    await heard(signals.renew)
    assert not signals.stop.is_set()


async def test_what_was_said_during_a_renewal_is_heard_after_it(signals: Signals) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    # To this thread: the process may have others, which do not hold it back, and nobody handles it yet.
    signal.pthread_kill(threading.get_ident(), signal.SIGHUP)
    signals.listen()
    await heard(signals.reload)
