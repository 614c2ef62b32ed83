"""The cache of translated objects, keyed by their text."""

from __future__ import annotations

import msgspec
import pytest

from kubeproxy.kubernetes import api_types
from kubeproxy.kubernetes.informer.decode_cache import DecodeCache
from kubeproxy.kubernetes.invalid_field import Fault
from kubeproxy.model import EndpointSlice, SliceName
from kubeproxy.sources import translate
from tests.kubernetes.harness import connected, watching
from tests.support.apiserver import ApiServer, Cluster
from tests.support.apiserver.generate import endpoint_slice, fill
from tests.support.waiting import until

OLD, NEW = msgspec.Raw(b'{"a":1}'), msgspec.Raw(b'{"a":2}')


def test_the_same_text_gives_the_same_translation() -> None:
    recall: DecodeCache[str] = DecodeCache()
    found = ["web"]
    assert recall.meaning("default/web", OLD) is None
    recall.note("default/web", OLD, found)
    assert recall.meaning("default/web", msgspec.Raw(bytes(OLD))) is found
    assert recall.meaning("default/other", OLD) is None


def test_a_changed_text_is_not_in_the_cache() -> None:
    recall: DecodeCache[str] = DecodeCache()
    recall.note("default/web", OLD, ["old"])
    assert recall.meaning("default/web", NEW) is None
    recall.note("default/web", NEW, ["new"])
    assert recall.meaning("default/web", OLD) is None
    assert recall.meaning("default/web", NEW) == ["new"]


def test_an_empty_translation_is_cached() -> None:
    recall: DecodeCache[str] = DecodeCache()
    recall.note("default/headless", OLD, [])
    assert recall.meaning("default/headless", OLD) == []


def test_removed_objects_leave_the_cache() -> None:
    recall: DecodeCache[str] = DecodeCache()
    for name in ("a", "b", "c"):
        recall.note(name, OLD, [name])
    recall.forget("a")
    recall.forget("unknown")
    recall.keep({"b", "d"})
    assert len(recall) == 1
    assert recall.meaning("b", OLD) == ["b"]
    assert recall.meaning("c", OLD) is None


async def test_a_new_list_decodes_only_changed_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(version=100)
    fill(cluster, services=20, endpoints_each=2)
    decoded = []
    real = translate.endpoint_slice

    def counted(raw: api_types.EndpointSlice) -> tuple[EndpointSlice | None, list[Fault]]:
        decoded.append(raw)
        return real(raw)

    monkeypatch.setattr(translate, "endpoint_slice", counted)
    server = ApiServer(cluster)
    async with server, connected(server.url) as client, watching(client) as (_, sink):
        await until(lambda: sink.complete)
        assert len(decoded) == 20
        standing = dict(sink.slices)
        await server.stop()
        decoded.clear()
        cluster.put("endpointslices", endpoint_slice(7, ["10.0.9.9"]))
        cluster.delete("endpointslices", "demo", "service-8-a")
        cluster.expire()
        await server.start()
        await until(lambda: len(sink.slices) == 19)
        assert len(decoded) == 1
        changed = SliceName("demo", "service-7-a")
        assert sink.slices[changed] != standing[changed]
        assert all(sink.slices[name] is standing[name] for name in sink.slices.keys() - {changed})
