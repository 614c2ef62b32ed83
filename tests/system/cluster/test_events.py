"""The table of events."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

from tests.system.cluster import events
from tests.system.cluster.events import EVENTS, Cost, Result
from tests.system.cluster.traffic import Tally


def test_an_event_is_a_line() -> None:
    tallies = {
        "pod": Tally(answered=100, slowest_s=0.25, kept={"idle": 3, "bulk": 1}, longest_silence_s={"bulk": 0.125}),
        "outside": Tally(
            answered=97,
            lost=[(99.9, "OSError"), (101.5, "OSError"), (102.0, "TimeoutError")],
            kept={"idle": 3},
            late_s=0.5,
            broken=[(102.0, "idle", "EOFError()")],
        ),
    }
    costs = [Cost(12.4, 1.5, 66, 0.02, 200.0, 4.0), Cost(13.0, None, 0, 0.0, 180.0, 3.0)]
    result = Result(100.0, costs, tallies, 7.6)
    assert result.lost_by("outside") == ["OSError after 1.50 s", "TimeoutError after 2.00 s"], (
        "the first was open before"
    )
    assert result.lost == 2
    assert events.markdown({"delete pod": result}).splitlines()[2:] == [
        "| delete pod | 12 13 s | 200 | 2 | 0.25 s | idle 1 of 6, bulk 0 of 1 | idle 0.00 s, bulk 0.12 s | 0.50 s"
        " | 1.5 ? s | 66 0 | 20 ms | 200 MiB | 4.0 s | 8 |",
    ]


def test_the_move_is_that_of_the_log_since_the_event_began() -> None:
    log = """\
2026-03-01T08:20:01.000000Z serving services=5 listeners=7
2026-03-01T08:20:01.500000Z connections moved here pid=7 moved=99 left=0 still_ms=90.0
2026-03-01T08:20:31.000000Z serving state of earlier run stale_since=2026-03-01T08:20:30Z
2026-03-01T08:20:32.000000Z serving services=5 listeners=7
2026-03-01T08:20:32.500000Z connections moved here pid=8 moved=40 left=0 still_ms=11.5
2026-03-01T08:20:32.700000Z connections moved here pid=9 moved=26 left=1 still_ms=20.5
no time"""
    ended = datetime(2026, 3, 1, 8, 20, 34, tzinfo=UTC).timestamp()
    watch = SimpleNamespace(gone_at=ended, most_mib=180.0, cpu_s=3.5)
    found = events.cost(12.0, cast("Any", watch), log, ended - 24)
    assert found == Cost(12.0, 2.0, 66, 0.0205, 180.0, 3.5)
    assert events.cost(12.0, cast("Any", watch), "", ended - 24).gone_s is None


def test_an_upgrade_precedes_its_rollback() -> None:
    names = list(EVENTS)
    assert names.index("upgrade") + 1 == names.index("rollback")
