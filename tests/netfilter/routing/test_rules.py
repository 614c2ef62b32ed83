"""`kubeproxy.netfilter.routing.rules`: trying whether the kernel takes our rules changes nothing."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from kubeproxy.netfilter.netlink.multicast import received, subscribe
from kubeproxy.netfilter.routing import rules
from tests.support.lab import Host

pytestmark = pytest.mark.netns

_GROUPS = (7, 8, 11, 19)  # linux/rtnetlink.h: RTNLGRP_IPV4_ROUTE and _RULE, RTNLGRP_IPV6_ROUTE and _RULE


@pytest.fixture
def node() -> Iterator[Host]:
    with Host("node") as host:
        yield host


def test_a_probe_never_makes_a_rule(node: Host) -> None:
    """Even a removed rule would have the kernel look up every route by rules from then on."""
    with node.entered():
        events = subscribe(socket.NETLINK_ROUTE, *_GROUPS)
        try:
            rules.probe()
            assert list(received(events)) == []
            assert not rules.present()
            assert rules.add()
            assert list(received(events)), "what is made is noticed"
            rules.probe()
            assert list(received(events)) == []
            assert not rules.add(), "and those that are there stay"
        finally:
            events.close()


def test_a_probe_without_ipv6(node: Host) -> None:
    node.sysctl("net.ipv6.conf.all.disable_ipv6", 1)
    with node.entered():
        rules.probe()
