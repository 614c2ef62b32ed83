from __future__ import annotations

import asyncio
import threading

import aiohttp
import pytest

from kubeproxy.observability.debug_routes import debug_routes
from kubeproxy.observability.http.server import HttpServer, Listening


async def pages(*paths: str, enabled: bool) -> list[tuple[int, str]]:
    listening = Listening(name="metrics", host="127.0.0.1", port=0, setting="metricsBindAddress")
    server = HttpServer(listening, debug_routes(enabled=enabled))
    await server.start()
    found = []
    async with aiohttp.ClientSession() as session:
        for path in paths:
            async with session.get(f"http://127.0.0.1:{server.port}{path}") as answer:
                found.append((answer.status, await answer.text()))
    await server.close()
    return found


@pytest.mark.parametrize("path", ["/debug/pprof/", "/debug/pprof/profile?seconds=1", "/debug", "/debug/tasks"])
async def test_without_profiling_a_text_names_the_flag(path: str) -> None:
    ((status, text),) = await pages(path, enabled=False)
    assert status == 404
    assert "enableProfiling" in text


async def test_with_profiling_other_paths_list_the_pages() -> None:
    ((status, text),) = await pages("/debug/pprof/", enabled=True)
    assert status == 404
    assert "/debug/tasks" in text


async def waits_for_something_rare(event: asyncio.Event) -> None:
    await event.wait()


async def test_stacks_of_tasks_and_threads() -> None:
    event, stop = asyncio.Event(), threading.Event()
    task = asyncio.create_task(waits_for_something_rare(event), name="rare task")
    thread = threading.Thread(target=stop.wait, name="rare thread")
    thread.start()
    await asyncio.sleep(0)
    (tasks_status, tasks), (stacks_status, stacks) = await pages("/debug/tasks", "/debug/stacks", enabled=True)
    stop.set()
    event.set()
    await task
    thread.join()
    assert tasks_status == stacks_status == 200
    assert "task rare task\n" in tasks
    assert "waits_for_something_rare" in tasks
    assert "thread rare thread\n" in stacks
    assert "thread MainThread\n" in stacks
