"""Who is told what goes on: metrics and health of everything, the daemon of what it has to act upon, and the cluster's
operators, by Events on the very object, of what is wrong with a Service."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from kubeproxy.daemon.event_reason import Reason
from kubeproxy.model import ServiceName
from kubeproxy.observability.health import ProxyHealth
from kubeproxy.observability.metrics.metrics import Metrics
from kubeproxy.observability.sync_observer import SyncObserver

if TYPE_CHECKING:
    from kubeproxy.kubernetes.events.recorder import EventRecorder


class Events:
    """Events about Services that the cluster has; a manifest's Service has no object that one could look at. Nothing is
    said while there is no `recorder`: the log has it in any case."""

    def __init__(self) -> None:
        self._recorder: EventRecorder | None = None
        self._node_warnings: list[tuple[str, Reason, str]] = []
        """Of the time before there was a recorder."""
        self.owner_of: Callable[[ServiceName], str | None] = lambda service: None
        """The source of a Service."""
        self._problems: Mapping[ServiceName, Sequence[str]] = {}

    @property
    def recorder(self) -> EventRecorder | None:
        """Who sends them; None: nobody yet, or ever."""
        return self._recorder

    @recorder.setter
    def recorder(self, recorder: EventRecorder) -> None:
        self._recorder, early, self._node_warnings = recorder, self._node_warnings, []
        for warning in early:
            self._warn_node(*warning)

    def starting(self, node_name: str) -> None:
        """kube-proxy's own words, on the Node."""
        if self.recorder is not None:
            words = "Starting kubeproxy."
            self.recorder.record(
                "Node",
                "",
                node_name,
                uid=node_name,
                type="Normal",
                reason=Reason.STARTING,
                message=words,
            )

    def services_degraded(self, problems: Mapping[ServiceName, Sequence[str]]) -> None:
        """The Services that are not wholly served are these now; only what is new is told."""
        for service, texts in problems.items():
            for text in texts:
                if text not in self._problems.get(service, ()):
                    self._warn(service, Reason.NOT_SERVED, text)
        self._problems = problems

    def health_failed(self, node_name: str, text: str) -> None:
        """The health server has not got its address. The servers start before anything else, so this may come before
        there is a recorder, and is told then."""
        self._warn_node(node_name, Reason.FAILED_HEALTHZ, f"failed to start proxier healthz: {text}")

    def health_server_failed(self, service: ServiceName, text: str) -> None:
        """A health check node port could not be had."""
        self._warn(service, Reason.FAILED_SERVICE_HEALTH, text)

    def _warn_node(self, node_name: str, reason: Reason, text: str) -> None:
        if self.recorder is None:
            self._node_warnings.append((node_name, reason, text))
        else:
            self.recorder.record("Node", "", node_name, uid=node_name, type="Warning", reason=reason, message=text)

    def _warn(self, service: ServiceName, reason: Reason, text: str) -> None:
        if self.recorder is None:
            return
        # With the recorder it is here already; without one it is not to be imported (see `inputs`).
        from kubeproxy.sources.kubernetes.resources import SOURCE

        if self.owner_of(service) == SOURCE:
            self.recorder.record("Service", *service, type="Warning", reason=reason, message=text)


class ProxierEvents(SyncObserver):
    """The proxier's observer."""

    def __init__(
        self,
        health: ProxyHealth,
        metrics: Metrics,
        *,
        adapter: str,
        events: Events,
        on_service_health: Callable[[Mapping[ServiceName, tuple[int, int]]], None],
    ) -> None:
        super().__init__(health, metrics, adapter=adapter)
        self._events = events
        self._on_service_health = on_service_health

    def services_degraded(self, problems: Mapping[ServiceName, Sequence[str]]) -> None:
        """Some Services are not wholly served."""
        self._events.services_degraded(problems)

    def service_health(self, wanted: Mapping[ServiceName, tuple[int, int]]) -> None:
        """Load balancers ask after these Services."""
        self._on_service_health(wanted)
