"""Decoding of objects: absent, null and unknown fields, strict types."""

from __future__ import annotations

import msgspec
import pytest

from kubeproxy.kubernetes import api_types
from tests.support.recordings import recording


@pytest.mark.parametrize(
    ("name", "kind", "count"),
    [
        ("services-1.36", api_types.ObjectList[api_types.Service], 30),
        ("services-1.20", api_types.ObjectList[api_types.Service], 22),
        ("endpointslices-1.36", api_types.ObjectList[api_types.EndpointSlice], 22),
        ("endpoints-1.36", api_types.ObjectList[api_types.Endpoints], 9),
        ("endpoints-1.20", api_types.ObjectList[api_types.Endpoints], 9),
    ],
)
def test_recorded_lists_decode(name: str, kind: type[api_types.ObjectList[api_types.Service]], count: int) -> None:
    decoded = msgspec.json.decode(recording(name), type=kind)
    assert decoded.metadata is not None
    assert decoded.metadata.resource_version
    assert len(decoded.items or []) == count


@pytest.mark.parametrize(
    "kind",
    [
        api_types.Service,
        api_types.EndpointSlice,
        api_types.Endpoints,
        api_types.Node,
        api_types.ObjectList[api_types.Service],
        api_types.Status,
    ],
)
def test_everything_may_be_absent(kind: type[api_types.Wire]) -> None:
    assert msgspec.json.decode(b"{}", type=kind) == kind()


@pytest.mark.parametrize("kind", [api_types.Service, api_types.EndpointSlice, api_types.Endpoints, api_types.Node])
def test_everything_may_be_null(kind: type[api_types.Wire]) -> None:
    fields = msgspec.structs.fields(kind)
    nothing = msgspec.json.encode({field.encode_name: None for field in fields})
    assert msgspec.json.decode(nothing, type=kind) == kind()


def test_a_null_list_is_accepted() -> None:
    raw = msgspec.json.decode(b'{"addressType":"IPv4","endpoints":null,"ports":null}', type=api_types.EndpointSlice)
    assert raw.endpoints is None
    assert raw.ports is None


def test_unknown_fields_are_skipped() -> None:
    text = b'{"metadata":{"name":"a","managedFields":[{"f:x":{}}],"labels":{"app":"x"}},"spec":{"selector":{"a":"b"}}}'
    raw = msgspec.json.decode(text, type=api_types.Service)
    assert raw.metadata == api_types.ObjectMeta(name="a", labels=api_types.Labels())
    assert raw.spec == api_types.ServiceSpec()


def test_api_names_that_are_not_camel_case() -> None:
    text = (
        b'{"spec":{"clusterIP":"10.0.0.1","clusterIPs":["10.0.0.1"],"externalIPs":["192.0.2.1"],'
        b'"sessionAffinityConfig":{"clientIP":{"timeoutSeconds":5}}},'
        b'"metadata":{"labels":{"service.kubernetes.io/service-proxy-name":"x"}}}'
    )
    raw = msgspec.json.decode(text, type=api_types.Service)
    assert raw.spec is not None
    assert (raw.spec.cluster_ip, raw.spec.cluster_ips, raw.spec.external_ips) == (
        "10.0.0.1",
        ["10.0.0.1"],
        ["192.0.2.1"],
    )
    assert raw.spec.session_affinity_config == api_types.SessionAffinityConfig(
        client_ip=api_types.ClientIPConfig(timeout_seconds=5)
    )
    assert raw.metadata is not None
    assert raw.metadata.labels == api_types.Labels(service_proxy_name="x")


def test_wrong_types_are_refused_with_their_path() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"\$\.spec\.ports\[1\]\.port"):
        msgspec.json.decode(b'{"spec":{"ports":[{"port":1},{"port":"http"}]}}', type=api_types.Service)


def test_a_watch_event_keeps_its_object_undecoded() -> None:
    line = b'{"type":"MODIFIED","object":{"metadata":{"name":"a"}}}\n'
    event = msgspec.json.decode(line, type=api_types.WatchEvent)
    assert event.type == "MODIFIED"
    assert msgspec.json.decode(event.object, type=api_types.Service).metadata == api_types.ObjectMeta(name="a")


def test_a_hollow_bookmark() -> None:
    text = b'{"kind":"EndpointSlice","metadata":{"resourceVersion":"418"},"addressType":"","endpoints":null}'
    assert msgspec.json.decode(text, type=api_types.Hollow).metadata == api_types.ObjectMeta(resource_version="418")
