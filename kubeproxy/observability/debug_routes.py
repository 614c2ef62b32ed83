"""Serves ``/debug/`` on the metrics port: the stacks of tasks and threads.

kube-proxy serves Go profiles at this path, which a Python process cannot. The pages exist only with enableProfiling.
"""

from __future__ import annotations

import asyncio
import io
import sys
import threading
import traceback
from typing import Final

from aiohttp import web

_OFF: Final = "These pages need enableProfiling (--profiling). There are no Go profiles: this is a Python process.\n"
_CONTENTS: Final = (
    "There are no Go profiles: this is a Python process.\n\n"
    "/debug/tasks   what each task of the event loop waits for\n"
    "/debug/stacks  where each thread is\n"
)


def debug_routes(*, enabled: bool) -> list[web.RouteDef]:
    """Return the routes of the two pages. All other paths under ``/debug/``, such as those of Go profiles, answer 404
    with a list of the pages. If `enabled` is false, every path answers 404."""

    async def tasks(request: web.Request) -> web.Response:
        return _text(tasks_text())

    async def stacks(request: web.Request) -> web.Response:
        return _text(stacks_text())

    async def other(request: web.Request) -> web.Response:
        return _text(_CONTENTS if enabled else _OFF, status=404)

    pages = [web.get("/debug/tasks", tasks), web.get("/debug/stacks", stacks)] if enabled else []
    return [*pages, web.get("/debug", other), web.get("/debug/{path:.*}", other)]


def tasks_text() -> str:
    """Return the tasks of the running loop by name, each with its stack, outermost call first."""
    out = io.StringIO()
    for task in sorted(asyncio.all_tasks(), key=lambda task: task.get_name()):
        out.write(f"task {task.get_name()}\n")
        task.print_stack(file=out)
        out.write("\n")
    return out.getvalue()


def stacks_text() -> str:
    """Return all threads, each with its stack, outermost call first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = [
        f"thread {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}\n"
        for ident, frame in sys._current_frames().items()
    ]
    return "".join(parts)


def _text(text: str, *, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status)
