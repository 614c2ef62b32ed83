"""The fake and the tracer: other rooms' tests believe them."""

from __future__ import annotations

import pytest

from kubeproxy.errors import KernelError
from kubeproxy.model import Protocol
from kubeproxy.netfilter.fake import FakeNetfilter
from kubeproxy.netfilter.interface import Netfilter
from kubeproxy.netfilter.none import NoNetfilter
from kubeproxy.netfilter.ruleset import ProxyPort, RuleSet
from kubeproxy.netfilter.trace import Fate, Trace, trace
from tests.netfilter.stage import destination, rule_set

WEB = destination("10.96.0.1", Protocol.TCP)
OTHER = destination("10.96.0.2", Protocol.TCP)
PORT = frozenset({ProxyPort(Protocol.TCP, 7001)})


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (rule_set({WEB: 7001}), Trace(Fate.PROXIED, 7001)),
        (rule_set({WEB: 7001}, refused=PORT), Trace(Fate.REFUSED, 7001)),
        (rule_set({WEB: 7001}, dropped=PORT), Trace(Fate.DROPPED, 7001)),
        (rule_set({WEB: 7001}, refused=PORT, dropped=PORT), Trace(Fate.DROPPED, 7001)),
        (rule_set({OTHER: 7001}), Trace(Fate.PASSED)),
        (RuleSet(), Trace(Fate.PASSED)),
    ],
)
def test_fates(rules: RuleSet, expected: Trace) -> None:
    assert trace(rules, WEB) == expected


def test_proxy_ports_are_guarded_on_this_host() -> None:
    rules = rule_set({WEB: 7001})
    assert trace(rules, destination("10.2.0.1", Protocol.TCP, 7001), for_this_host=True).fate is Fate.DROPPED
    assert trace(rules, destination("10.2.0.1", Protocol.UDP, 7001), for_this_host=True).fate is Fate.PASSED
    assert trace(rules, destination("10.9.9.9", Protocol.TCP, 7001)).fate is Fate.PASSED


async def test_the_fake_loses_fails_and_repairs_as_a_kernel_does() -> None:
    fake = FakeNetfilter()
    rules = rule_set({WEB: 7001})
    assert await fake.apply(rules, verify=True)
    assert not await fake.apply(rules, verify=True)
    fake.lose()
    assert not await fake.apply(rules, verify=False)
    assert fake.trace(WEB).fate is Fate.PASSED
    assert await fake.apply(rules, verify=True)
    assert fake.trace(WEB).fate is Fate.PROXIED
    fake.fail("no", times=2)
    for _ in range(2):
        with pytest.raises(KernelError, match=r"^no$"):
            await fake.apply(RuleSet(), verify=False)
    assert fake.kernel == rules
    assert await fake.cleanup()
    assert not await fake.cleanup()
    assert fake.history == [rules, rules]
    await fake.close()
    assert fake.closed


async def test_none_touches_nothing() -> None:
    none: Netfilter = NoNetfilter()
    assert await none.apply(rule_set({WEB: 7001}), verify=True)
    assert not await none.apply(rule_set({WEB: 7001}), verify=True)
    assert not await none.cleanup()
    await none.close()
