"""Watches directories, and reports that something in them has changed."""

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
"""watchfiles reports changes after this time without a further change, and needs this time to stop."""
DEBOUNCE_MS = 200
"""The longest time for which watchfiles collects changes before it reports them."""
RETRY_S = 60.0
"""The delay in seconds after which a failed watch is repeated."""

Directories = frozenset[tuple[str, Identity]]
"""Directories with their paths, devices and inodes, so that a new directory at an old path is recognized as a
change."""


def directories(paths: list[str]) -> Directories:
    """Return the paths that are existing directories, with their devices and inodes."""
    found = set()
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            continue
        found.add((path, Identity(status.st_dev, status.st_ino)))
    return frozenset(found)


class Watcher:
    """Watches a set of directories, which may change, with or without their subdirectories."""

    def __init__(self, on_change: Callable[[], None], *, recursive: bool) -> None:
        self._on_change = on_change
        self._recursive = recursive
        self._directories: Directories = frozenset()
        self._moved = asyncio.Event()
        self.fault = ""
        """Why the directories cannot be watched, usually the kernel's limit of inotify watches, or empty while they are
        watched."""

    def watch(self, directories: Directories) -> None:
        """Watch these directories from now on, instead of the former ones."""
        if directories != self._directories:
            self._directories = directories
            self._moved.set()

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            self._moved.clear()
            paths = [path for path, _ in self._directories]
            try:
                if paths:
                    # Report once after the watch has begun, because of changes before it.
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
                    log.warning("manifests polled, not watched", reason=self.fault, directories=paths)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S if self.fault else None):
                    await self._moved.wait()
