"""Starts the sources of Services that the configuration names, and keeps them running.

A source is imported only if the configuration names it. The client of the API server alone takes as long to import as
everything else that is needed before the first client is served.
"""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from kubeproxy.config.schema import Configuration
from kubeproxy.config.validate import uses_kubernetes
from kubeproxy.daemon.drain_reporter import Count, DrainReporter
from kubeproxy.daemon.service_events import Events
from kubeproxy.model.snapshot import Snapshot
from kubeproxy.observability.picture import DrainingEndpoints, EventCounts, Picture
from kubeproxy.proxier.tracker import Tracker
from kubeproxy.runtime.keep_running import kept_running
from kubeproxy.runtime.tasks import TaskSet
from kubeproxy.runtime.threads import imported

if TYPE_CHECKING:
    from kubeproxy.kubernetes.client.client import Client
    from kubeproxy.kubernetes.client.request_metrics import Requests
    from kubeproxy.sources.kubernetes.source import KubernetesSource
    from kubeproxy.sources.manifests.source import ManifestSource


def source_names(configuration: Configuration) -> list[str]:
    """Return the names of the configured sources, which the tracker needs before the sources start."""
    names = ["manifests"] if configuration.kubeproxy.manifests.paths else []
    return [*names, "kubernetes"] if uses_kubernetes(configuration, os.environ) else names


def source_texts(configuration: Configuration) -> tuple[str, ...]:
    """Return a text without secrets for each configured source, to compare them with those of another instance.

    Paths are absolute. An API server is described by its setting, because the address of a cluster's API server as seen
    from a pod may change although the server is the same.
    """
    from kubeproxy.observability.redaction import redact

    texts = []
    for path in configuration.kubeproxy.manifests.paths:
        is_path = path != "-" and "://" not in path
        texts.append(f"manifests {os.path.abspath(path) if is_path else redact(path)}")
    if uses_kubernetes(configuration, os.environ):
        kubeconfig = configuration.client_connection.kubeconfig
        own = os.path.abspath(kubeconfig) if kubeconfig else "of this pod"
        texts.append(f"the API server {redact(configuration.kubeproxy.master) or own}")
    return tuple(texts)


class Sources:
    """The sources, and the users of the same API client: the event recorder and the drain reporter."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        node_name: str,
        tracker: Tracker,
        events: Events,
        drain_reporter: DrainReporter,
        tasks: TaskSet,
    ) -> None:
        self._configuration = configuration
        self._node_name = node_name
        self._tracker = tracker
        self._events = events
        self._drain_reporter = drain_reporter
        self._tasks = tasks
        self._kubernetes: KubernetesSource | None = None
        self._manifests: ManifestSource | None = None
        self._requests: Requests | None = None
        self._client: Client | None = None

    async def start(self, closing: AsyncExitStack) -> None:
        """Start the sources. Raise ConfigError if the address or the credentials of a configured API server cannot be
        used."""
        if uses_kubernetes(self._configuration, os.environ):
            await self._start_kubernetes(closing)
        if self._configuration.kubeproxy.manifests.paths:
            self._start_manifests()

    async def _start_kubernetes(self, closing: AsyncExitStack) -> None:
        await imported("kubeproxy.sources.kubernetes.source", "kubeproxy.kubernetes.events.recorder")
        from kubeproxy.kubernetes.client.client import Client
        from kubeproxy.kubernetes.client.credentials import ClientSettings
        from kubeproxy.kubernetes.events.recorder import EventRecorder
        from kubeproxy.sources.kubernetes.source import KubernetesSource

        settings = self._configuration
        client = await Client.connect(
            ClientSettings(
                kubeconfig=settings.client_connection.kubeconfig,
                master=settings.kubeproxy.master,
                qps=settings.client_connection.qps,
                burst=settings.client_connection.burst,
            )
        )
        closing.push_async_callback(client.close)
        self._requests = client.requests
        self._kubernetes = KubernetesSource(
            client=client, sink=self._tracker, node_sink=self._tracker, node_name=self._node_name
        )
        recorder = self._events.recorder = EventRecorder(
            client=client,
            node_name=self._node_name,
            rights="bind system:node-proxier, which may create events",
        )
        self._events.starting(self._node_name)
        self._client = client
        running = (
            self._tasks.start(kept_running("events", recorder.run), name="events"),
            self._tasks.start(kept_running("kubernetes", self._kubernetes.run), name="kubernetes"),
        )
        # The tasks end before their client is closed. Otherwise they would log the closed client as an outage.
        closing.push_async_callback(self._tasks.end, *running)

    def _start_manifests(self) -> None:
        from kubeproxy.daemon.settings import manifest_terms
        from kubeproxy.sources.manifests.source import ManifestSource

        manifests = self._configuration.kubeproxy.manifests
        self._manifests = ManifestSource(
            paths=manifests.paths,
            recursive=manifests.recursive,
            terms=manifest_terms(self._configuration),
            sink=self._tracker,
            on_report=lambda report: None,
        )
        self._tasks.start(kept_running("manifests", self._manifests.run), name="manifests")

    async def report_drains(self, translated_to: Count) -> None:
        """Write drain reports until cancelled. Without an API server nothing is written (see `DrainReporter.run`)."""
        if self._client is not None:
            await self._drain_reporter.run(self._client, translated_to)

    async def report_leaving(self) -> None:
        """After a takeover, report the remaining connections of this instance until cancelled."""
        if self._client is not None:
            try:
                await self._drain_reporter.leave(self._client, self._tracker.drain_requests)
            finally:
                await self._drain_reporter.end(self._client)

    async def end_drain_reports(self) -> None:
        """Make the node's drain report expire, because no process serves this node any more."""
        if self._client is not None:
            await self._drain_reporter.end(self._client)

    async def retry(self) -> None:
        """Ask all sources again now, without waiting for their backoff."""
        if self._kubernetes is not None:
            self._kubernetes.retry()
        await self.reload()

    async def reload(self) -> None:
        """Read the manifests again."""
        if self._manifests is not None:
            await self._manifests.reload()

    def why_not_served(self, namespace: str, name: str) -> str:
        """Return why this proxy does not serve a Service that a source has, or an empty text if no source has it. An
        empty namespace matches any."""
        for source in (self._manifests, self._kubernetes):
            if source is not None and (reason := source.why_not_served(namespace, name)):
                return reason
        return ""

    def trouble(self) -> str:
        """Return the last error of a resource that was never listed, or an empty text."""
        watches = self._kubernetes.state() if self._kubernetes is not None else ()
        return next((watch.last_error for watch in watches if watch.last_error and not watch.lists), "")

    def kubernetes_complaint(self) -> str | None:
        """Return what is wrong with the API server's objects, or None if nothing is."""
        return self._kubernetes.complaint() if self._kubernetes is not None else None

    def manifests_complaint(self) -> str | None:
        """Return what is wrong with the manifests, or None if nothing is."""
        return self._manifests.state().complaint if self._manifests is not None else None

    def behind_s(self, source: str) -> float:
        """Return for how many seconds changes of a source may have been missed, or 0 if the source is up to date."""
        if source != "kubernetes" or self._kubernetes is None:
            return 0.0
        return max(reflector.behind_s for reflector in self._kubernetes.state())

    def picture(self, proxier: Snapshot) -> Picture:
        """Return the state of the proxier and of the sources."""
        recorder = self._events.recorder
        return Picture(
            proxier=proxier,
            watches=self._kubernetes.state() if self._kubernetes is not None else (),
            manifests=self._manifests.state() if self._manifests is not None else None,
            requests=self._requests,
            events=None if recorder is None else EventCounts(recorder.sent, recorder.dropped),
            draining=DrainingEndpoints(self._drain_reporter.draining, self._drain_reporter.open),
        )
