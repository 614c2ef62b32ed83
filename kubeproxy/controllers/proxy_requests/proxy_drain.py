"""Asks the proxies of all nodes to drain pods of one rollout, and waits until the pods are drained.

The requests are stored on the Services that select the pods, and expire if this process ends. Pods that no Service
selects need no draining. If the API server refuses a write, an `ApiError` is raised.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import msgspec
import structlog

from kubeproxy.controllers.api_types import Pod, Service
from kubeproxy.controllers.informers import lease_client, service_client
from kubeproxy.controllers.proxy_requests.reports import PodDrain, Reports, live_reports
from kubeproxy.controllers.proxy_requests.requests import Wish, addresses_for, merged, name_of, requests_of, selects
from kubeproxy.kubernetes import api_types
from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.errors import ApiError
from kubeproxy.kubernetes.object_client import is_conflict, is_not_found
from kubeproxy.model.drain_report import REPORT_NAMESPACE, REPORT_SELECTOR
from kubeproxy.model.drain_request import REQUESTS, DrainRequest, DrainRequests, Want, encode_requests

log = structlog.get_logger(__name__)

POLL_S: Final = 0.5
"""The interval at which reports are read while the command waits. A millisecond is added for each node."""
COUNT_S: Final = 3.0
"""The longest wait for the nodes' connection counts. The wait is short, because the counts only help to choose pods."""
CLEAN_UP_S: Final = 10.0
CONFLICTS: Final = 10
"""The number of attempts to change a Service when other clients change it, too."""


_Slices = api_types.ObjectList[api_types.EndpointSlice]


class ProxyDrain:
    """The requests of one rollout about pods of one namespace. `owner` is the rollout's name in the requests. `clock`
    returns Unix seconds."""

    def __init__(
        self,
        requests: Client,
        namespace: str,
        owner: str,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._requests = requests
        self._services = service_client(requests)
        self._leases = lease_client(requests)
        self._namespace = namespace
        self._owner = owner
        self._clock = clock

    async def proxies(self) -> frozenset[str]:
        """Return the names of the live nodes whose proxies write drain reports. The result is empty if there are none,
        or if this user may not read reports."""
        return frozenset((await self._reports()).nodes)

    async def connections(self, pods: Sequence[Pod]) -> dict[str, int]:
        """Return the number of open connections by pod name, as far as nodes report it within `COUNT_S`."""
        await self._until_done(pods, COUNT_S, Want.COUNT)
        services, reports = await self._selecting(pods), await self._reports()
        return {
            pod.metadata.name: reports.connections(
                (name_of(service), addresses_for(service, pod)) for service in services if selects(service, pod)
            )
            for pod in pods
        }

    async def start(self, pods: Sequence[Pod]) -> None:
        """Request that all proxies send these pods no new connections."""
        await self._ask(pods, Want.DRAIN)

    async def state(self, pods: Sequence[Pod]) -> dict[str, PodDrain]:
        """Return what the nodes report about the last request for each pod, by pod name."""
        return self._states(pods, await self._selecting(pods), await self._reports())

    async def wait(
        self, pods: Sequence[Pod], timeout_s: float, on_change: Callable[[Mapping[str, PodDrain]], None] | None = None
    ) -> dict[str, PodDrain]:
        """Wait until every node has carried out the requests and no connection to these pods is open, for at most
        `timeout_s` seconds. Return the last state by pod name.

        The requests of `start` are renewed meanwhile, and written again if another client has removed them. `on_change`
        is called with each new state.
        """
        return await self._until_done(pods, timeout_s, Want.DRAIN, on_change=on_change)

    async def withdraw(self, pods: Sequence[Pod]) -> None:
        """Withdraw the requests about these pods. Pods that still run get connections again at once."""
        names = {pod.metadata.name for pod in pods}
        for service in await self._selecting(pods):
            await self._change(service, [], withdrawn=names)

    async def clean_up(self, timeout_s: float = CLEAN_UP_S) -> None:
        """Remove this rollout's requests from Services, as soon as no EndpointSlice lists its deleted pods as ready.

        Requests that are left after `timeout_s` seconds expire by themselves.
        """
        clock = asyncio.get_running_loop().time
        ends_at = clock() + timeout_s
        for service in await self._services.list_namespace(self._namespace):
            while owned := [request for request in requests_of(service).requests if request.owner == self._owner]:
                ready = await self._ready_endpoints(service)
                gone = {each.pod for each in owned if each.want is not Want.DRAIN or not _is_ready(each, ready)}
                if gone:
                    service = await self._change(service, [], withdrawn=gone)
                if len(gone) == len({each.pod for each in owned}) or clock() >= ends_at:
                    break
                await asyncio.sleep(POLL_S)

    async def _ready_endpoints(self, service: Service) -> frozenset[tuple[str, str]]:
        """Return the address and the pod (see `Endpoint.pod`) of each ready endpoint in a Service's EndpointSlices."""
        name = service.metadata.name
        query = {"labelSelector": f"kubernetes.io/service-name={name}"}
        path = f"/apis/discovery.k8s.io/v1/namespaces/{self._namespace}/endpointslices"
        try:
            body = await self._requests.get_json(path, query)
        except ApiError as error:
            if error.status not in (403, 404):
                raise
            # If the slices cannot be read, assume that they list every pod, so that the requests are left to expire.
            return frozenset((a, request.uid) for request in requests_of(service).requests for a in request.addresses)
        slices = msgspec.json.decode(body, type=_Slices)
        return frozenset(
            (address, api_types.pod_of(endpoint.target_ref))
            for item in slices.items or ()
            for endpoint in item.endpoints or ()
            if endpoint is not None and (endpoint.conditions is None or endpoint.conditions.ready is not False)
            for address in endpoint.addresses or ()
            if address is not None
        )

    async def _until_done(
        self,
        pods: Sequence[Pod],
        timeout_s: float,
        want: Want,
        *,
        on_change: Callable[[Mapping[str, PodDrain]], None] | None = None,
    ) -> dict[str, PodDrain]:
        clock = asyncio.get_running_loop().time
        ends_at, seen = clock() + timeout_s, None
        while True:
            reports = await self._reports()
            states = self._states(pods, await self._ask(pods, want), reports)
            if on_change is not None and states != seen:
                on_change(states)
            seen = states
            if all(
                not state.waiting and (want is not Want.DRAIN or not state.connections) for state in states.values()
            ):
                return states
            left_s = ends_at - clock()
            if left_s <= 0:
                return states
            await asyncio.sleep(min(left_s, max(POLL_S, len(reports.nodes) / 1000)))

    def _states(self, pods: Sequence[Pod], services: Sequence[Service], reports: Reports) -> dict[str, PodDrain]:
        requests = {name_of(service): requests_of(service) for service in services}
        return {pod.metadata.name: reports.state(pod.metadata.name, self._owner, requests) for pod in pods}

    async def _ask(self, pods: Sequence[Pod], want: Want) -> list[Service]:
        """Write requests about these pods to every Service that selects them. Return the changed Services."""
        asked = []
        for service in await self._selecting(pods):
            wishes = [
                Wish(pod.metadata.name, pod.metadata.uid, addresses, want)
                for pod in pods
                if selects(service, pod) and (addresses := addresses_for(service, pod))
            ]
            asked.append(await self._change(service, wishes))
        return asked

    async def _change(self, service: Service, wishes: Sequence[Wish], withdrawn: Collection[str] = ()) -> Service:
        """Write the requests of a Service, if they have changed. Try again if another client has changed the Service
        meanwhile."""
        for last in (*[False] * (CONFLICTS - 1), True):
            current = requests_of(service)
            found = merged(current, self._owner, wishes, withdrawn=withdrawn, now=self._clock())
            if found is current:
                break
            try:
                return await self._services.patch(self._namespace, service.metadata.name, request_patch(service, found))
            except ApiError as error:
                if is_not_found(error):
                    break  # Without the Service, no proxy sends the pods connections.
                if last or not is_conflict(error):
                    raise
                service = await self._services.get(self._namespace, service.metadata.name)
        return service

    async def _selecting(self, pods: Sequence[Pod]) -> list[Service]:
        services = await self._services.list_namespace(self._namespace)
        return [service for service in services if any(selects(service, pod) for pod in pods)]

    async def _reports(self) -> Reports:
        """Return the reports of the live nodes, or none if this user may not read them."""
        try:
            leases = await self._leases.list_namespace(REPORT_NAMESPACE, selector=REPORT_SELECTOR)
        except ApiError as error:
            if error.status not in (403, 404):
                raise
            log.debug("drain reports are not readable", error=str(error))
            return Reports({})
        return live_reports(leases, self._clock())


def _is_ready(request: DrainRequest, ready: Collection[tuple[str, str]]) -> bool:
    return any(address in request.addresses and request.is_about(pod) for address, pod in ready)


def request_patch(service: Service, requests: DrainRequests) -> dict[str, object]:
    """Return the merge patch that stores these requests on a Service. It removes the annotation if there are no
    requests."""
    text = encode_requests(requests) if requests.requests else None
    return {"metadata": {"resourceVersion": service.metadata.resource_version, "annotations": {REQUESTS: text}}}
