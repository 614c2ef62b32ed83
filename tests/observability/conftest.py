"""What the room reads of others, made up; and both event loops, as either may serve HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest
import uvloop

from kubeproxy.model import ServiceName


@dataclass(frozen=True, slots=True)
class Listening:
    proxy_port: int | None


@dataclass(slots=True)
class State:
    frontends: Sequence[Listening] = ()
    problems: Mapping[ServiceName, Sequence[str]] = field(default_factory=dict)
    sources: Mapping[str, bool] = field(default_factory=dict)
    service_changes_pending: int = 0
    service_changes_total: int = 0
    endpoint_changes_pending: int = 0
    endpoint_changes_total: int = 0


@dataclass(slots=True)
class Watch:
    resource: str = "services"
    behind_s: float = 0.0
    last_event: float | None = None
    lists: int = 0
    watches: int = 0
    events: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    faulty: int = 0


@dataclass(slots=True)
class Trouble:
    skipped: bool = False


@dataclass(slots=True)
class Manifests:
    troubles: Sequence[Trouble] = ()
    last_change: float = 0.0


@pytest.fixture
def state() -> State:
    return State()


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
