"""Every part exists before the takeover socket does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import fields

import pytest

from kubeproxy.daemon import assembly
from kubeproxy.daemon.assembly import Parts, build
from kubeproxy.daemon.sd_notify import Notifier
from kubeproxy.daemon.signals import Signals
from kubeproxy.daemon.takeover.control_socket import PREFIX
from kubeproxy.daemon.takeover.owner import OwnerCallbacks
from kubeproxy.daemon.takeover.takeover import Takeover
from kubeproxy.netfilter.port_holders import Holders
from kubeproxy.runtime.abstract_sockets import listening
from tests.config.files import of_flags


@pytest.fixture
async def built(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Parts, OwnerCallbacks, frozenset[str]]]:
    """The parts of a daemon without workers and packet filter, its callbacks, and the control sockets meanwhile."""
    kept: list[OwnerCallbacks] = []

    class Recorded(Takeover):
        def __init__(self, callbacks: OwnerCallbacks, **more: object) -> None:
            kept.append(callbacks)
            super().__init__(callbacks, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(assembly, "Takeover", Recorded)
    configuration = of_flags(workers="0", netfilter="none").configuration
    before = listening(PREFIX)
    async with AsyncExitStack() as closing:
        parts = await build(
            configuration,
            lambda: configuration,
            signals=Signals(),
            notifier=Notifier(None),
            find_holders=Holders(),
            closing=closing,
        )
        yield parts, kept[0], listening(PREFIX) - before


async def test_no_control_socket_is_bound_before_every_part_exists(
    built: tuple[Parts, OwnerCallbacks, frozenset[str]],
) -> None:
    parts, _, names = built
    assert names == frozenset()
    assert all(getattr(parts, field.name) is not None for field in fields(parts))


async def test_an_owner_can_answer_as_soon_as_its_socket_is_bound(
    built: tuple[Parts, OwnerCallbacks, frozenset[str]],
) -> None:
    """Every callback finds the part that it calls, though no part has been started."""
    parts, callbacks, _ = built
    parts.http_servers.opened.set()
    async with asyncio.timeout(30):
        callbacks.share(True)
        await callbacks.hold(True)
        assert not await callbacks.leads_here()
        assert list(await callbacks.bindings()) == []
        await callbacks.yield_all()
        await callbacks.hold(False)
    assert callbacks.grace_s() == parts.reloader.configuration.kubeproxy.shutdown_grace.seconds
