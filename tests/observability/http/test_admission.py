"""Connections that an HTTP server keeps: finding 19 (a flood starves probes) of the attack review."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.observability.http.admission import ADDRESSES, BURST_S, RATE, Admission, Kept, client_key

FLOODER, KUBELET, BALANCER = "192.0.2.66", "192.0.2.1", "192.0.2.9"


def test_a_flood_of_one_address_is_refused_and_others_are_served() -> None:
    admission = Admission()
    admitted = sum(admission.admit(FLOODER, 10 + n / 20_000, local=False) for n in range(20_000))
    assert admitted == pytest.approx(RATE * (BURST_S + 1), abs=2)
    assert admission.admit(BALANCER, 11.0, local=False)
    assert admission.admit(KUBELET, 11.0, local=True)
    assert admission.admit(FLOODER, 12.0, local=False), "it is served again when it slows down"


def test_addresses_of_this_host_have_a_higher_rate() -> None:
    admission = Admission(rate=1, local_rate=50)
    assert sum(admission.admit(KUBELET, 1.0, local=True) for _ in range(1000)) == 50 * BURST_S
    assert sum(admission.admit(FLOODER, 1.0, local=False) for _ in range(1000)) == 1 * BURST_S


def test_memory_is_bounded() -> None:
    admission = Admission()
    for number in range(3 * ADDRESSES):
        assert admission.admit(str(number), 0.0, local=False)
    assert len(admission._buckets) == ADDRESSES


def test_the_address_with_most_connections_loses_its_oldest() -> None:
    kept: Kept[str] = Kept(limit=4)
    kept.add(KUBELET, "probe", local=True)
    for number in range(3):
        kept.add(FLOODER, f"flood {number}", local=False)
    assert kept.surplus() is None
    kept.add(BALANCER, "check", local=False)
    assert kept.surplus() == "flood 0"
    kept.remove(FLOODER, "flood 0")
    kept.remove(FLOODER, "flood 0")
    assert (len(kept), kept.surplus()) == (4, None)


def test_many_addresses_do_not_displace_probes_of_this_host() -> None:
    kept: Kept[str] = Kept(limit=16)
    for number in range(4):
        kept.add(KUBELET, f"probe {number}", local=True)
    for number in range(200):
        kept.add(f"2001:db8:{number:x}::", f"flood {number}", local=False)
        if (surplus := kept.surplus()) is not None:
            assert surplus.startswith("flood")
            kept.remove(f"2001:db8:{int(surplus.split()[1]):x}::", surplus)
    assert len(kept) == 16


def test_a_local_client_with_too_many_connections_has_no_preference() -> None:
    kept: Kept[str] = Kept(limit=8)
    for number in range(8):
        kept.add("127.0.0.1", f"local {number}", local=True)
    kept.add(BALANCER, "check", local=False)
    assert kept.surplus() == "local 0"


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("2001:db8:1:2::9", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
        ("?", "?"),
    ],
)
def test_client_keys(address: str, name: str) -> None:
    assert client_key(address) == name


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 9)), max_size=200), st.integers(1, 8))
def test_the_count_is_right_after_any_moves(moves: list[tuple[bool, int, int]], limit: int) -> None:
    kept: Kept[tuple[int, int]] = Kept(limit)
    known: set[tuple[int, int]] = set()
    for comes, client, number in moves:
        one = (client, number)
        if comes and one not in known:
            kept.add(str(client), one, local=client < 2)
            known.add(one)
        elif not comes:
            kept.remove(str(client), one)
            known.discard(one)
        assert set(kept) == known
        assert len(kept) == len(known)
        surplus = kept.surplus()
        assert (surplus is not None) == (len(known) > limit)
        assert surplus is None or surplus in known
