"""Reading of texts: formats, lists, faults, and the objects beside them."""

from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.sources.manifests.documents import Place, Reading, read
from kubeproxy.sources.manifests.objects import Entry, ObjectKind, ObjectName, Terms
from tests.kubernetes.manifests.texts import endpoint_slice, join, service
from tests.support.recordings import recording

ANY = Terms()


def entries(text: str | bytes, namespaces: Terms = ANY) -> list[tuple[Place, Entry]]:
    return list(read(text.encode() if isinstance(text, str) else text, namespaces).entries)


def names(text: str | bytes) -> list[str]:
    return [entry.name.name if entry.name else "?" for _, entry in entries(text)]


def faults(text: str | bytes, namespaces: Terms = ANY) -> list[str]:
    return [
        f"{place.document} {place.path(fault.path)}: {fault.message}"
        for place, entry in entries(text, namespaces)
        for fault in entry.faults
    ]


def test_several_documents() -> None:
    assert names(join(service("a"), endpoint_slice("a", "10.1.0.1"), service("b"))) == ["a", "a", "b"]
    assert [place.document for place, _ in entries(join(service("a"), service("b")))] == [1, 2]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "# nothing\n",
        "---\n",
        "---\n---\n--- \n# x\n---",
        "\ufeff",
        "%YAML 1.2\n---\n",
        "null\n",
        "...\n",
        '{"apiVersion": "v1", "kind": "List", "items": null}',
        "apiVersion: v1\nkind: List\nitems:\n",
        "apiVersion: v1\nkind: List\nitems: []\n",
        "apiVersion: v1\nkind: List\n",
    ],
)
def test_an_empty_text_has_no_objects(text: str) -> None:
    assert entries(text) == []


@pytest.mark.parametrize("start", ["", "---\n", "# licence\n---\n", "%YAML 1.2\n---\n", "\ufeff", "\n\n---\n---\n"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_empty_documents_do_not_count(start: str, newline: str) -> None:
    text = (start + join(service("a"), "# nothing\n", service("b"))).replace("\n", newline)
    assert [(place.document, entry.name and entry.name.name) for place, entry in entries(text)] == [(1, "a"), (2, "b")]


def test_a_separator_in_a_text_block_is_text() -> None:
    text = service("a") + "status:\n  note: |\n    ---\n    x\n  more: a---b\n"
    assert names(text) == ["a"]


def test_yaml_end_marks_separate_documents() -> None:
    assert names(service("a") + "...\n" + "---\n" + service("b")) == ["a", "b"]


def as_json(text: str) -> dict[str, object]:
    loaded = yaml.safe_load(text)
    assert isinstance(loaded, dict)
    return loaded


def test_json_equals_yaml() -> None:
    for text in (service("a"), endpoint_slice("a", "10.1.0.1", "10.1.0.2")):
        assert [e for _, e in entries(json.dumps(as_json(text)))] == [e for _, e in entries(text)]
        assert [e for _, e in entries(json.dumps(as_json(text), indent=2))] == [e for _, e in entries(text)]


def test_json_values_one_behind_the_other() -> None:
    first, second, third = (json.dumps(yaml.safe_load(service(name))) for name in ("a", "b", "c"))
    assert names(f"{first}{second}\n\n{third}\n---\n{service('d')}") == ["a", "b", "c", "d"]
    assert names(f"{first} and more") == ["?"]
    broken = faults(f'{first}\n{{"kind": }}\n')
    assert broken[0].startswith("1 line ")


def test_utf_16_with_a_byte_order_mark() -> None:
    for encoding in ("utf-16", "utf-8-sig"):
        assert names(f"{service('a')}---\n{service('b')}".encode(encoding)) == ["a", "b"]
    assert faults(b"\xff\xfea")[0].endswith("byte 0xff is not UTF-8")


def test_json_documents_between_separators() -> None:
    assert names(join(json.dumps(as_json(service("a"))) + "\n", json.dumps(as_json(service("b"))))) == ["a", "b"]


def lists() -> list[str]:
    objects = [as_json(service("a")), as_json(endpoint_slice("a", "10.1.0.1")), as_json(service("b"))]
    whole = {"apiVersion": "v1", "kind": "List", "metadata": {}, "items": objects}
    block = yaml.safe_dump(whole, default_flow_style=False)
    return [
        json.dumps(whole),
        json.dumps(whole, indent=1),
        yaml.safe_dump(whole, default_flow_style=True),
        block,
        "# a comment\n---\n" + block,
        block.replace("items:\n- ", "items: # here\n\n# and here\n- ").replace("\n", "\r\n"),
        "apiVersion: v1\nkind: List\nitems:\n"
        + "".join("  - " + yaml.safe_dump(item).replace("\n", "\n    ").rstrip() + "\n" for item in objects),
        "items:\n"
        + "".join("-\n  " + yaml.safe_dump(item).replace("\n", "\n  ").rstrip() + "\n" for item in objects)
        + "kind: List\napiVersion: v1\n",
    ]


@pytest.mark.parametrize("text", lists())
def test_lists_of_every_style_are_flattened(text: str) -> None:
    single = [
        entry for one in (service("a"), endpoint_slice("a", "10.1.0.1"), service("b")) for _, entry in entries(one)
    ]
    assert entries(text) == [(Place(1, f"items[{index}]"), entry) for index, entry in enumerate(single)]


def test_aliases_between_the_items_of_a_list() -> None:
    text = (
        "apiVersion: v1\nkind: List\nitems:\n"
        "- {apiVersion: v1, kind: Service, metadata: {name: a}, spec: {clusterIP: 10.0.0.1, ports: &x [{port: 80}]}}\n"
        "- {apiVersion: v1, kind: Service, metadata: {name: b}, spec: {clusterIP: 10.0.0.2, ports: *x}}\n"
    )
    assert names(text) == ["a", "b"]
    assert faults(text) == []


@pytest.mark.parametrize(
    ("name", "count"),
    [("services-1.36", 30), ("endpointslices-1.36", 22), ("endpoints-1.36", 9), ("services-1.20", 22)],
)
def test_recorded_lists_with_items_without_a_kind(name: str, count: int) -> None:
    """As JSON, and as YAML in kubectl's style."""
    found = entries(recording(name))
    assert len(found) == count
    assert [str(fault) for _, entry in found for fault in entry.faults if not fault.unsupported] == []
    assert entries(yaml.safe_dump(json.loads(recording(name)), default_flow_style=False)) == found


def test_lists_in_lists() -> None:
    inner = {"apiVersion": "v1", "kind": "List", "items": [as_json(service("a"))]}
    outer = {"apiVersion": "v1", "kind": "List", "items": [None, inner, as_json(service("b"))]}
    for text in (json.dumps(outer), yaml.safe_dump(outer, default_flow_style=False)):
        assert [(place.item, entry.name and entry.name.name) for place, entry in entries(text)] == [
            ("items[1].items[0]", "a"),
            ("items[2]", "b"),
        ]
    deep: object = as_json(service("a"))
    for _ in range(7):
        deep = {"apiVersion": "v1", "kind": "List", "items": [deep]}
    assert "lists in lists" in faults(json.dumps(deep))[0]


def test_other_kinds_are_skipped() -> None:
    text = join("apiVersion: apps/v1\nkind: Deployment\nspec: {replicas: [1]}\n", service("a"))
    (_, skipped), (_, taken) = entries(text)
    assert (skipped.skipped, skipped.good, skipped.broken) == ("apps/v1 Deployment", True, False)
    assert taken.useful


def test_namespaces() -> None:
    def namespace(text: str, namespaces: Terms) -> str | None:
        ((_, entry),) = entries(text, namespaces)
        return entry.service.name.namespace if entry.service else None

    assert namespace(service("a"), Terms()) == "default"
    assert namespace(service("a"), Terms(default_namespace="web")) == "web"
    assert namespace(service("a", namespace="x"), Terms(default_namespace="web")) == "x"
    assert namespace(service("a"), Terms(default_namespace="web", enforced_namespace="only")) == "only"
    assert namespace(service("a", namespace="only"), Terms(enforced_namespace="only")) == "only"
    assert faults(service("a", namespace="x"), Terms(enforced_namespace="only")) == [
        "1 metadata.namespace: 'x'; allowed: only 'only' here"
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (service("b", port="http"), "spec.ports[0].port: 'http'; allowed: a number"),
        (service("b", port="'80'"), "spec.ports[0].port: '80'; allowed: a number"),
        (service("b", port="80.5"), "spec.ports[0].port: '80.5'; allowed: a number"),
        (service("b", port="true"), "spec.ports[0].port: True; allowed: a number"),
        (service("b", port="[80]"), "spec.ports[0].port: a list; allowed: a number"),
        (service("b", port=0), "spec.ports[0].port: 0; allowed: 1 to 65535"),
        (service("b", port=65536), "spec.ports[0].port: 65536; allowed: 1 to 65535"),
        (service("b", address="10.0.0.300"), "spec.clusterIP: '10.0.0.300' is no plain IP address"),
        (service("b", address="{}"), "spec.clusterIP: a mapping; allowed: a text"),
        (service("b" * 253), "metadata.name: '"),
        (
            "apiVersion: v1\nkind: Service\nmetadata: {name: b}\nspec: {ports: {}}\n",
            "spec.ports: a mapping; allowed: a list",
        ),
        ("apiVersion: v1\nkind: Service\nmetadata: {name: b}\nspec: 3\n", "spec: 3; allowed: a mapping"),
        ("apiVersion: v1\nkind: Service\nmetadata: [b]\n", "metadata: a list; allowed: a mapping"),
        ("apiVersion: v1\nkind: Service\nmetadata: {name: 8}\n", "metadata.name: 8; allowed: a text"),
        ("apiVersion: v1\nkind: Service\n", "metadata.name: missing; required"),
        ("apiVersion: v1\nmetadata: {name: b}\n", "kind: missing; allowed: Service"),
        ("kind: Service\nmetadata: {name: b}\n", "apiVersion: missing; allowed: Service"),
        ("apiVersion: v1\nkind: [Service]\n", "kind: a list; allowed: a text"),
        ("apiVersion: v2\nkind: Service\nmetadata: {name: b}\n", "apiVersion: 'v2' for Service; allowed: v1"),
        (
            "apiVersion: discovery.k8s.io/v1beta1\nkind: EndpointSlice\nmetadata: {name: b}\n",
            "apiVersion: 'discovery.k8s.io/v1beta1' for EndpointSlice; allowed: discovery.k8s.io/v1",
        ),
        ("apiVersion: v2\nkind: List\nitems: [1]\n", "apiVersion: 'v2' for List; allowed: v1"),
        ("apiVersion: v2\nkind: List\nitems:\n- 1\n", "apiVersion: 'v2' for List; allowed: v1"),
        ("apiVersion: v1\nkind: List\nitems: {}\n", "items: a mapping; allowed: a list"),
        ("apiVersion: v1\nkind: List\nitems:\n- 7\n", "items[0].document: 7; allowed: a mapping"),
        ("just text\n", "document: 'just text'; allowed: a mapping"),
        ("[1, 2]\n", "document: a list; allowed: a mapping"),
        ("a: [1\n", "line 12: "),
        ("a: b: c\n", "line 12: mapping values are not allowed"),
        ("a: 1\n\tb: 2\n", "line 13: "),
        ("a: 1\nb: 2\na: 3\n", "line 14: duplicate key 'a'"),
        ("a: *nowhere\n", "line 12: no anchor 'nowhere' before this alias"),
        ("a: &a [*a]\n", "line 12: no anchor 'a' before this alias"),
        ("a: !!python/object:os.system x\n", "line 12: tag "),
        ("? [a]\n: b\n", "line 12: a key that is not a text"),
        ("a: {<<: 3}\n", "line 12: only mappings can be merged"),
        ('{"apiVersion": "v1", "kind": "Service",\n "metadata": ]}\n', "line 13: "),
        ('{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "b"}\n', "line "),
        ("x\x00y\n", "line 12: "),
        ("[" * 100_000 + "\n", "line 12: nested deeper than 100 levels"),
        ("{a: " * 100_000 + "\n", "line 12: nested deeper than 100 levels"),
        ("- " * 1000 + "\n", "line 12: nested deeper than 100 levels"),
        ('{"a":' * 100_000 + "\n", "line 12: nested deeper than 100 levels"),
        ("9" * 5000 + "\n", "document: '9999"),
    ],
)
def test_a_faulty_document_does_not_affect_the_others(text: str, expected: str) -> None:
    """The faulty document is the second of three. The first has ten lines with its separator."""
    manifest = join(service("a") + "status: {}\n" * 1 + "x: 1\ny: 2\n", text, service("c"))
    (first, *middle, last) = entries(manifest)
    assert first[1].useful
    assert last[1].useful
    assert last[0].document == 3
    texts = [f"{place.path(fault.path)}: {fault.message}" for place, entry in middle for fault in entry.faults]
    assert len(texts) == 1
    assert texts[0].startswith(expected)
    assert len(texts[0]) < 400


def test_bytes_that_are_not_utf_8_are_a_fault() -> None:
    manifest = join(service("a"), "x: 1\ny: \xff\n", service("c")).encode("latin-1")
    assert names(manifest) == ["a", "?", "c"]
    assert faults(manifest) == ["2 line 10: byte 0xff is not UTF-8"]


@pytest.mark.parametrize("form", ["[{}]", "{{<<: [{}]}}"])
def test_an_alias_bomb_is_refused(form: str) -> None:
    lines = ["a0: &a0 {x: 1}"]
    for level in range(1, 30):
        aliases = ", ".join([f"*a{level - 1}"] * 9)
        lines.append(f"a{level}: &a{level} {form.format(aliases)}")
    assert "aliases expand" in faults("\n".join(lines))[0]


def test_ordinary_aliases_and_merges() -> None:
    text = (
        "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nx: &port {name: http, port: 80, protocol: UDP}\n"
        "spec:\n  clusterIP: 10.0.0.1\n  ports:\n  - <<: *port\n    protocol: TCP\n"
    )
    ((_, entry),) = entries(text)
    assert entry.service is not None
    assert [(port.name, port.protocol, port.port) for port in entry.service.ports] == [("http", "TCP", 80)]


def test_plain_words_stay_text() -> None:
    """``no``, times and dates stay text."""
    text = endpoint_slice("a", "10.1.0.1").replace(
        "- addresses: [10.1.0.1]", "- {addresses: [10.1.0.1], zone: no, nodeName: 22:22}"
    )
    text = text.replace(
        "  labels:", "  annotations: {endpoints.kubernetes.io/last-change-trigger-time: 2026-11-20}\n  labels:"
    )
    ((_, entry),) = entries(text)
    assert entry.slices[0].trigger_time == "2026-11-20"
    assert (entry.slices[0].endpoints[0].zone, entry.slices[0].endpoints[0].node) == ("no", "22:22")


def test_a_partly_faulty_object_is_useful_but_not_good() -> None:
    ((_, entry),) = entries(endpoint_slice("a", "10.1.0.1", "fd00::1"))
    assert (entry.useful, entry.good, entry.broken) == (True, False, False)
    assert entry.name == ObjectName(ObjectKind.ENDPOINT_SLICE, "default", "a")


def test_sctp_is_no_fault_of_the_author() -> None:
    text = service("a") + "    name: x\n  - {name: y, port: 81, protocol: SCTP}\n"
    ((_, entry),) = entries(text)
    assert (entry.useful, entry.good) == (True, True)
    assert "SCTP is not served" in entry.faults[0].message


# Second readings


def test_unchanged_entries_are_the_same_objects() -> None:
    before = read(join(service("a"), service("b")).encode(), ANY)
    after = read(join("# moved\n" + service("a"), service("b", "10.0.0.9"), service("c")).encode(), ANY, before)
    assert after.entries[0][1] is before.entries[0][1]
    assert after.entries[1][1] != before.entries[1][1]
    assert [place.document for place, _ in after.entries] == [1, 2, 3]


@pytest.mark.parametrize("text", lists())
def test_a_second_reading_equals_the_first(text: str) -> None:
    before = read(text.encode(), ANY)
    again = read(text.encode(), ANY, before)
    assert again == before
    assert all(new is old for (_, new), (_, old) in zip(again.entries, before.entries, strict=True))


def test_equal_items_in_another_kind_of_list_are_read_again() -> None:
    item = "- metadata: {name: a}\n  spec: {clusterIP: 10.0.0.1, ports: [{port: 80}]}\n"
    before = read(f"kind: ServiceList\napiVersion: v1\nitems:\n{item}".encode(), ANY)
    after = read(f"kind: EndpointsList\napiVersion: v1\nitems:\n{item}".encode(), ANY, before)
    assert [entry.name.kind for _, entry in after.entries if entry.name] == [ObjectKind.ENDPOINTS]


def test_a_moved_broken_document_reports_its_new_line() -> None:
    before = read(join(service("a"), "a: [1\n").encode(), ANY)
    after = read(join("\n\n" + service("a"), "a: [1\n").encode(), ANY, before)
    assert [entry.faults[0].path for _, entry in (before.entries[1], after.entries[1])] == ["line 9", "line 11"]


# Arbitrary bytes


FRAGMENTS = [
    *(
        b"---\n",
        b"--- ",
        b"...\n",
        b"\n",
        b"\r\n",
        b"\t",
        b"  ",
        b"- ",
        b": ",
        b"# ",
        b"? ",
        b"|\n",
        b"!!",
        b"&x ",
        b"*x",
    ),
    *(b"{", b"}", b"[", b"]", b'"', b"'", b"<<: ", b"null", b"1e999", b"%TAG ! x\n", b"\x00", b"\xff", b"\xef\xbb\xbf"),
    *(b"apiVersion: v1\n", b"kind: Service\n", b"kind: List\n", b"items:\n", b"metadata: {name: a}\n", b"spec:\n"),
    *(
        b"  ports:\n",
        b"  - port: 80\n",
        b"endpoints: ",
        b'{"items":[',
        b'{"apiVersion":"v1","kind":"Service","metadata":',
    ),
    "\u2028\u0085".encode(),
]


@given(st.one_of(st.binary(max_size=300), st.lists(st.sampled_from(FRAGMENTS), max_size=25).map(b"".join)))
def test_no_bytes_raise_or_affect_other_documents(garbage: bytes) -> None:
    before, after = service("before").encode(), service("after").encode()
    found = read(before + b"\n---\n" + garbage + b"\n---\n" + after, ANY)
    good = [entry.name.name for _, entry in found.entries if entry.name is not None and entry.useful]
    assert good[0] == "before"
    assert good[-1] == "after"
    again = read(before + b"\n---\n" + garbage + b"\n---\n" + after, ANY, found)
    assert again.entries == found.entries


KEYS = [
    *("metadata", "name", "labels", "items", "kind", "spec", "clusterIP", "ports", "port", "status", "loadBalancer"),
    *("ingress", "ip", "addressType", "endpoints", "addresses", "conditions", "hints", "forZones", "subsets"),
]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=15,
)


@given(VALUES, st.sampled_from([*ObjectKind]), st.booleans())
def test_no_value_raises(value: object, kind: ObjectKind, as_yaml: bool) -> None:
    version = "discovery.k8s.io/v1" if kind is ObjectKind.ENDPOINT_SLICE else "v1"
    whole: dict[str, object] = {"addressType": "IPv4"}
    whole["metadata"] = {"name": "a", "labels": {"kubernetes.io/service-name": "a"}}
    whole |= value if isinstance(value, dict) else {"spec": value, "endpoints": value, "subsets": value}
    whole |= {"apiVersion": version, "kind": str(kind)}
    text = yaml.safe_dump(whole) if as_yaml else json.dumps(whole)
    assert len(entries(text)) == 1


def test_a_reading_is_empty_by_default() -> None:
    assert read(b"", ANY) == Reading()


RESTRICTED = "spec:\n  {field}: {value}\n  clusterIP: 10.96.0.1\n  ports: [{{port: 80}}]\n"
HEAD = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n"


@pytest.mark.parametrize(
    ("field", "value", "refused"),
    [
        ("loadBalancerSourceRange", "[10.0.0.0/8]", True),
        ("loadbalancersourceranges", "[10.0.0.0/8]", True),
        ("externalTraficPolicy", "Local", True),
        ("internaltrafficpolicy", "Local", True),
        ("sessionAfinity", "ClientIP", False),
        ("novelty", "1", False),
    ],
)
def test_a_mistyped_restriction_is_refused_and_another_unknown_field_is_a_warning(
    field: str, value: str, refused: bool
) -> None:
    text = HEAD + RESTRICTED.format(field=field, value=value)
    ((_, entry),) = entries(text)
    assert (entry.service is None) is refused
    assert [fault.path for fault in entry.faults] == [f"spec.{field}"] * refused
    assert [fault.path for fault in entry.warnings] == [f"spec.{field}"] * (not refused)
    ((_, entry),) = entries(text, Terms(strict=True))
    assert entry.service is None
    assert [fault.path for fault in entry.faults] == [f"spec.{field}"]


@pytest.mark.parametrize("mistake", ["condition: {ready: false}", "conditions: {redy: false}"])
def test_a_mistyped_condition_of_an_endpoint_is_refused(mistake: str) -> None:
    text = (
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n"
        "metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}\naddressType: IPv4\n"
        f"ports: [{{port: 80}}]\nendpoints: [{{addresses: [10.0.0.1], {mistake}}}]\n"
    )
    ((_, entry),) = entries(text)
    assert entry.slices == ()
    assert len(entry.faults) == 1
