from __future__ import annotations

from typing import Any, cast

from kubeproxy.daemon.event_reporter import Events
from kubeproxy.kubernetes.events.recorder import EventRecorder
from kubeproxy.model import ServiceName

WEB = ServiceName("default", "web")
MADE_HERE = ServiceName("default", "made-here")


class Recorder:
    """Remembers instead of sending."""

    def __init__(self) -> None:
        self.recorded: list[tuple[str, ...]] = []

    def record(self, kind: str, namespace: str, name: str, **said: Any) -> None:
        self.recorded.append((kind, namespace, name, said["type"], said["reason"], said["message"]))


def events() -> tuple[Events, Recorder]:
    events, recorder = Events(), Recorder()
    events.owner_of = {WEB: "kubernetes", MADE_HERE: "manifests"}.get
    return events, recorder


def connect(events: Events, recorder: Recorder) -> None:
    events.recorder = cast(EventRecorder, recorder)


def test_a_health_server_without_its_address_is_told_on_the_node() -> None:
    told, recorder = events()
    connect(told, recorder)
    told.health_failed("node-1", "cannot listen on 0.0.0.0:10256: Address already in use")
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


def test_what_failed_before_there_was_a_recorder_is_told_then_once() -> None:
    told, recorder = events()
    told.health_failed("node-1", "cannot listen")
    connect(told, recorder)
    connect(told, recorder)
    told.starting("node-1")
    assert [reason for *_, reason, _ in recorder.recorded] == ["FailedToStartProxierHealthcheck", "Starting"]


def test_problems_are_told_once_and_only_of_services_that_the_cluster_has() -> None:
    told, recorder = events()
    connect(told, recorder)
    told.services_degraded({WEB: ("a",), MADE_HERE: ("a",)})
    told.services_degraded({WEB: ("a", "b")})
    told.services_degraded({})
    told.services_degraded({WEB: ("a",)})
    told.health_server_failed(WEB, "health check node port 1: taken")
    assert [(name, reason, message) for _, _, name, _, reason, message in recorder.recorded] == [
        ("web", "NotServed", "a"),
        ("web", "NotServed", "b"),
        ("web", "NotServed", "a"),
        ("web", "FailedToStartServiceHealthcheck", "health check node port 1: taken"),
    ]
