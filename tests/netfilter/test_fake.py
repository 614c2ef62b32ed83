"""The fake adapter and the packet trace, on which other tests depend."""

from __future__ import annotations

import pytest

from kubeproxy.model import Address, Destination, Family, Protocol
from kubeproxy.model.errors import KernelError
from kubeproxy.netfilter.interface import Netfilter
from kubeproxy.netfilter.noop import NoNetfilter
from kubeproxy.netfilter.packet_simulation import Fate, Trace, trace
from kubeproxy.netfilter.ruleset import ProxyPort, RuleSet
from tests.netfilter.stage import destination, node_port, rule_set
from tests.support.doubles.netfilter import FakeNetfilter

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


NODE = "10.2.0.1"
PORT_OF_NODE = node_port(Family.IPV4, Protocol.TCP, 30080)
AT_NODE = destination(NODE, Protocol.TCP, 30080)
AT_HOME = destination("127.0.0.1", Protocol.TCP, 30080)


@pytest.mark.parametrize(
    ("to", "source", "from_this_host", "port"),
    [
        (AT_NODE, "10.2.0.2", False, 7001),
        (AT_NODE, "10.3.0.2", False, 7002),
        (AT_NODE, None, True, 7002),
        (AT_HOME, "10.2.0.2", False, None),
        (AT_HOME, None, True, 7002),
        (destination("10.2.0.9", Protocol.TCP, 30080), "10.2.0.2", False, None),
        (destination(NODE, Protocol.UDP, 30080), "10.2.0.2", False, None),
        (PORT_OF_NODE, "10.2.0.2", False, None),
        (WEB, "10.2.0.2", False, 7003),
        (WEB, "10.3.0.2", False, 7003),
        (OTHER, "10.2.0.2", False, None),
        (OTHER, "10.3.0.2", False, 7004),
        (OTHER, None, True, 7004),
        (destination(NODE, Protocol.TCP, 30081), None, True, 7005),
    ],
)
def test_where_each_packet_goes(to: Destination, source: str | None, from_this_host: bool, port: int | None) -> None:
    rules = rule_set(
        {
            PORT_OF_NODE: 7001,
            WEB: 7003,
            node_port(Family.IPV4, Protocol.TCP, 30081): 7006,
            destination(NODE, Protocol.TCP, 30081): 7005,
        },
        own={PORT_OF_NODE: 7002, OTHER: 7004, node_port(Family.IPV4, Protocol.TCP, 30081): 7007},
        node_addresses=(NODE, "127.0.0.1"),
        internal=("10.3.0.0/16", "fd00:3::/32"),
    )
    met = trace(rules, to, source=Address(source) if source else None, from_this_host=from_this_host)
    assert met == (Trace(Fate.PASSED) if port is None else Trace(Fate.PROXIED, port))


@pytest.mark.parametrize(
    ("source", "from_this_host", "fate"),
    [
        ("10.7.1.1", False, Fate.PROXIED),
        ("10.7.1.1", True, Fate.PROXIED),
        ("10.8.1.1", False, Fate.DROPPED),
        ("10.8.1.1", True, Fate.DROPPED),
        ("fd00::1", False, Fate.DROPPED),
        (None, False, Fate.DROPPED),
        (None, True, Fate.DROPPED),
        # The node is admitted, so it may be what it speaks to.
        (WEB.address, True, Fate.PROXIED),
    ],
)
def test_admitted_sources(source: str | None, from_this_host: bool, fate: Fate) -> None:
    rules = rule_set(
        {WEB: 7001, OTHER: 7001}, allowed={WEB: ("10.7.0.0/16", "10.2.0.0/24", "fd00::/16")}, landing=(NODE,)
    )
    client = Address(source) if source else None
    assert trace(rules, WEB, source=client, from_this_host=from_this_host).fate is fate
    assert trace(rules, OTHER, source=client, from_this_host=from_this_host).fate is Fate.PROXIED
