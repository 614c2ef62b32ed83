"""The queue of events: counts, bounds and limits per object."""

from __future__ import annotations

from dataclasses import replace

from kubeproxy.kubernetes.events.correlator import (
    BURST,
    CAPACITY,
    OBJECTS,
    REFILL_S,
    CorrelatedEvent,
    EventCorrelator,
    Occurrence,
)

CONFLICT = Occurrence(
    kind="Service", namespace="demo", name="web", uid="", type="Warning", reason="NotServedAsAsked", message="30080"
)


def test_equal_events_are_counted() -> None:
    correlator = EventCorrelator()
    for now in (5.0, 6.0, 9.0):
        assert correlator.put(CONFLICT, now)
    assert len(correlator) == 1
    assert correlator.take() == (CONFLICT, CorrelatedEvent(5, 9, 3))
    assert correlator.take() is None


def test_different_events_keep_their_order() -> None:
    correlator = EventCorrelator()
    others = [replace(CONFLICT, message=text) for text in "cab"]
    for one in [*others, others[0]]:
        correlator.put(one, 1.0)
    assert [correlator.take(), correlator.take(), correlator.take()] == [
        (others[0], CorrelatedEvent(1, 1, 2)),
        (others[1], CorrelatedEvent(1, 1)),
        (others[2], CorrelatedEvent(1, 1)),
    ]


def test_an_object_has_a_burst_and_then_one_in_five_minutes() -> None:
    correlator = EventCorrelator()
    taken = [correlator.put(replace(CONFLICT, message=str(number)), 0.0) for number in range(BURST + 5)]
    assert taken == [True] * BURST + [False] * 5
    assert correlator.put(replace(CONFLICT, name="api"), 0.0), "another object has its own limit"
    assert not correlator.put(CONFLICT, REFILL_S - 1)
    assert correlator.put(CONFLICT, REFILL_S)
    assert not correlator.put(CONFLICT, REFILL_S + 1)


def test_the_queue_is_bounded() -> None:
    correlator = EventCorrelator()
    taken = [correlator.put(replace(CONFLICT, name=f"a{number}"), 0.0) for number in range(CAPACITY + 10)]
    assert taken.count(True) == len(correlator) == CAPACITY
    assert correlator.put(replace(CONFLICT, name="a0"), 1.0), "a waiting event can still be counted"
    assert correlator.take() is not None
    assert correlator.put(replace(CONFLICT, name="new"), 1.0)
    for number in range(2 * OBJECTS):
        correlator.put(replace(CONFLICT, name=f"b{number}"), 0.0)
    assert len(correlator._buckets) <= OBJECTS


def test_counts_add_up() -> None:
    assert CorrelatedEvent(1, 2, 3).again(CorrelatedEvent(5, 6, 7)) == CorrelatedEvent(1, 6, 10)


def test_the_tenth_different_message_is_combined() -> None:
    outbox = EventCorrelator()
    for number in range(9):
        outbox.put(replace(CONFLICT, message=f"message {number}"), 100.0 + number)
    outbox.put(replace(CONFLICT, message="the tenth"), 110)
    outbox.put(replace(CONFLICT, message="the eleventh"), 111)
    taken = []
    while (found := outbox.take()) is not None:
        taken.append(found)
    assert [what.message for what, _ in taken] == [*(f"message {number}" for number in range(9)), ""]
    assert taken[-1][1] == CorrelatedEvent(110, 111, 2, "(combined from similar events): the eleventh")


def test_after_ten_quiet_minutes_messages_stand_for_themselves() -> None:
    outbox = EventCorrelator()
    for number in range(9):
        outbox.put(replace(CONFLICT, message=f"message {number}"), 100.0)
    outbox.put(replace(CONFLICT, message="late"), 701)
    taken = []
    while (found := outbox.take()) is not None:
        taken.append(found)
    assert taken[-1][0].message == "late"
