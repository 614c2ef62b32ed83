"""`kubeproxy.rescue.fair_turns`: no tenant's endpoints keep those of others waiting."""

from __future__ import annotations

from collections import Counter

from kubeproxy.rescue.fair_turns import Tenants, has_room, next_turns

A, B, C = (frozenset({name}) for name in "abc")


def test_all_have_their_turn_while_there_is_room() -> None:
    waiting: dict[int, Tenants] = {1: A, 2: A, 3: B}
    assert next_turns(waiting, [], 3) == [1, 2, 3]
    assert next_turns(waiting, [], 0) == []
    assert next_turns({}, [A], 2) == []


def test_tenants_take_turns_and_each_has_its_order() -> None:
    waiting: dict[int, Tenants] = {**dict.fromkeys(range(10), A), **dict.fromkeys(range(10, 20), B), 20: C}
    found = next_turns(waiting, [], 7)
    assert found == [0, 10, 20, 1, 11, 2, 12]


def test_what_is_under_way_counts() -> None:
    waiting: dict[int, Tenants] = {**dict.fromkeys(range(10), A), **dict.fromkeys(range(10, 20), B)}
    assert next_turns(waiting, [A, A, A], 4) == [10, 11, 12, 0]


def test_an_endpoint_of_several_tenants_waits_for_none_of_them() -> None:
    """A tenant may list the endpoints of another. The other is not to wait longer for them."""
    shared = A | B
    waiting: dict[int, Tenants] = {**dict.fromkeys(range(10), A), 10: shared, 11: shared}
    assert next_turns(waiting, [A] * 5, 2) == [10, 11]


def test_where_none_can_wait_a_tenant_has_half_of_what_others_leave() -> None:
    busy: list[Tenants] = []
    while has_room(A, busy, 64):
        busy.append(A)
    assert len(busy) == 32
    while has_room(B, busy, 64):
        busy.append(B)
    assert len(busy) == 48
    assert has_room(C, busy, 64)
    assert not has_room(A | B, busy, 64)
    assert has_room(A | C, busy, 64)


def test_a_thousand_silent_endpoints_of_a_tenant_delay_no_other() -> None:
    """In time of its own: 64 dials at once, 0.9 s each, and one endpoint of another tenant that is due later."""
    waiting: dict[str, Tenants] = {f"silent {number}": A for number in range(1000)}
    dialing: dict[str, float] = {}
    owners: dict[str, Tenants] = dict(waiting)
    seen: Counter[str] = Counter()
    for look in range(200):
        now = look * 0.05
        for each in [each for each, until in dialing.items() if until <= now]:
            del dialing[each]
            waiting[each] = A  # and it is due again
        if look == 60:
            waiting["well"] = owners["well"] = B
        for each in next_turns(waiting, [owners[each] for each in dialing], 64 - len(dialing)):
            del waiting[each]
            seen[each] += 1
            if each == "well":
                assert look - 60 <= 18, "it waits for the end of one dial at most"
                return
            dialing[each] = now + 0.9
    raise AssertionError("it never has its turn")
