"""Annotations of scheduler, slow start and weight."""

from __future__ import annotations

from typing import Any

import pytest

from kubeproxy.model import Scheduler
from tests.sources.translate.test_translate import service_with, slice_with

NAMED = {"name": "x", "namespace": "n", "labels": {"kubernetes.io/service-name": "s"}}


def annotated(**annotations: str) -> dict[str, Any]:
    return {"annotations": {f"kubeproxy/{name.replace('_', '-')}": text for name, text in annotations.items()}}


@pytest.mark.parametrize("scheduler", Scheduler)
def test_a_service_asks_for_a_scheduler(scheduler: Scheduler) -> None:
    service, faults = service_with(**annotated(scheduler=scheduler))
    assert service is not None
    assert (service.scheduler, service.remarks, faults) == (scheduler, (), [])


def test_an_unknown_scheduler_is_reported_with_the_allowed_ones_and_the_default_is_used() -> None:
    service, faults = service_with(**annotated(scheduler="fastest"))
    assert service is not None
    assert service.scheduler is None
    (remark,) = service.remarks
    assert [str(fault) for fault in faults] == [remark], "in the log, and as an Event"
    assert "kubeproxy/scheduler" in remark
    assert "'fastest'" in remark
    assert all(scheduler in remark for scheduler in Scheduler)


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("2m", 120), ("1m30s", 90), ("0s", 0), ("60m", 3600)])
def test_a_service_asks_for_a_slow_start(text: str, seconds: int) -> None:
    service, faults = service_with(**annotated(slow_start=text))
    assert service is not None
    assert (service.slow_start_s, faults) == (seconds, [])


@pytest.mark.parametrize("text", ["", "30", "-1s", "1h", "61m", "s", "30s ", "٣s"])
def test_an_unusable_slow_start_is_reported_and_there_is_none(text: str) -> None:
    service, faults = service_with(**annotated(slow_start=text))
    assert service is not None
    assert (service.slow_start_s, service.remarks) == (0, tuple(map(str, faults)))
    assert len(faults) == 1


@pytest.mark.parametrize(("text", "weight"), [("1", 1), ("7", 7), ("100", 100)])
def test_a_slice_has_a_weight_for_its_endpoints(text: str, weight: int) -> None:
    found, faults = slice_with(metadata={**NAMED, **annotated(weight=text)})
    assert found is not None
    assert ({endpoint.weight for endpoint in found.endpoints}, faults) == ({weight}, [])


@pytest.mark.parametrize("text", ["0", "101", "-1", "1.5", "", "heavy"])
def test_an_unusable_weight_is_reported_and_all_weigh_the_same(text: str) -> None:
    found, faults = slice_with(metadata={**NAMED, **annotated(weight=text)})
    assert found is not None
    assert {endpoint.weight for endpoint in found.endpoints} == {1}
    assert [("kubeproxy/weight" in fault.path, "1 to 100" in fault.message) for fault in faults] == [(True, True)]
