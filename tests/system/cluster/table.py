"""The table of e2e tests, made from the JSON reports of their runner."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

Report = Sequence[Mapping[str, Any]]

MARKS: Final = {"passed": "pass", "skipped": "skip", "pending": "skip"}
"""Every other state is a failure."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one test ended."""

    mark: str
    """`pass`, `FAIL` or `skip`: the test itself found that the cluster is not one for it."""
    seconds: float
    said: str = ""
    """The first line of a failure."""

    def __str__(self) -> str:
        return self.mark if self.mark == "skip" else f"{self.mark} {self.seconds:.0f} s"


Outcomes = Mapping[str, Outcome]


def read(file: Path) -> dict[str, Outcome]:
    """The outcomes in a report file, by the name of the test."""
    return outcomes(json.loads(file.read_text()))


def outcomes(report: Report) -> dict[str, Outcome]:
    """The outcomes of the tests that were run, by name; those that the focus left out are not in it."""
    found = {}
    for suite in report:
        for spec in suite["SpecReports"] or ():
            if spec["LeafNodeType"] == "It" and spec.get("NumAttempts"):
                said = (spec.get("Failure") or {}).get("Message", "").strip().partition("\n")[0]
                mark = MARKS.get(spec["State"], "FAIL")
                found[name_of(spec)] = Outcome(mark, spec["RunTime"] / 1e9, said if mark == "FAIL" else "")
    return found


def name_of(spec: Mapping[str, Any]) -> str:
    """The name of a test without the name of the group that all of them are in."""
    full = " ".join([*(spec["ContainerHierarchyTexts"] or ()), spec["LeafNodeText"]])
    return re.sub(r"^\[sig-[a-z]+\] ", "", full)


def failed(found: Outcomes) -> list[str]:
    """The names of the tests that failed."""
    return sorted(name for name, outcome in found.items() if outcome.mark == "FAIL")


def summary(found: Outcomes) -> str:
    """`104 pass, 3 FAIL of 107`: a test that skips itself is not counted."""
    counted = Counter(outcome.mark for outcome in found.values() if outcome.mark != "skip")
    parts = [f"{counted[mark]} {mark}" for mark in ("pass", "FAIL") if counted[mark] or mark == "pass"]
    return f"{', '.join(parts)} of {counted.total()}"


def markdown(columns: Mapping[str, Outcomes]) -> str:
    """One line for each test, its outcome in each column, and the sums."""
    names = sorted({name for found in columns.values() for name, it in found.items() if it.mark != "skip"})
    lines = [f"| test | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    for name in names:
        cells = (str(found[name]) if name in found else "–" for found in columns.values())
        lines.append(f"| {name.replace('|', chr(92) + '|')} | {' | '.join(cells)} |")
    lines.append(f"| **all** | {' | '.join(f'**{summary(found)}**' for found in columns.values())} |")
    return "\n".join(lines)
