"""What waits to be sent: counted, bounded, and no object too loud."""

from __future__ import annotations

from dataclasses import replace

from kubeproxy.sources.kubernetes.outbox import BURST, CAPACITY, OBJECTS, REFILL_S, Occurrence, Outbox, Tally

CONFLICT = Occurrence(
    kind="Service", namespace="demo", name="web", uid="", type="Warning", reason="NotServed", message="30080"
)


def test_the_same_again_is_counted() -> None:
    outbox = Outbox()
    for now in (5.0, 6.0, 9.0):
        assert outbox.put(CONFLICT, now)
    assert len(outbox) == 1
    assert outbox.take() == (CONFLICT, Tally(5, 9, 3))
    assert outbox.take() is None


def test_different_ones_keep_their_order() -> None:
    outbox = Outbox()
    others = [replace(CONFLICT, message=text) for text in "cab"]
    for one in [*others, others[0]]:
        outbox.put(one, 1.0)
    assert [outbox.take(), outbox.take(), outbox.take()] == [
        (others[0], Tally(1, 1, 2)),
        (others[1], Tally(1, 1)),
        (others[2], Tally(1, 1)),
    ]


def test_an_object_has_a_burst_and_then_one_in_five_minutes() -> None:
    outbox = Outbox()
    taken = [outbox.put(replace(CONFLICT, message=str(number)), 0.0) for number in range(BURST + 5)]
    assert taken == [True] * BURST + [False] * 5
    assert outbox.put(replace(CONFLICT, name="api"), 0.0), "another object has its own"
    assert not outbox.put(CONFLICT, REFILL_S - 1)
    assert outbox.put(CONFLICT, REFILL_S)
    assert not outbox.put(CONFLICT, REFILL_S + 1)


def test_it_is_bounded() -> None:
    outbox = Outbox()
    taken = [outbox.put(replace(CONFLICT, name=f"a{number}"), 0.0) for number in range(CAPACITY + 10)]
    assert taken.count(True) == len(outbox) == CAPACITY
    assert outbox.put(replace(CONFLICT, name="a0"), 1.0), "one that waits can still be counted"
    assert outbox.take() is not None
    assert outbox.put(replace(CONFLICT, name="new"), 1.0)
    for number in range(2 * OBJECTS):
        outbox.put(replace(CONFLICT, name=f"b{number}"), 0.0)
    assert len(outbox._buckets) <= OBJECTS


def test_tallies_add_up() -> None:
    assert Tally(1, 2, 3).again(Tally(5, 6, 7)) == Tally(1, 6, 10)


def test_the_tenth_different_message_is_combined() -> None:
    outbox = Outbox()
    for number in range(9):
        outbox.put(replace(CONFLICT, message=f"message {number}"), 100.0 + number)
    outbox.put(replace(CONFLICT, message="the tenth"), 110)
    outbox.put(replace(CONFLICT, message="the eleventh"), 111)
    taken = []
    while (found := outbox.take()) is not None:
        taken.append(found)
    assert [what.message for what, _ in taken] == [*(f"message {number}" for number in range(9)), ""]
    assert taken[-1][1] == Tally(110, 111, 2, "(combined from similar events): the eleventh")


def test_after_ten_quiet_minutes_messages_stand_for_themselves() -> None:
    outbox = Outbox()
    for number in range(9):
        outbox.put(replace(CONFLICT, message=f"message {number}"), 100.0)
    outbox.put(replace(CONFLICT, message="late"), 701)
    taken = []
    while (found := outbox.take()) is not None:
        taken.append(found)
    assert taken[-1][0].message == "late"
