"""The controller of readiness gates: asks the proxies to use pods whose containers are ready, and opens the pods'
gates.

A key of its work queue is a namespace, so that one write to a Service has the requests about all waiting pods.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from time import time
from typing import Final

import structlog

from kubeproxy.controllers import event_reporter
from kubeproxy.controllers.api_types import Pod, Service
from kubeproxy.controllers.event_reporter import EventReporter, EventType, Involved
from kubeproxy.controllers.informers import Informers, pod_client
from kubeproxy.controllers.proxy_requests.node_proxies import SOON_S, NodeProxies, NotAskedError
from kubeproxy.controllers.proxy_requests.reports import NOTHING, Reports
from kubeproxy.controllers.proxy_requests.requests import Wish, addresses_for, is_node_local, name_of, requests_of
from kubeproxy.controllers.readiness import gates
from kubeproxy.controllers.readiness.gates import Answers, Verdict
from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.errors import ApiError
from kubeproxy.kubernetes.controller.controller import Controller, monotonic
from kubeproxy.kubernetes.informer.mutation_cache import MutationCache
from kubeproxy.kubernetes.metadata import key_of
from kubeproxy.kubernetes.object_client import STRATEGIC, is_not_found
from kubeproxy.model.drain_request import Want

log = structlog.get_logger(__name__)

OWNER: Final = "readiness"
"""The owner that the requests name. It is the same for every leader, so a new leader continues with the requests of the
former leader."""
LOOK_S: Final = 1.0
"""The interval at which a namespace with waiting pods is synced even without events, because no event tells that a
Lease has expired."""
RETRY_S: Final = 10.0
"""The longest back-off after an error."""
SHARE: Final = 4.0
"""The pause after the sync of a namespace, as a multiple of the duration of the sync."""
MOST_ASKED: Final = 200
"""The largest number of pods of one Service that have requests at once. The requests are in an annotation, whose size
is limited."""
MOST_WRITTEN: Final = 50
"""The largest number of conditions that one sync writes."""
_OF_THIS_POD: Final = frozenset({400, 403, 409, 422})
"""HTTP statuses of errors that concern only the pod whose condition was written."""


class ReadinessController:
    """Opens the gates of all pods. `clock` returns Unix seconds."""

    def __init__(
        self,
        *,
        requests: Client,
        informers: Informers,
        sink: EventReporter,
        workers: int,
        clock: Callable[[], float] = time,
    ) -> None:
        """Register the handlers. The informers `services` and `leases` need not run before `informers.proxies_wanted`
        is set."""
        self._pods = MutationCache(informers.pods)
        self._client = pod_client(requests, written=self._pods.written)
        self._sink = sink
        self._clock = clock
        self._waiting: dict[str, dict[str, None]] = {}
        """The keys of waiting pods, by namespace."""
        self._pauses: dict[str, float] = {}
        """The delay in seconds, by namespace, from a changed report to the sync."""
        self._faulty: set[str] = set()
        """The UIDs of waiting pods whose faulty annotation has been reported."""
        self.opened: Counter[str] = Counter()
        """The number of opened gates by reason."""
        self.proxies = NodeProxies(requests, informers, clock=clock, on_reports=self._look_again)
        self.controller = Controller("readiness", self.sync, workers=workers)
        informers.pods.add_handler(_PodHandler(self))

    @property
    def waiting(self) -> int:
        """Return the number of waiting pods."""
        return sum(map(len, self._waiting.values()))

    def pod_seen(self, pod: Pod, *, exists: bool = True) -> None:
        """Note whether a pod with the gate waits, and have its namespace synced."""
        self.proxies.wanted.set()
        namespace, key = pod.metadata.namespace, key_of(pod)
        if exists and gates.waits(pod):
            self._waiting.setdefault(namespace, {})[key] = None
        else:
            self._waiting.get(namespace, {}).pop(key, None)
            self._faulty.discard(pod.metadata.uid)
        self.controller.enqueue(namespace)

    def _look_again(self, namespaces: Collection[str] | None) -> None:
        for namespace, pods in self._waiting.items():
            if pods and (namespaces is None or namespace in namespaces):
                self.controller.enqueue_after(namespace, self._pauses.get(namespace, SOON_S))

    # Sync

    async def sync(self, namespace: str) -> None:
        """Take the next step for all waiting pods of a namespace. After an error, retry after `RETRY_S` at the
        latest."""
        if self.proxies.expect():
            self.controller.enqueue_after(namespace, LOOK_S)
            return
        try:
            await self._step(namespace)
        except ApiError:
            self.controller.enqueue_after(namespace, RETRY_S)
            raise

    async def _step(self, namespace: str) -> None:
        """Write requests about the waiting pods of a namespace, open the gates of pods that all proxies use, and
        withdraw requests that are no longer needed."""
        begun = monotonic()
        known = (self._pods.get(key) for key in self._waiting.get(namespace, ()))
        waiting = sorted((pod for pod in known if pod is not None and gates.waits(pod)), key=gates.waits_since)
        found = self._exposures(namespace, waiting)
        troubles, failed = await self._ask(namespace, waiting, found)
        verdicts = self._verdicts(namespace, waiting, found, troubles)
        self._pauses[namespace] = max(SOON_S, SHARE * (monotonic() - begun))
        await self._write(verdicts[:MOST_WRITTEN])
        if len(verdicts) > MOST_WRITTEN:
            self.controller.enqueue(namespace)
        elif waiting:
            self.controller.enqueue_after(namespace, max(LOOK_S, self._pauses[namespace]))
        elif not self._waiting.get(namespace):  # Another pod may have begun to wait during the writes.
            self._waiting.pop(namespace, None)
            self._pauses.pop(namespace, None)
        if failed is not None:
            raise failed

    def _exposures(self, namespace: str, pods: Iterable[Pod]) -> dict[str, list[Service]]:
        """Return, by pod name, the Services by which proxies send connections to the pod."""
        find = self.proxies.finder(namespace)
        return {
            pod.metadata.name: [each for each in find(pod) if addresses_for(each, pod, shared=True)] for pod in pods
        }

    async def _ask(
        self, namespace: str, waiting: Iterable[Pod], found: dict[str, list[Service]]
    ) -> tuple[dict[str, str], ApiError | None]:
        """Write the requests to every Service where they have changed. If a Service cannot be written, continue with
        the others. Return, by pod name, why there can be no request about the pod, and the last temporary error."""
        wishes: dict[str, list[Wish]] = {key_of(service): [] for service in self.proxies.asked_in(namespace)}
        for pod in waiting:
            services = {key_of(service): service for service in found[pod.metadata.name]}
            if any(len(wishes.get(key, ())) >= MOST_ASKED for key in services):
                continue  # There will be room for this pod when others are in use.
            for key, service in services.items():
                addresses = addresses_for(service, pod, shared=True)
                wish = Wish(pod.metadata.name, pod.metadata.uid, addresses, Want.READY)
                wishes.setdefault(key, []).append(wish)
        withdrawn = self._settled(namespace)
        troubles: dict[str, str] = {}
        failed: ApiError | None = None
        for key, of_service in wishes.items():
            try:
                await self.proxies.write(key, OWNER, of_service, withdrawn)
            except NotAskedError as error:
                troubles |= {wish.pod: str(error) for wish in of_service}
            except ApiError as error:
                failed = error
        return troubles, failed

    def _settled(self, namespace: str) -> set[str]:
        """Return the names of pods whose requests are no longer needed. Have the namespace synced when the next request
        is no longer needed."""
        now, names = self._clock(), set()
        own = (
            request
            for service in self.proxies.asked_in(namespace)
            for request in requests_of(service).requests
            if request.owner == OWNER
        )
        for request in own:
            pod = self._pods.get(f"{namespace}/{request.pod}")
            if pod is None or pod.metadata.uid != request.uid or not gates.needs_request(pod, now):
                names.add(request.pod)
            elif not gates.waits(pod):
                self.controller.enqueue_after(namespace, gates.settles_in(pod, now))
        return names

    def _verdicts(
        self, namespace: str, waiting: Iterable[Pod], found: dict[str, list[Service]], troubles: dict[str, str]
    ) -> list[tuple[Pod, Verdict]]:
        """Return the conditions to be written. Conditions that open a gate come first."""
        now, ready = self._clock(), self.proxies.ready
        unread = "" if ready else "Services or drain reports cannot be read: bind the roles of the component readiness"
        reports = self.proxies.reports() if ready else Reports({})
        asked = self.proxies.asked_in(namespace)
        requests = {name_of(service): requests_of(service) for service in asked}
        local = {name_of(service) for service in asked if is_node_local(service)}
        stated = {
            (service, each.uid) for service, of in requests.items() for each in of.requests if each.owner == OWNER
        }
        verdicts = []
        for pod in waiting:
            name = pod.metadata.name
            self._check(pod)
            everywhere = all((name_of(service), pod.metadata.uid) in stated for service in found[name])
            state = (
                reports.state(name, OWNER, requests, local=local, node=pod.spec.node_name) if everywhere else NOTHING
            )
            answers = Answers(reports, bool(found[name]) or not ready, state, unread or troubles.get(name, ""))
            if (verdict := gates.verdict(pod, answers, now)) and gates.worth_writing(pod, verdict, now):
                verdicts.append((pod, verdict))
        return sorted(verdicts, key=lambda each: not each[1].opens)

    async def _write(self, verdicts: Iterable[tuple[Pod, Verdict]]) -> None:
        """Write conditions. If an error concerns only one pod, write the others before raising the error."""
        failed: ApiError | None = None
        for pod, verdict in verdicts:
            where = pod.metadata
            body = gates.patch(pod, verdict, self._clock())
            try:
                await self._client.patch(
                    where.namespace, where.name, body, content_type=STRATEGIC, subresource="status"
                )
            except ApiError as error:
                if is_not_found(error):
                    continue  # The pod was deleted, and the watch will report that.
                if error.status not in _OF_THIS_POD:
                    raise
                failed = error
                continue
            if verdict.opens:
                self.opened[verdict.reason.value] += 1
                log.debug("readiness gate opened", pod=key_of(pod), reason=verdict.reason.value)
            if verdict.event:
                self._report(pod, verdict.event, verdict.message)
        if failed is not None:
            raise failed

    def _check(self, pod: Pod) -> None:
        """Report an Event, once, if a pod's annotation is invalid."""
        if pod.metadata.uid not in self._faulty and (fault := gates.fault_of(pod)):
            self._faulty.add(pod.metadata.uid)
            self._report(pod, event_reporter.DRAIN_OPTIONS, fault)

    def _report(self, pod: Pod, reason: str, message: str, type: EventType = "Warning") -> None:
        self._sink.record(Involved.of("v1", "Pod", pod.metadata), type, reason, message)


class _PodHandler:
    """Handles changes of pods that have the gate."""

    def __init__(self, owner: ReadinessController) -> None:
        self._owner = owner

    def added(self, item: Pod) -> None:
        if gates.has_gate(item):
            self._owner.pod_seen(item)

    def updated(self, old: Pod, new: Pod) -> None:
        self.added(new)

    def deleted(self, item: Pod) -> None:
        if gates.has_gate(item):
            self._owner.pod_seen(item, exists=False)
