"""Equality and hashes of pod templates."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kubeproxy.controllers import template


def _raw(value: dict[str, Any]) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def _with(**spec: Any) -> msgspec.Raw:
    return _raw({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "a", **spec}]}})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"image": "x"}, {"image": "x", "env": []}),
        ({"image": "x"}, {"image": "x", "command": None}),
        ({"image": "x"}, {"image": "x", "resources": {}}),
        ({"resources": {"limits": {"cpu": "1"}}}, {"resources": {"limits": {"cpu": "1000m"}, "requests": {}}}),
        ({"resources": {"limits": {"memory": "1Gi"}}}, {"resources": {"limits": {"memory": "1024Mi"}}}),
        ({"resources": {"limits": {"memory": "1e3"}}}, {"resources": {"limits": {"memory": "1k"}}}),
        ({"resources": {"limits": {"cpu": 1}}}, {"resources": {"limits": {"cpu": "1"}}}),
    ],
)
def test_the_same_in_other_words(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert template.equal(_with(**one), _with(**other))
    assert template.template_hash(_with(**one), 1) == template.template_hash(_with(**other), 1)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"image": "x"}, {"image": "y"}),
        ({"image": "x"}, {"image": "x", "tty": True}),
        ({"args": ["a", "b"]}, {"args": ["b", "a"]}),
        ({"resources": {"limits": {"cpu": "1"}}}, {"resources": {"limits": {"cpu": "1M"}}}),
        ({"value": "1000m"}, {"value": "1"}),
        ({"volume": {}}, {"volume": {"emptyDir": {}}}),
        ({"args": [""]}, {"args": []}),
    ],
)
def test_not_the_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert not template.equal(_with(**one), _with(**other))
    assert template.template_hash(_with(**one), None) != template.template_hash(_with(**other), None)


def test_the_hash_label_does_not_count() -> None:
    plain = _raw({"metadata": {"labels": {"app": "web"}}, "spec": {}})
    labelled = _raw(template.with_hash(plain, "abc"))
    assert template.equal(plain, labelled)
    assert template.labels_of(labelled) == {"app": "web", "pod-template-hash": "abc"}
    assert template.without_hash(labelled) == {"metadata": {"labels": {"app": "web"}}, "spec": {}}
    only_hash = _raw({"metadata": {"labels": {"pod-template-hash": "abc"}}, "spec": {}})
    assert template.equal(_raw({"metadata": {"creationTimestamp": None}, "spec": {}}), only_hash)


def test_the_hash_is_short_safe_and_differs_by_collision() -> None:
    raw = _with(image="x")
    seen = {template.template_hash(raw, count) for count in (None, 0, 1, 2, 3)}
    assert len(seen) == 5
    for text in seen:
        assert 1 <= len(text) <= 10
        assert set(text) <= set("bcdfghjklmnpqrstvwxz2456789")


def test_the_hash_is_the_same_in_every_version() -> None:
    """A change would not roll anything out, but name the next ReplicaSet of a collision differently."""
    assert template.template_hash(_with(image="x"), None) == "7bfbc75fdd"


def test_unknown_fields_are_copied() -> None:
    raw = _raw({"metadata": {"labels": {"a": "b"}, "future": [1]}, "spec": {"invented": {"x": None}}})
    copied = template.with_hash(raw, "h")
    assert copied["spec"] == {"invented": {"x": None}}
    assert copied["metadata"]["future"] == [1]
