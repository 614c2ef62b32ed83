"""Keeps the last state of the sources in a file, and serves it after a start until the sources themselves are complete.

Without the file, a restart while the API server is away would leave the node without Services. kube-proxy's rules stay
as long as nothing removes them. In the same way the content of the file is served however old it is. It is marked as
stale, and each source's first complete list replaces it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import structlog

from kubeproxy.config.schema import Configuration
from kubeproxy.config.validate import uses_kubernetes
from kubeproxy.daemon.host_state import node_name_of
from kubeproxy.daemon.saved_state import SavedState, SourceState, StateFile, UnusableStateError
from kubeproxy.daemon.sources import source_texts
from kubeproxy.model.errors import ConfigError
from kubeproxy.proxier.tracker import START_GRACE_S, Tracker
from kubeproxy.runtime.threads import ThreadNotStartedError, in_thread

log = structlog.get_logger(__name__)

NONE: Final = "none"
"""The value of the setting for no file."""
LOOK_S: Final = 2.0
"""How often the keeper checks for changes, and so how far the file may lag behind."""
SHARE: Final = 0.005
"""The largest share of a processor that writing may take. A large state that keeps changing is written less often."""
CONFIRM_S: Final = 10.0
"""How often a file without changes is confirmed."""
FRESH_S: Final = 600.0
"""A state older than this is served only if the sources are not complete within `START_GRACE_S`. Its addresses may
belong to other pods by now, and the sources usually answer."""


class StateKeeper:
    """The states of the sources, and their file."""

    def __init__(
        self,
        file: StateFile | None,
        tracker: Tracker,
        *,
        owns_rules: Callable[[], bool],
        behind_s: Callable[[str], float],
    ) -> None:
        """`file` is None if no file is wanted. `owns_rules` returns whether this process is the one that serves the
        node, and `behind_s` for how many seconds changes of a source may be missing."""
        self._file = file
        self._tracker = tracker
        self._owns_rules = owns_rules
        self._behind_s = behind_s
        self._since: dict[str, float] = {}
        """The recalled sources, each with the Unix time since which its state may be wrong."""
        self._recalled_at: float | None = None
        self._written: object = None
        """The value of `_version` when the file was written."""
        self._confirmed_at = 0.0
        self._problem = ""

    async def recall(self, *, at_once: bool = False) -> bool:
        """Serve the state in the file for every source that is not complete, and return whether there is such a state.
        With `at_once` a state older than `FRESH_S` is not served."""
        if self._file is None or self._recalled_at is not None or all(self._tracker.sources().values()):
            return False
        try:
            saved = await in_thread(self._file.read)
        except (UnusableStateError, ThreadNotStartedError) as error:
            log.info("state of earlier run not used", reason=str(error))
            return False
        now = time.time()
        if saved is None or (at_once and any(now - (it.since or now) > FRESH_S for it in saved.sources)):
            return False
        self._recalled_at = time.monotonic()
        if saved.node is not None:
            self._tracker.recall_node(saved.node)
        for source in saved.sources:
            self._since[source.name] = source.since or now
            self._tracker.recall(source.name, source.services, source.slices)
        log.info("serving state of earlier run", stale_since=_moment(min(self._since.values(), default=now)))
        return True

    @property
    def stale(self) -> Mapping[str, float]:
        """Return the sources for which the state of an earlier run is served, each with the Unix time since which it
        may be wrong."""
        complete = self._tracker.sources()
        return {name: since for name, since in self._since.items() if not complete[name]}

    def complaint(self) -> str | None:
        """Return which sources are not listed although they have had enough time, or None if there are none."""
        stale = self.stale
        if not stale or self._recalled_at is None or time.monotonic() - self._recalled_at < START_GRACE_S:
            return None
        return (
            f"serving the state of an earlier run, stale since {_moment(min(stale.values()))}: {', '.join(stale)} not"
            " listed since the start"
        )

    async def run(self) -> None:
        """Write the file after changes, until cancelled."""
        stale = self.stale
        while True:
            took_s = await self.write()
            await asyncio.sleep(max(LOOK_S, took_s / SHARE))
            for name in stale.keys() - self.stale.keys():
                log.info("source listed, state of earlier run replaced", source=name)
            stale = self.stale

    async def write(self) -> float:
        """Write the file if there is anything new. Return the CPU time that it took, in seconds."""
        file, version = self._file, self._version()
        if file is None or not self._owns_rules():
            return 0.0
        if version == self._written:
            if self._in_step() and time.monotonic() - self._confirmed_at >= CONFIRM_S:
                self._confirmed_at = time.monotonic()
                file.confirm()
            return 0.0
        state = self._state()
        if not state.sources:
            return 0.0

        def work() -> float:
            began = time.thread_time()
            file.write(state)
            return time.thread_time() - began

        try:
            took_s = await in_thread(work)
        except (UnusableStateError, ThreadNotStartedError) as error:
            if str(error) != self._problem:
                log.info("state is not kept for next start", reason=str(error))
            self._problem = str(error)
            return 0.0
        self._problem = ""
        self._written, self._confirmed_at = version, time.monotonic()
        return took_s

    def _version(self) -> object:
        tracker = self._tracker
        totals = tracker.service_changes.total, tracker.slice_changes.total
        return *totals, tuple(tracker.sources().values()), tracker.node

    def _in_step(self) -> bool:
        return not self.stale and all(self._behind_s(name) == 0 for name in self._tracker.sources())

    def _state(self) -> SavedState:
        now, stale = time.time(), self.stale
        sources = []
        for name, (services, slices) in self._tracker.served().items():
            behind_s = self._behind_s(name)
            sources.append(SourceState(name, services, slices, stale.get(name, now - behind_s if behind_s else None)))
        return SavedState(sources, self._tracker.node)


def state_file(configuration: Configuration) -> StateFile | None:
    """Return the file that the configuration asks for, or None if it asks for none."""
    wanted = configuration.kubeproxy.state_directory
    if wanted == NONE:
        return None
    return StateFile(Path(wanted) if wanted else default_directory(), identity(configuration))


def default_directory() -> Path:
    """Return the directory that systemd has made for this process, or else the default."""
    return Path(os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0] or "/run/kubeproxy")


def identity(configuration: Configuration) -> str:
    """Return a digest of everything on which a state depends: this node's name, and the sources with all that selects
    and names their objects.

    An API server is identified by its address, because a kubeconfig may name another cluster by now.
    """
    manifests = configuration.kubeproxy.manifests
    parts = (
        node_name_of(configuration),
        source_texts(configuration),
        _server(configuration),
        manifests.recursive,
        str(manifests.default_namespace),
        str(manifests.namespace),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _server(configuration: Configuration) -> str:
    if not uses_kubernetes(configuration, os.environ):
        return ""
    from kubeproxy.kubernetes.client.credentials import ClientSettings

    settings = ClientSettings(
        kubeconfig=configuration.client_connection.kubeconfig, master=configuration.kubeproxy.master
    )
    try:
        return settings.read().host
    except ConfigError:
        return ""  # The sources report such an error.


def _moment(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds")
