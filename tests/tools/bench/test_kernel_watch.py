"""`tests.tools.bench.kernel_watch`: endpoints in the kernel's notifications."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from kubeproxy.model import Address, Protocol, Target, Traffic
from kubeproxy.netfilter.nftables.adapter import Nftables
from kubeproxy.netfilter.ruleset import RuleChange, Spread
from tests.netfilter.stage import destination, rule_set
from tests.support.lab import Host
from tests.tools.bench.kernel_watch import KernelWatch

pytestmark = pytest.mark.netns

WEB = destination("10.96.0.1", Protocol.TCP)
TWO = (Target(Address("10.0.0.1"), 80), Target(Address("10.0.0.2"), 80))


async def test_a_change_is_seen_after_it_began_and_its_elements_are_counted() -> None:
    spread = Spread("default/web:http", TWO, TWO)
    with Host("watched") as host, host.entered():
        nftables = Nftables()
        await nftables.apply(replace(rule_set({WEB: 7001}), spreads={Traffic(WEB): spread}), verify=True)
        with KernelWatch(host) as watch:
            began = time.monotonic()
            other = (TWO[0], Target(Address("10.0.0.3"), 80))
            assert await nftables.change(RuleChange({Traffic(WEB): replace(spread, targets=other, endpoints=other)}))
            assert began < watch.added_at("10.0.0.3", 30) <= time.monotonic()
            assert watch.changed == 2, "one slot: its old element and its new one"
            with pytest.raises(AssertionError, match=r"10\.0\.0\.9 did not become an endpoint"):
                watch.added_at("10.0.0.9", 0.01)
        await nftables.close()
