"""Tables of e2e tests, from reports as the runner writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.system.cluster import table

GROUP = "[sig-network] Services"


def spec(name: str, state: str = "passed", seconds: float = 3.0, **more: Any) -> dict[str, Any]:
    """A test in a report."""
    return {
        "ContainerHierarchyTexts": [GROUP],
        "LeafNodeText": name,
        "LeafNodeType": "It",
        "NumAttempts": 1,
        "State": state,
        "RunTime": seconds * 1e9,
        **more,
    }


def report(*specs: dict[str, Any]) -> list[dict[str, Any]]:
    """A report with one suite."""
    return [{"SpecReports": list(specs)}]


def test_a_report_is_read_by_the_names_of_tests(tmp_path: Path) -> None:
    failure = {"Message": "timed out\nwith a trace"}
    file = tmp_path / "report.json"
    file.write_text(json.dumps(report(spec("works"), spec("hangs", "failed", 42.4, Failure=failure))))
    found = table.read(file)
    assert found["Services works"] == table.Outcome("pass", 3.0)
    assert found["Services hangs"] == table.Outcome("FAIL", 42.4, "timed out")
    assert table.failed(found) == ["Services hangs"]
    assert table.summary(found) == "1 pass, 1 FAIL of 2"


def test_what_was_left_out_and_what_sets_up_is_no_test() -> None:
    others = [spec("left out", "skipped", NumAttempts=0), spec("", LeafNodeType="SynchronizedBeforeSuite")]
    assert table.outcomes(report(*others)) == {}
    assert table.outcomes([{"SpecReports": None}]) == {}


def test_a_test_that_skips_itself_is_not_counted() -> None:
    found = table.outcomes(report(spec("wants a cloud", "skipped"), spec("works")))
    assert table.summary(found) == "1 pass of 1"
    assert "wants a cloud" not in table.markdown({"kernel": found})


def test_whatever_is_no_success_is_a_failure() -> None:
    for state in ("failed", "timedout", "panicked", "interrupted", "aborted"):
        assert table.failed(table.outcomes(report(spec("it", state)))) == ["Services it"], state


def test_every_test_is_a_line_with_all_columns() -> None:
    columns = {
        "kube-proxy": table.outcomes(report(spec("works"), spec("a|b"))),
        "kernel": table.outcomes(report(spec("works", "failed", 42))),
    }
    assert table.markdown(columns).splitlines() == [
        "| test | kube-proxy | kernel |",
        "|---|---|---|",
        r"| Services a\|b | pass 3 s | – |",
        "| Services works | pass 3 s | FAIL 42 s |",
        "| **all** | **2 pass of 2** | **0 pass, 1 FAIL of 1** |",
    ]
