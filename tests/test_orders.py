"""Signals, sent to this very process."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from kubeproxy.orders import Orders
from kubeproxy.renewal import SIGNALS


@pytest.fixture
def orders() -> Iterator[Orders]:
    """What signals do and which are let through is as before when the test is over."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield Orders()
    for number, handler in before.items():
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


async def heard(event: asyncio.Event) -> None:
    async with asyncio.timeout(30):
        await event.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_second_word_to_stop_means_at_once(orders: Orders, number: signal.Signals) -> None:
    orders.listen()
    os.kill(os.getpid(), number)
    await heard(orders.stop)
    assert not orders.at_once.is_set()
    os.kill(os.getpid(), number)
    await heard(orders.at_once)
    assert not orders.reload.is_set()
    assert not orders.renew.is_set()


async def test_reload_and_renew(orders: Orders) -> None:
    orders.listen()
    os.kill(os.getpid(), signal.SIGHUP)
    await heard(orders.reload)
    assert not orders.renew.is_set()
    os.kill(os.getpid(), signal.SIGUSR2)
    await heard(orders.renew)
    assert not orders.stop.is_set()


async def test_what_was_said_during_a_renewal_is_heard_after_it(orders: Orders) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    # To this thread: the process may have others, which do not hold it back, and nobody handles it yet.
    signal.pthread_kill(threading.get_ident(), signal.SIGHUP)
    orders.listen()
    await heard(orders.reload)
