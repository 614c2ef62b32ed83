"""Tells that something in some directories changed; what, is for the looker to find out."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable

import structlog
import watchfiles

from kubeproxy.kubernetes.manifests.files import Identity

log = structlog.get_logger(__name__)

STEP_MS = 50
"""How long watchfiles gathers changes before it tells them, and how fast it ends."""
DEBOUNCE_MS = 200
"""The longest that it gathers."""
RETRY_S = 60.0
"""After so long, watching is tried again where it failed."""

Directories = frozenset[tuple[str, Identity]]
"""With what they are, so that another directory in the same place is watched anew."""


def directories(paths: list[str]) -> Directories:
    """Those that are there."""
    found = set()
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            continue
        found.add((path, Identity(status.st_dev, status.st_ino)))
    return frozenset(found)


class Watcher:
    """Watches a changing set of directories, all of them with or all without what lies below."""

    def __init__(self, on_change: Callable[[], None], *, recursive: bool) -> None:
        self._on_change = on_change
        self._recursive = recursive
        self._directories: Directories = frozenset()
        self._moved = asyncio.Event()
        self.fault = ""
        """Why nothing is watched, usually the kernel's limit on inotify watches; empty while all is well."""

    def watch(self, directories: Directories) -> None:
        """From now on, watch these."""
        if directories != self._directories:
            self._directories = directories
            self._moved.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._moved.clear()
            paths = [path for path, _ in self._directories]
            try:
                if paths:
                    # What changed before the watch began is told too: the callback runs once it has begun.
                    asyncio.get_running_loop().call_soon(self._on_change)
                    changes = watchfiles.awatch(
                        *paths,
                        watch_filter=None,
                        debounce=DEBOUNCE_MS,
                        step=STEP_MS,
                        stop_event=self._moved,
                        recursive=self._recursive,
                        ignore_permission_denied=True,
                    )
                    self.fault = ""
                    async for _ in changes:
                        self._on_change()
            except (OSError, RuntimeError) as error:
                if str(error) != self.fault:
                    self.fault = str(error)
                    log.warning("manifests are polled, not watched", reason=self.fault, directories=paths)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S if self.fault else None):
                    await self._moved.wait()
