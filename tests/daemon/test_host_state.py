"""Problems of this host that last."""

from __future__ import annotations

import asyncio

import pytest

from kubeproxy.config.schema import Configuration
from kubeproxy.daemon.host_state import LEFTOVERS_LOOK, HostFacts
from kubeproxy.netfilter import kube_proxy_rules
from kubeproxy.observability.health import Reason
from kubeproxy.proxier.tracker import Tracker


class Enough(Exception):
    """The test has seen what it came for."""


async def test_searches_are_more_frequent_while_there_are_leftovers(monkeypatch: pytest.MonkeyPatch) -> None:
    configuration = Configuration()
    here = HostFacts(configuration, Tracker([]))
    complain = here.complaints[Reason.LEFTOVERS]
    assert complain() is None
    found = [["nftables: table ip kube-proxy"], ["nftables: table ip kube-proxy"], []]
    seen: list[tuple[bool, float]] = []

    async def look() -> list[str]:
        return found[len(seen)]

    async def sleep(delay_s: float) -> None:
        seen.append((complain() is not None, delay_s))
        if len(seen) == len(found):
            raise Enough

    monkeypatch.setattr(kube_proxy_rules, "look", look)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    with pytest.raises(Enough):
        await here.follow_leftovers("nftables")
    period_s = configuration.sync_period_s
    assert seen == [(True, period_s), (True, period_s), (False, LEFTOVERS_LOOK * period_s)]


async def test_without_an_adapter_rules_of_kube_proxy_are_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    async def look() -> list[str]:
        raise AssertionError("looked all the same")

    monkeypatch.setattr(kube_proxy_rules, "look", look)
    await HostFacts(Configuration(), Tracker([])).follow_leftovers("none")
