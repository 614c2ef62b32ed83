"""Slots of a spread: which change when endpoints, their shares or the choice change."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.model import Address, Family, Protocol, Target, Traffic
from kubeproxy.netfilter.nftables.dynamic_chains import choice_of, is_dynamic, spread_chain, spread_rules
from kubeproxy.netfilter.nftables.spreads import NO_SLOTS, arranged, chains_for
from kubeproxy.netfilter.ruleset import ClientHash, Spread
from tests.netfilter.stage import destination, node_port

TARGETS = tuple(Target(Address(f"10.0.0.{number}"), 80) for number in range(6))
WEB = Traffic(destination("10.96.0.1", Protocol.TCP))
slots = st.lists(st.sampled_from(TARGETS), min_size=1, max_size=12).map(tuple)


def spread(*numbered: Target, client_hash: ClientHash | None = None) -> Spread:
    targets = tuple(dict.fromkeys(numbered))
    return Spread("default/web", targets, targets, slots=numbered, client_hash=client_hash)


@given(slots, slots)
def test_drawn_slots_have_the_wanted_shares_and_no_more_change_than_must(
    before: tuple[Target, ...], after: tuple[Target, ...]
) -> None:
    have = arranged(NO_SLOTS, spread(*before))
    found = arranged(have, spread(*after))
    assert Counter(found.targets) == Counter(after)
    stay = sum((Counter(before) & Counter(after)).values())
    kept = sum(old == new for old, new in zip(have.targets, found.targets, strict=False))
    # Where there are fewer than before, one from the end may take the place of each that goes.
    assert kept >= stay - max(0, len(before) - len(after))


@given(slots, slots)
def test_hashed_slots_stand_as_wanted(before: tuple[Target, ...], after: tuple[Target, ...]) -> None:
    by_address = ClientHash(False, 7)
    have = arranged(NO_SLOTS, spread(*before, client_hash=by_address))
    assert arranged(have, spread(*after, client_hash=by_address)).targets == after


@given(st.booleans(), st.integers(0, 2**32 - 1), st.integers(1, 9999))
def test_the_name_of_a_chain_says_how_it_chooses(by_port: bool, seed: int, count: int) -> None:
    for traffic in (WEB, Traffic(node_port(Family.IPV4, Protocol.UDP, 30080))):
        for client_hash in (None, ClientHash(by_port, seed)):
            chain = spread_chain(traffic, count, client_hash)
            assert is_dynamic(chain)
            assert choice_of(chain) == (count, client_hash)


def test_the_rule_hashes_what_the_name_says() -> None:
    (by_port,) = chains_for(WEB, arranged(NO_SLOTS, spread(*TARGETS, client_hash=ClientHash(True, 7))))
    (rule,) = spread_rules(by_port, rescued=False)
    assert "ip daddr . tcp dport . jhash ip saddr . tcp sport mod 6 seed 7 map @tcp_slots4" in rule.text
    drawn, *_ = chains_for(WEB, arranged(NO_SLOTS, spread(*TARGETS)))
    (rule,) = spread_rules(drawn, rescued=False)
    assert "numgen random mod 6 map @tcp_slots4" in rule.text
