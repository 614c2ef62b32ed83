"""The table of events."""

from __future__ import annotations

from tests.system.cluster import events
from tests.system.cluster.events import EVENTS, Result
from tests.system.cluster.traffic import Tally


def test_every_place_of_clients_is_a_line() -> None:
    tallies = {
        "pod": Tally(answered=100, slowest_s=0.25, kept=5),
        "outside": Tally(
            answered=98, lost=["3.10 ConnectionResetError", "3.20 TimeoutError"], kept=5, broken=["9 EOFError"]
        ),
    }
    result = Result(12.4, tallies)
    assert result.lost == 2
    assert events.markdown({"delete pod": result}).splitlines()[2:] == [
        "| delete pod | 12 s | pod | 100 | 0 | 0.25 s | 0 of 5 |",
        "| delete pod | 12 s | outside | 100 | 2 | 0.00 s | 1 of 5 |",
    ]


def test_an_upgrade_precedes_its_rollback() -> None:
    names = list(EVENTS)
    assert names.index("upgrade") + 1 == names.index("rollback")
