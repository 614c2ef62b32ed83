"""Saves the last state of the sources to a file, and serves it after a start until the sources themselves are complete.

Without the file, a restart while the API server is unreachable would leave the node without Services. The saved state
is served however old it is, just as kube-proxy's rules stay in the kernel until something removes them. It is marked as
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
"""The value of the setting that means no file."""
LOOK_S: Final = 2.0
"""How often to check for changes. The file may be out of date by this much."""
SHARE: Final = 0.005
"""The largest share of a processor that writing may take. A large state that changes constantly is written less
often."""
CONFIRM_S: Final = 10.0
"""How often an unchanged file is confirmed to be up to date."""
FRESH_S: Final = 600.0
"""A state older than this is served only if the sources are not complete within `START_GRACE_S`, because its addresses
may belong to other pods by now, and the sources usually answer in time."""


class StateKeeper:
    """Saves the states of the sources to a file, and serves them from the file."""

    def __init__(
        self,
        file: StateFile | None,
        tracker: Tracker,
        *,
        owns_rules: Callable[[], bool],
        behind_s: Callable[[str], float],
    ) -> None:
        """`file` is None if no file is wanted. `owns_rules` returns whether this process serves the node. `behind_s`
        returns for how many seconds changes of a source may have been missed."""
        self._file = file
        self._tracker = tracker
        self._owns_rules = owns_rules
        self._behind_s = behind_s
        self._since: dict[str, float] = {}
        """The recalled sources, each with the Unix time since which its state may be out of date."""
        self._recalled_at: float | None = None
        self._written: object = None
        """The value of `_version` when the file was written."""
        self._confirmed_at = 0.0
        self._problem = ""

    async def recall(self, *, at_once: bool = False) -> bool:
        """Serve the state in the file for every source that is not complete, and return whether there is such a state.
        With `at_once`, a state older than `FRESH_S` is not used."""
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
        """Return the sources that are replaced by the state of an earlier run. For each, return the Unix time since
        which that state may be out of date."""
        complete = self._tracker.sources()
        return {name: since for name, since in self._since.items() if not complete[name]}

    def complaint(self) -> str | None:
        """Return a text that names the sources that are not listed although enough time has passed, or None."""
        stale = self.stale
        if not stale or self._recalled_at is None or time.monotonic() - self._recalled_at < START_GRACE_S:
            return None
        return (
            f"serving the state of an earlier run, stale since {_moment(min(stale.values()))}: {', '.join(stale)} not"
            " listed since the start"
        )

    async def run(self) -> None:
        """Write the file after each change, until cancelled."""
        stale = self.stale
        while True:
            took_s = await self.write()
            await asyncio.sleep(max(LOOK_S, took_s / SHARE))
            for name in stale.keys() - self.stale.keys():
                log.info("source listed, state of earlier run replaced", source=name)
            stale = self.stale

    async def write(self) -> float:
        """Write the file if something has changed. Return the CPU time of the write in seconds."""
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
    """Return the configured file, or None if no file is wanted."""
    wanted = configuration.kubeproxy.state_directory
    if wanted == NONE:
        return None
    return StateFile(Path(wanted) if wanted else default_directory(), identity(configuration))


def default_directory() -> Path:
    """Return the state directory that systemd created for this process, or the default one."""
    return Path(os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0] or "/run/kubeproxy")


def identity(configuration: Configuration) -> str:
    """Return a digest of everything that a saved state depends on: this node's name, and the sources with all settings
    that select or name their objects.

    An API server is identified by its address, because the kubeconfig may name another cluster now.
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
        return ""  # The sources will report the error.


def _moment(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds")
