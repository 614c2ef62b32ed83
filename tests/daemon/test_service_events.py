from __future__ import annotations

from typing import Any, cast

from kubeproxy.daemon.service_events import Events
from kubeproxy.kubernetes.events.recorder import EventRecorder
from kubeproxy.model import Address, ServiceName, Target

WEB = ServiceName("default", "web")
MADE_HERE = ServiceName("default", "made-here")


class Recorder:
    """Remembers instead of sending."""

    def __init__(self) -> None:
        self.recorded: list[tuple[str, ...]] = []

    def record(self, kind: str, namespace: str, name: str, **fields: Any) -> None:
        self.recorded.append((kind, namespace, name, fields["type"], fields["reason"], fields["message"]))


def events() -> tuple[Events, Recorder]:
    events, recorder = Events({WEB: "kubernetes", MADE_HERE: "manifests"}.get), Recorder()
    return events, recorder


def connect(events: Events, recorder: Recorder) -> None:
    events.recorder = cast(EventRecorder, recorder)


def test_a_failed_health_server_is_an_event_on_the_node() -> None:
    reporter, recorder = events()
    connect(reporter, recorder)
    reporter.health_failed("node-1", "cannot listen on 0.0.0.0:10256: Address already in use")
    assert recorder.recorded == [
        (
            "Node",
            "",
            "node-1",
            "Warning",
            "FailedToStartProxierHealthcheck",
            "failed to start proxier healthz: cannot listen on 0.0.0.0:10256: Address already in use",
        )
    ]


def test_a_failure_before_the_recorder_exists_is_recorded_later_once() -> None:
    reporter, recorder = events()
    reporter.health_failed("node-1", "cannot listen")
    connect(reporter, recorder)
    connect(reporter, recorder)
    reporter.starting("node-1")
    assert [reason for *_, reason, _ in recorder.recorded] == ["FailedToStartProxierHealthcheck", "Starting"]


def test_an_endpoint_that_is_lost_for_minutes_is_an_event_of_its_service() -> None:
    reporter, recorder = events()
    connect(reporter, recorder)
    reporter.endpoint_lost(WEB, Target(Address("10.0.0.1"), 80))
    reporter.endpoint_lost(MADE_HERE, Target(Address("10.0.0.1"), 80))
    ((*what, text),) = recorder.recorded
    assert what == ["Service", "default", "web", "Warning", "EndpointNotAnswering"]
    assert "10.0.0.1:80" in text


def test_problems_are_recorded_once_and_only_for_services_of_the_cluster() -> None:
    reporter, recorder = events()
    connect(reporter, recorder)
    reporter.services_degraded({WEB: ("a",), MADE_HERE: ("a",)})
    reporter.services_degraded({WEB: ("a", "b")})
    reporter.services_degraded({})
    reporter.services_degraded({WEB: ("a",)})
    reporter.health_server_failed(WEB, "health check node port 1: taken")
    assert [(name, reason, message) for _, _, name, _, reason, message in recorder.recorded] == [
        ("web", "NotServedAsAsked", "a"),
        ("web", "NotServedAsAsked", "b"),
        ("web", "NotServedAsAsked", "a"),
        ("web", "FailedToStartServiceHealthcheck", "health check node port 1: taken"),
    ]
