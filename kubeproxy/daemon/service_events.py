"""Reports problems as Kubernetes Events on Services and on the Node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from kubeproxy.model import ServiceName, Target

if TYPE_CHECKING:
    from kubeproxy.kubernetes.events.recorder import EventRecorder


class Reason(StrEnum):
    """The reasons of Events. They are kube-proxy's words where kube-proxy has the same reason."""

    STARTING = "Starting"
    FAILED_HEALTHZ = "FailedToStartProxierHealthcheck"
    FAILED_SERVICE_HEALTH = "FailedToStartServiceHealthcheck"
    NOT_AS_ASKED = "NotServedAsAsked"
    EJECTED = "EndpointNotAnswering"


class Events:
    """Reports Events about Services of the cluster and about the Node.

    There are no Events for Services from manifests, because these have no object in the cluster. Without a `recorder`
    there are none at all. The log has every problem in any case.
    """

    def __init__(self, owner_of: Callable[[ServiceName], str | None]) -> None:
        """`owner_of` returns the source of a Service."""
        self._recorder: EventRecorder | None = None
        self._node_warnings: list[tuple[str, Reason, str]] = []
        """Warnings about the Node from before the recorder was set."""
        self._owner_of = owner_of
        self._problems: Mapping[ServiceName, Sequence[str]] = {}

    @property
    def recorder(self) -> EventRecorder | None:
        """Return the sender of Events, or None if there is no API server, or if the sender does not exist yet."""
        return self._recorder

    @recorder.setter
    def recorder(self, recorder: EventRecorder) -> None:
        self._recorder, early, self._node_warnings = recorder, self._node_warnings, []
        for warning in early:
            self._warn_node(*warning)

    def starting(self, node_name: str) -> None:
        """Record the start on the Node, in kube-proxy's words."""
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
        """Send Events about new problems. `problems` has all Services that have problems now."""
        for service, texts in problems.items():
            for text in texts:
                if text not in self._problems.get(service, ()):
                    self._warn(service, Reason.NOT_AS_ASKED, text)
        self._problems = problems

    def endpoint_lost(self, service: ServiceName, target: Target) -> None:
        """Send an Event that an endpoint of a Service has not answered for minutes. All nodes send it with the same
        words, so that the Events are counted as one."""
        text = (
            f"endpoint {target} is listed as ready and has not answered for minutes; it gets no clients until it does"
        )
        self._warn(service, Reason.EJECTED, text, shared=True)

    def health_failed(self, node_name: str, text: str) -> None:
        """Send an Event that the health server cannot bind its address. If there is no recorder yet, keep the warning
        for later."""
        self._warn_node(node_name, Reason.FAILED_HEALTHZ, f"failed to start proxier healthz: {text}")

    def health_server_failed(self, service: ServiceName, text: str) -> None:
        """Send an Event that another process uses a health check node port."""
        self._warn(service, Reason.FAILED_SERVICE_HEALTH, text)

    def _warn_node(self, node_name: str, reason: Reason, text: str) -> None:
        if self.recorder is None:
            self._node_warnings.append((node_name, reason, text))
        else:
            self.recorder.record("Node", "", node_name, uid=node_name, type="Warning", reason=reason, message=text)

    def _warn(self, service: ServiceName, reason: Reason, text: str, *, shared: bool = False) -> None:
        if self.recorder is None:
            return
        # If there is a recorder, this module has already been imported. Otherwise it must not be imported (see
        # `sources`).
        from kubeproxy.sources.kubernetes.kinds import SOURCE

        if self._owner_of(service) == SOURCE:
            self.recorder.record("Service", *service, type="Warning", reason=reason, message=text, shared=shared)
