"""Removals of our routing rules are noticed at once; other changes are not reported."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator

import pytest

from kubeproxy.netfilter.routing import rules
from kubeproxy.netfilter.routing.rule_watch import RuleWatch
from tests.support.lab import Host

pytestmark = pytest.mark.netns


@pytest.fixture
def watch() -> Iterator[tuple[Host, RuleWatch]]:
    """A host with our rules, and a watch that has seen them being made."""
    with Host("node") as host:
        with host.entered():
            watch = RuleWatch()
            assert rules.add()
        assert not watch.look(), "rules that are made are none that go"
        yield host, watch
        watch.close()


@pytest.mark.parametrize("family", ["-4", "-6"])
def test_a_removed_rule_of_ours_is_noticed_once(watch: tuple[Host, RuleWatch], family: str) -> None:
    host, it = watch
    host.ip(f"{family} rule del priority {rules.PRIORITY + 1}")
    assert it.look()
    assert not it.look()


def test_the_removal_of_all_rules_is_noticed_once(watch: tuple[Host, RuleWatch]) -> None:
    host, it = watch
    host.ip("rule flush")
    assert it.look()
    assert not it.look()


def test_rules_and_routes_of_other_programs_do_not_matter(watch: tuple[Host, RuleWatch]) -> None:
    host, it = watch
    for commands in (
        ["rule add priority 200 fwmark 0x1 lookup 100", "rule del priority 200"],
        # Beside one of ours, under the same number.
        [f"rule add priority {rules.PRIORITY + 1} from 10.9.9.9 lookup 100", "rule del from 10.9.9.9 lookup 100"],
        ["rule add priority 200 from all lookup 100 protocol static", "rule del priority 200 protocol static"],
        ["route add local 10.9.9.9 dev lo", "route del local 10.9.9.9 dev lo"],
    ):
        host.ip(*commands)
        assert not it.look(), commands


def test_lost_notifications_may_be_of_our_rules(watch: tuple[Host, RuleWatch]) -> None:
    host, it = watch
    with socket.socket(fileno=socket.dup(it.fileno())) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    host.ip(*(f"rule add priority {number} lookup 100" for number in range(1000, 1064)))
    assert it.look()
    assert not it.look()


def test_it_is_readable_when_there_is_something_to_look_at(watch: tuple[Host, RuleWatch]) -> None:
    host, it = watch
    assert select.select([it], [], [], 0)[0] == []
    host.ip(f"rule del priority {rules.PRIORITY + 1}")
    assert select.select([it], [], [], 30)[0] == [it]
    assert it.look()
    assert select.select([it], [], [], 0)[0] == []
