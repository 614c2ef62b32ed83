"""The table of events."""

from __future__ import annotations

from tests.system.cluster import events
from tests.system.cluster.events import EVENTS, Result
from tests.system.cluster.traffic import Tally


def test_every_place_of_clients_is_a_line() -> None:
    tallies = {
        "pod": Tally(answered=100, slowest_s=0.25, kept=5),
        "outside": Tally(
            answered=97,
            lost=[(99.9, "OSError"), (101.5, "OSError"), (102.0, "TimeoutError")],
            kept=5,
            broken=[(102.0, "EOFError")],
        ),
    }
    result = Result(100.0, [12.4], tallies)
    assert result.lost_by("outside") == ["OSError after 1.50 s", "TimeoutError after 2.00 s"], (
        "the first was open before"
    )
    assert result.lost == 2
    assert events.markdown({"delete pod": result}).splitlines()[2:] == [
        "| delete pod | 12 s | pod | 100 | 0 | 0.25 s | 0 of 5 | 0.00 s |",
        "| delete pod | 12 s | outside | 100 | 2 | 0.00 s | 1 of 5 | 0.00 s |",
    ]


def test_an_upgrade_precedes_its_rollback() -> None:
    names = list(EVENTS)
    assert names.index("upgrade") + 1 == names.index("rollback")
