"""Reports that some directories changed; the source finds out which files."""

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
"""Time without a change after which watchfiles reports; also the time it needs to stop."""
DEBOUNCE_MS = 200
"""The longest time that watchfiles collects changes."""
RETRY_S = 60.0
"""Delay after which a failed watch is tried again."""

Directories = frozenset[tuple[str, Identity]]
"""Paths with identities, so that a new directory at the same path is watched again."""


def directories(paths: list[str]) -> Directories:
    """Return the directories that exist."""
    found = set()
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            continue
        found.add((path, Identity(status.st_dev, status.st_ino)))
    return frozenset(found)


class Watcher:
    """Watches a changing set of directories, either all recursively or none."""

    def __init__(self, on_change: Callable[[], None], *, recursive: bool) -> None:
        self._on_change = on_change
        self._recursive = recursive
        self._directories: Directories = frozenset()
        self._moved = asyncio.Event()
        self.fault = ""
        """The reason why nothing is watched, usually the kernel's limit on inotify watches; empty while it works."""

    def watch(self, directories: Directories) -> None:
        """Watch these directories from now on."""
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
                    # Reports changes from before the watch, too: the callback runs after the watch has begun.
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
