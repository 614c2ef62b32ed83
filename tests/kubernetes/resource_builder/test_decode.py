"""Documents to objects: YAML as kubectl reads it, lists, identity, places of faults."""

from __future__ import annotations

import json

import pytest

from kubeproxy.kubernetes.manifests.go_yaml import resolve
from kubeproxy.kubernetes.resource_builder import decode
from kubeproxy.kubernetes.resource_builder.errors import ObjectError
from kubeproxy.kubernetes.resource_builder.manifest_object import ResourceObject
from kubeproxy.kubernetes.resource_builder.stream import Splitter


def found(text: str) -> list[ResourceObject | ObjectError]:
    splitter = Splitter("it")
    documents = [*splitter.feed(text.encode()), *splitter.end()]
    return [each for document in documents for each, _ in decode.objects(document, "it")]


def data(text: str) -> dict[str, object]:
    (only,) = found(f"apiVersion: v1\nkind: X\nmetadata: {{name: x}}\n{text}")
    assert isinstance(only, ResourceObject), only
    return only.data


def fault(text: str) -> str:
    (only,) = found(text)
    assert isinstance(only, ObjectError)
    return str(only)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", True), ("No", False), ("on", True), ("OFF", False), ("y", True), ("N", False), ("yeS", "yeS"),
        ("~", None), ("Null", None), ("017", 15), ("0o17", 15), ("0x1F", 31), ("-0b11", -3), ("1_000", 1000),
        ("08", 8), ("1e3", 1000), (".5", 0.5), ("5.", 5), ("-1.50", -1.5), ("+7", 7), ("1.2.3", "1.2.3"),
        ("0x", "0x"), ("1:30", "1:30"), ("2020-01-01", "2020-01-01"), ("<<", "<<"), ("=", "="), ("-", "-"),
        ("18446744073709551616", 18446744073709551616.0), ("9223372036854775807", 9223372036854775807), ("٣", "٣"),
    ],
)  # fmt: skip
def test_plain_scalars_mean_what_they_mean_to_kubectl(text: str, value: object) -> None:
    assert resolve(text) == value
    assert type(resolve(text)) is type(value)


def test_keys_become_texts_and_merges_and_anchors_are_resolved() -> None:
    assert data("a: {1: x, yes: x, 1.5: x, 0x10: x}")["a"] == {"1": "x", "true": "x", "1.5": "x", "16": "x"}
    assert data("a: &a {b: 1, c: 2}\nd: {<<: *a, c: 3}")["d"] == {"b": 1, "c": 3}
    assert data("a: !!binary aGk=\nb: !!str 1\nc: !foo x") | {"metadata": 0} == {
        "apiVersion": "v1", "kind": "X", "metadata": 0, "a": "hi", "b": "1", "c": "x",
    }  # fmt: skip


def test_numbers_of_json_are_kept_as_kubectl_keeps_them() -> None:
    text = '{"apiVersion":"v1","kind":"X","metadata":{"name":"x"},"a":[3.0,1e3,0.5,123456789012345678901234567890]}'
    (only,) = found(text)
    assert isinstance(only, ResourceObject)
    assert only.data["a"] == [3, 1000, 0.5, 1.2345678901234568e29]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [", "error parsing it: "),
        ("a", 'unable to decode "it": found the text "a"; allowed: an object with apiVersion and kind'),
        ("kind: X", "Object 'apiVersion' is missing in '{\"kind\":\"X\"}' (document 1, line 1)"),
        ("apiVersion: v1", "Object 'Kind' is missing"),
        ("apiVersion: 1\nkind: X", "apiVersion: found the number 1; allowed: a text"),
        ("# c\n\napiVersion: v1\nkind: X\nmetadata:\n  name: 5", "metadata.name: found the number 5; allowed: a text; "
         "put it in quotes (document 1, line 6)"),
        ("apiVersion: v1\nkind: X\nmetadata: {annotations: [a]}", "metadata.annotations: found a list; allowed: "),
        ("apiVersion: v1\nkind: X\nmetadata: {labels: {a.b/c: on}}",
         'metadata.labels["a.b/c"]: found the truth value true; allowed: a text; put it in quotes'),
        ("apiVersion: v1\nkind: X\nmetadata: 3", "metadata: found the number 3; allowed: a mapping"),
        ("a: .inf", "the number .inf, which JSON cannot hold"),
        ("? [a]\n: b", "a key that is not a text"),
        ("a: *nothing", "no anchor 'nothing' before this alias"),
        ("a: " + "[" * 200, "nested deeper than 100 levels"),
        ('{"a":' + "[" * 200 + "]" * 200 + "}", "nested deeper than 100 levels"),
        ('{"a": 1e999}', "the number 1e999 is too large"),
        ("\0", "control characters are not allowed"),
    ],
)  # fmt: skip
def test_faults_are_reported_with_their_place(text: str, expected: str) -> None:
    assert expected in fault(text)


def test_duplicate_keys_are_reported_and_the_last_counts() -> None:
    splitter = Splitter("it")
    for text in ("apiVersion: v1\nkind: X\na: 1\na: 2\n", '{"apiVersion": "v1", "kind": "X", "a": 1, "a": 2}'):
        document = next(iter(splitter.feed(f"{text}\n---\n".encode())))
        ((only, duplicates),) = decode.objects(document, "it")
        assert isinstance(only, ResourceObject)
        assert only.data["a"] == 2
        assert duplicates[0].endswith('key "a" is there twice')


def test_lists_that_say_nothing_are_no_objects_and_lists_too_deep_are_refused() -> None:
    assert found("apiVersion: v1\nkind: List\nitems: []\n---\napiVersion: v1\nkind: List\nitems:\n") == []
    deep = '{"apiVersion":"v1","kind":"List","items":[' * 8 + "]}" * 8
    (only,) = found(deep)
    assert "lists in lists; allowed: 5 deep" in str(only)


@pytest.mark.parametrize("large", [1, 10_000])
def test_a_resource_whose_kind_ends_like_a_list_is_an_object(large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "LARGE", large)
    yaml = "apiVersion: acme.io/v1\nkind: AllowList\nmetadata:\n  name: a\nspec:\n  cidrs: [10.0.0.0/8]\n"
    for text in (yaml, '{"apiVersion": "acme.io/v1", "kind": "AllowList", "metadata": {"name": "a"}}'):
        (only,) = found(text)
        assert isinstance(only, ResourceObject)
        assert (only.kind, only.name) == ("AllowList", "a")


@pytest.mark.parametrize("is_json", [True, False])
def test_a_long_list_is_read_item_by_item(is_json: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "LARGE", 10)
    items = [{"metadata": {"name": f"x-{number}"}, "data": {"k": "v"}} for number in range(50)]
    if is_json:
        text = json.dumps({"kind": "ConfigMapList", "apiVersion": "v1", "items": items})
    else:
        lines = [f"- metadata:\n    name: {item['metadata']['name']}\n  data: {{k: v}}\n" for item in items]
        text = "apiVersion: v1\nkind: ConfigMapList\nitems:\n" + "".join([*lines[:20], "- [broken\n", *lines[20:]])
    objects = found(text)
    names = [each.name for each in objects if isinstance(each, ResourceObject)]
    assert names == [item["metadata"]["name"] for item in items]
    assert {each.kind for each in objects if isinstance(each, ResourceObject)} == {"ConfigMap"}
    wrong = [str(each) for each in objects if isinstance(each, ObjectError)]
    assert (len(wrong) == 0) is is_json
    if wrong:
        assert "items[20]" in wrong[0]
        assert "line 6" in wrong[0]


def test_aliases_cannot_grow_without_bound() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{number}: &a{number} [{', '.join([f'*a{number - 1}'] * 10)}]" for number in range(1, 9)]
    assert "aliases expand" in fault("\n".join(lines))
