"""The next request of a reflector: list or watch, version and delay."""

from __future__ import annotations

from random import Random

import pytest

from kubeproxy.kubernetes.client.errors import (
    AheadError,
    ApiError,
    ExpiredError,
    ForbiddenError,
    GarbageError,
    OverloadedError,
    UnauthorizedError,
    UnreachableError,
)
from kubeproxy.kubernetes.informer.list_watch_policy import MAX_REFUSALS, QUICK_TRIES, ListWatchPolicy, Pace

PACE = Pace()
LOST = UnreachableError("gone", cause="refused")
EXPIRED = ExpiredError("too old", cause="expired", status=410)
GARBAGE = GarbageError("what?", cause="garbage")
ODD = ApiError("odd", cause="status 500", status=500)


def course() -> ListWatchPolicy:
    return ListWatchPolicy(pace=PACE, random=Random(1))


def listed(version: str = "100") -> ListWatchPolicy:
    found = course()
    found.listed(version)
    return found


def test_the_first_list_is_from_the_cache_and_later_ones_are_not_older() -> None:
    found = course()
    assert found.list_query() == {"resourceVersion": "0", "limit": "500"}
    steps = [found.must_list]
    found.listed("100")
    steps.append(found.must_list)
    found.watch_failed(EXPIRED)
    assert [*steps, found.must_list] == [True, False, True]
    assert found.list_query() == {"resourceVersion": "100"}


def test_cache_and_storage_stand_in_for_each_other() -> None:
    found = listed()
    found.list_failed(EXPIRED)
    assert found.list_query() == {"limit": "500"}
    found.list_failed(ApiError("timeout", cause="status 504", status=504))
    assert found.list_query() == {"resourceVersion": "100"}
    found.list_failed(GARBAGE)
    found.listed("200")
    assert found.list_query() == {"resourceVersion": "200"}


@pytest.mark.parametrize("error", [LOST, ForbiddenError("no", cause="forbidden"), OverloadedError("busy", cause="x")])
def test_an_unreachable_server_gets_the_same_request_again(error: ApiError) -> None:
    found = course()
    before = found.list_query()
    found.list_failed(error)
    assert found.list_query() == before
    found.listed("5")
    for _ in range(20):
        found.watch_failed(error)
    assert not found.must_list
    assert found.watch_query()[0]["resourceVersion"] == "5"


@pytest.mark.parametrize("error", [EXPIRED, GARBAGE, ApiError("gone", cause="status 404", status=404)])
def test_some_errors_require_a_new_list(error: ApiError) -> None:
    found = listed()
    found.watch_failed(error)
    assert found.must_list


def test_repeated_refusals_of_a_watch_lead_to_a_list() -> None:
    found = listed()
    for _ in range(MAX_REFUSALS - 1):
        found.watch_failed(ODD)
        assert not found.must_list
    found.settled()
    for _ in range(MAX_REFUSALS - 1):
        found.watch_failed(ODD)
        assert not found.must_list
    found.watch_failed(ODD)
    assert found.must_list


def test_watches_last_five_to_ten_minutes_and_may_be_silent_a_little_longer() -> None:
    found = listed()
    lengths = set()
    for _ in range(200):
        query, silence_s = found.watch_query()
        length = int(query["timeoutSeconds"])
        assert 300 <= length <= 600
        assert silence_s == length + PACE.margin_s
        assert query["allowWatchBookmarks"] == "true"
        lengths.add(length)
    assert len(lengths) > 50


def test_delays_are_random_grow_to_a_bound_and_reset() -> None:
    firsts = {course().watch_failed(LOST) for _ in range(1)} | {
        ListWatchPolicy(pace=PACE, random=Random(seed)).watch_failed(LOST) for seed in range(50)
    }
    assert len(firsts) > 40
    assert all(0.2 <= delay <= 0.6 for delay in firsts)
    found = listed()
    delays = [found.watch_failed(LOST) for _ in range(QUICK_TRIES)]
    assert max(delays) <= PACE.retry_s[1]
    assert sum(delays[10:]) / 30 > 0.8
    found.settled()
    assert found.watch_failed(LOST) <= 0.6


def test_retry_after_is_honoured_up_to_a_bound() -> None:
    for asked_s, least_s, most_s in ((5.0, 5.0, 10.0), (3600.0, 30.0, 35.0), (0.0, 0.2, 4.0)):
        busy = OverloadedError("busy", cause="x", retry_after_s=asked_s)
        assert least_s <= course().list_failed(busy) <= most_s
        assert least_s <= listed().watch_failed(busy) <= most_s


def test_lists_after_a_410_are_spread() -> None:
    delays = [ListWatchPolicy(pace=PACE, random=Random(seed)).watch_failed(EXPIRED) for seed in range(200)]
    assert max(delays) > 1.5
    assert min(delays) < 0.5


def test_the_time_limit_doubles_with_each_timeout() -> None:
    silent = UnreachableError("nothing", cause="timeout")
    found = course()
    waits = []
    for _ in range(7):
        waits.append(found.patience_s())
        found.list_failed(silent)
    assert waits == [4.0, 8.0, 16.0, 32.0, 64.0, 75.0, 75.0]
    found.listed("1")
    assert found.patience_s() == 20.0, "the head of a watch comes at once or never"
    found.watch_failed(LOST)
    found.settled()
    assert found.patience_s() == 4.0


def test_a_probe_checks_the_version_after_an_outage() -> None:
    found = listed("100")
    doubts = [found.doubtful]
    found.watch_failed(LOST)
    assert [*doubts, found.doubtful] == [False, True]
    assert found.probe_query() == {"resourceVersion": "100", "resourceVersionMatch": "NotOlderThan", "limit": "1"}
    found.watch_failed(AheadError("too large", cause="ahead", status=504))
    assert found.must_list
    assert found.list_query() == {"limit": "500"}, "from storage: the cache would wait for a lost version"
    found.listed("60")
    assert (found.doubtful, found.must_list, found.version) == (False, False, "60")


def test_an_older_version_is_garbage() -> None:
    found = listed("100")
    for version in ("100", "101", "1000"):
        found.seen(version)
    with pytest.raises(GarbageError, match="999 after one of version 1000"):
        found.seen("999")
    assert found.version == "1000"
    found.seen("not-a-number")
    found.seen("1")


def refused(error: ApiError, count: int) -> list[float]:
    found = course()
    return [found.list_failed(error) for _ in range(count)]


@pytest.mark.parametrize(
    "error",
    [
        UnreachableError("away", cause="refused"),
        UnauthorizedError("no", cause="unauthorized", status=401),
        ForbiddenError("no", cause="forbidden", status=403),
        OverloadedError("later", cause="status 503", status=503),
    ],
    ids=lambda error: error.cause,
)
def test_a_server_that_stays_away_is_asked_less_and_less(error: ApiError) -> None:
    """Quickly for a minute, in which a server is restarted; then as client-go."""
    delays = refused(error, 400)
    assert max(delays[:QUICK_TRIES]) <= PACE.retry_s[1]
    assert sum(delays[:QUICK_TRIES]) > 30
    late = delays[QUICK_TRIES + 5 :]
    assert max(late) <= PACE.patient_retry_s[1]
    assert sum(late) / len(late) > 10
    assert len(set(late)) > 300, "each is drawn anew"


def test_a_working_watch_makes_it_quick_again() -> None:
    found = course()
    for _ in range(2 * QUICK_TRIES):
        found.watch_failed(UnreachableError("away", cause="refused"))
    found.settled()
    assert found.watch_failed(UnreachableError("away", cause="refused")) <= PACE.retry_s[1]


def test_a_server_that_answers_garbage_is_no_absent_one() -> None:
    assert max(refused(GarbageError("?", cause="garbage"), 200)) <= PACE.retry_s[1]
