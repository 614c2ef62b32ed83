"""The order in which sources and their API client end."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import msgspec
import pytest

from kubeproxy.config.schema import Configuration
from kubeproxy.daemon.drain_reporter import DrainReporter
from kubeproxy.daemon.service_events import Events
from kubeproxy.daemon.sources import Sources
from kubeproxy.kubernetes.client.client import Client
from kubeproxy.proxier.tracker import Tracker
from kubeproxy.runtime.tasks import TaskSet
from tests.support.doubles.data_plane import FakeDataPlane

UNREACHABLE = "http://127.0.0.1:1"


def crashed(task: str, error: BaseException) -> None:
    """Nothing may."""
    raise AssertionError(task) from error


async def test_sources_end_before_their_api_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    speaking: list[str] = []
    close = Client.close

    async def closing_client(client: Client) -> None:
        speaking.extend(task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()})
        await close(client)

    monkeypatch.setattr(Client, "close", closing_client)
    plain = Configuration()
    configuration = msgspec.structs.replace(
        plain, kubeproxy=msgspec.structs.replace(plain.kubeproxy, master=UNREACHABLE)
    )
    tasks = TaskSet(crashed)
    sources = Sources(
        configuration,
        node_name="here",
        tracker=Tracker(["kubernetes"]),
        events=Events(lambda service: None),
        drain_reporter=DrainReporter("here", data_plane=FakeDataPlane(), node=lambda: None),
        tasks=tasks,
    )
    async with AsyncExitStack() as stack:
        stack.push_async_callback(tasks.close)
        await sources.start(stack)
        await asyncio.sleep(0)
        names = {task.get_name() for task in asyncio.all_tasks()}
        assert {"events", "kubernetes"} <= names
    assert speaking == []
