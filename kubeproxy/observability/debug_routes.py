"""``/debug/`` on the metrics port: what the process is doing this very moment. kube-proxy has Go profiles there, which
a Python process has not; with enableProfiling it shows what its tasks wait for and where its threads are."""

from __future__ import annotations

import asyncio
import io
import sys
import threading
import traceback
from typing import Final

from aiohttp import web

_OFF: Final = (
    "Nothing is shown here unless enableProfiling (--profiling) is set. There are no Go profiles in any case.\n"
)
_CONTENTS: Final = (
    "There are no Go profiles: this is a Python process.\n\n"
    "/debug/tasks   what each task of the event loop waits for\n"
    "/debug/stacks  where each thread is\n"
)


def debug_routes(*, enabled: bool) -> list[web.RouteDef]:
    """Both pages, and for whoever asks for a Go profile a sentence about them."""

    async def tasks(request: web.Request) -> web.Response:
        return _text(tasks_text())

    async def stacks(request: web.Request) -> web.Response:
        return _text(stacks_text())

    async def elsewhere(request: web.Request) -> web.Response:
        return _text(_CONTENTS if enabled else _OFF, status=404)

    pages = [web.get("/debug/tasks", tasks), web.get("/debug/stacks", stacks)] if enabled else []
    return [*pages, web.get("/debug", elsewhere), web.get("/debug/{path:.*}", elsewhere)]


def tasks_text() -> str:
    """The running loop's tasks by name, each with its stack, the outermost call first."""
    out = io.StringIO()
    for task in sorted(asyncio.all_tasks(), key=lambda it: it.get_name()):
        out.write(f"task {task.get_name()}\n")
        task.print_stack(file=out)
        out.write("\n")
    return out.getvalue()


def stacks_text() -> str:
    """All threads, each with its stack, the outermost call first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = [
        f"thread {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}\n"
        for ident, frame in sys._current_frames().items()
    ]
    return "".join(parts)


def _text(text: str, *, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status)
