"""The watched resources: their paths in the API, their translation, and their delivery to the sink."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import structlog

from kubeproxy.kubernetes import api_types
from kubeproxy.kubernetes.informer.resource import Resource
from kubeproxy.kubernetes.invalid_field import Fault
from kubeproxy.model import EndpointSlice, Node, Service, ServiceName, SliceName
from kubeproxy.sources import translate
from kubeproxy.sources.sink import NodeSink, Sink, SourceName

SOURCE = SourceName(api_types.SOURCE)

SELECTOR = "!service.kubernetes.io/headless,!service.kubernetes.io/service-proxy-name"
"""kube-proxy's label selector. Newer versions of kube-proxy exclude headless Services by the field selector
``spec.clusterIP!=None``, which older servers refuse with a 400. The labels work with every version, and `translate`
drops headless Services without the label."""

MOST_NOT_SERVED = 10_000
"""The largest number of Services for which the reason why they are not served is kept, for `kubeproxy status NAME`."""

log = structlog.get_logger(__name__)


class Services(Resource[Service]):
    """The resource of v1 Services. Each object becomes at most one Service of the model."""

    name = "services"
    kind = "Service"
    path = "/api/v1/services"
    query: Mapping[str, str] = {"labelSelector": SELECTOR}

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._decode = msgspec.json.Decoder(api_types.Service).decode
        self._not_served: dict[ServiceName, str] = {}
        """Why Services are not served, for the latest `MOST_NOT_SERVED` of them."""

    def translate(self, raw: msgspec.Raw) -> tuple[list[Service], list[Fault]]:
        decoded = self._decode(raw)
        service, faults = translate.service(decoded)
        if service is not None:
            self._not_served.pop(service.name, None)
            return [service], faults
        self._note(decoded, translate.not_for_this_proxy(decoded) or f"it is faulty: {'; '.join(map(str, faults))}")
        return [], faults

    def _note(self, raw: api_types.Service, reason: str) -> None:
        metadata = raw.metadata or api_types.ObjectMeta()
        self._not_served[ServiceName(metadata.namespace or "", metadata.name or "")] = reason
        while len(self._not_served) > MOST_NOT_SERVED:
            del self._not_served[next(iter(self._not_served))]

    def why_not_served(self, namespace: str, name: str) -> str:
        """Return why a Service is not served, as `KubernetesSource.why_not_served` does."""
        for known, reason in self._not_served.items():
            if known.name == name and namespace in ("", known.namespace):
                return reason
        return ""

    def replace(self, found: Iterable[Service]) -> None:
        self._sink.replace_services(SOURCE, found)

    def put(self, metadata: api_types.ObjectMeta, found: list[Service]) -> None:
        for service in found:
            self._sink.put_service(SOURCE, service)
        if not found:
            self._sink.remove_service(SOURCE, ServiceName(metadata.namespace or "", metadata.name or ""))

    def remove(self, metadata: api_types.ObjectMeta) -> None:
        name = ServiceName(metadata.namespace or "", metadata.name or "")
        self._not_served.pop(name, None)
        self._sink.remove_service(SOURCE, name)


class Slices(Resource[EndpointSlice]):
    """The resource of discovery.k8s.io/v1 EndpointSlices. Each object becomes at most one slice of the model."""

    name = "endpointslices"
    kind = "EndpointSlice"
    path = "/apis/discovery.k8s.io/v1/endpointslices"
    query: Mapping[str, str] = {"labelSelector": SELECTOR}

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._decode = msgspec.json.Decoder(api_types.EndpointSlice).decode

    def translate(self, raw: msgspec.Raw) -> tuple[list[EndpointSlice], list[Fault]]:
        endpoint_slice, faults = translate.endpoint_slice(self._decode(raw))
        return [endpoint_slice] if endpoint_slice is not None else [], faults

    def replace(self, found: Iterable[EndpointSlice]) -> None:
        self._sink.replace_slices(SOURCE, found)

    def put(self, metadata: api_types.ObjectMeta, found: list[EndpointSlice]) -> None:
        for endpoint_slice in found:
            self._sink.put_slice(SOURCE, endpoint_slice)
        if not found:
            self.remove(metadata)

    def remove(self, metadata: api_types.ObjectMeta) -> None:
        self._sink.remove_slice(SOURCE, SliceName(metadata.namespace or "", metadata.name or ""))


class Endpoints(Resource[EndpointSlice]):
    """The resource of v1 Endpoints, for servers without discovery.k8s.io/v1.

    One object becomes several slices. Their names are remembered, so that slices that a change no longer produces are
    removed.
    """

    name = "endpoints"
    kind = "Endpoints"
    path = "/api/v1/endpoints"
    query: Mapping[str, str] = {"labelSelector": SELECTOR}

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._decode = msgspec.json.Decoder(api_types.Endpoints).decode
        self._slices: dict[ServiceName, frozenset[SliceName]] = {}

    def translate(self, raw: msgspec.Raw) -> tuple[list[EndpointSlice], list[Fault]]:
        return translate.endpoints(self._decode(raw))

    def replace(self, found: Iterable[EndpointSlice]) -> None:
        slices = list(found)
        names: dict[ServiceName, set[SliceName]] = {}
        for endpoint_slice in slices:
            names.setdefault(endpoint_slice.service, set()).add(endpoint_slice.name)
        self._slices = {service: frozenset(of_service) for service, of_service in names.items()}
        self._sink.replace_slices(SOURCE, slices)

    def put(self, metadata: api_types.ObjectMeta, found: list[EndpointSlice]) -> None:
        service = ServiceName(metadata.namespace or "", metadata.name or "")
        before = self._slices.pop(service, frozenset())
        now = frozenset(endpoint_slice.name for endpoint_slice in found)
        if now:
            self._slices[service] = now
        for endpoint_slice in found:
            self._sink.put_slice(SOURCE, endpoint_slice)
        for name in before - now:
            self._sink.remove_slice(SOURCE, name)

    def remove(self, metadata: api_types.ObjectMeta) -> None:
        self.put(metadata, [])


class OwnNode(Resource[Node]):
    """The resource of the v1 Node on which this proxy runs.

    The Node is listed and watched, and not read once, so that its creation, changes and deletion are noticed.
    kube-proxy's role allows get, list and watch.
    """

    name = "nodes"
    kind = "Node"
    path = "/api/v1/nodes"
    query: Mapping[str, str]

    def __init__(self, sink: NodeSink, node_name: str) -> None:
        self._sink = sink
        self._decode = msgspec.json.Decoder(api_types.Node).decode
        self._node_name = node_name
        self._logged = ""
        self.query = {"fieldSelector": f"metadata.name={node_name}"}

    def translate(self, raw: msgspec.Raw) -> tuple[list[Node], list[Fault]]:
        node, faults = translate.node(self._decode(raw))
        return [node] if node is not None else [], faults

    def replace(self, found: Iterable[Node]) -> None:
        node = next(iter(found), None)
        self._log(node)
        self._sink.set_node(node)

    def put(self, metadata: api_types.ObjectMeta, found: list[Node]) -> None:
        self.replace(found)

    def remove(self, metadata: api_types.ObjectMeta) -> None:
        self.replace(())

    def _log(self, node: Node | None) -> None:
        """Log a change of the Node that changes the result of /healthz."""
        standing = _ABSENT if node is None else "" if node.eligible else _LEAVING
        if standing == self._logged:
            return
        self._logged = standing
        if standing == _ABSENT:
            log.warning(
                _ABSENT,
                source=SOURCE,
                node=self._node_name,
                healthz=503,
                hint="Services are still served; if the node has another name, set --hostname-override",
            )
        elif standing == _LEAVING:
            log.info(_LEAVING, source=SOURCE, node=self._node_name, healthz=503)
        else:
            log.info("this node is eligible again", source=SOURCE, node=self._node_name)


_ABSENT = "API server has no such node"
_LEAVING = "this node is about to be deleted"
