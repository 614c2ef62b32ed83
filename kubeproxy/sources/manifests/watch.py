"""Reports that some directories have changed. The source finds out which files."""

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
"""watchfiles reports after this time without a change, and takes as long to stop."""
DEBOUNCE_MS = 200
"""For how long watchfiles collects changes at most."""
RETRY_S = 60.0
"""After this delay a failed watch is tried again."""

Directories = frozenset[tuple[str, Identity]]
"""Paths, each with its device and inode, so that a new directory at an old path counts as a change."""


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
        """The reason why nothing is watched, usually the kernel's limit on inotify watches. It is empty while the watch
        works."""

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
                    # This also reports changes from before the watch, because the callback runs after the watch has
                    # begun.
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
