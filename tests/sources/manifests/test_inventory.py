"""Merging of several manifests: last good versions, conflicts, differences."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kubeproxy.model import EndpointSlice, Service, ServiceName, SliceName
from kubeproxy.sources.manifests.documents import read
from kubeproxy.sources.manifests.inventory import Difference, Inventory
from kubeproxy.sources.manifests.objects import Terms
from tests.kubernetes.manifests.texts import endpoint_slice, join, service

PARTLY = service("a") + "    name: x\n  - {name: y, port: 0}\n"
"""One port of two is served."""


class Merged:
    """The objects that follow from the differences alone."""

    def __init__(self) -> None:
        self.inventory = Inventory()
        self.services: dict[ServiceName, Service] = {}
        self.slices: dict[SliceName, EndpointSlice] = {}

    def update(self, **texts: str | None) -> Difference:
        """New texts of manifests; None for a removed manifest."""
        readings = {name: None if text is None else read(text.encode(), Terms()) for name, text in texts.items()}
        difference = self.inventory.update(readings)
        for name in difference.removed_services:
            del self.services[name]
        for slice_name in difference.removed_slices:
            del self.slices[slice_name]
        self.services |= {service.name: service for service in difference.services}
        self.slices |= {endpoint_slice.name: endpoint_slice for endpoint_slice in difference.slices}
        assert self.services == {service.name: service for service in self.inventory.services()}
        assert self.slices == {endpoint_slice.name: endpoint_slice for endpoint_slice in self.inventory.slices()}
        return difference

    @property
    def addresses(self) -> dict[str, str]:
        """Services with their first cluster IP."""
        return {name.name: service.cluster_ips[0] for name, service in self.services.items()}

    @property
    def problems(self) -> list[str]:
        return [str(problem) for problem in self.inventory.problems()]


def test_new_changed_unchanged_and_removed_objects() -> None:
    merged = Merged()
    assert len(merged.update(m=join(service("a"), service("b"), endpoint_slice("a", "10.1.0.1")))) == 3
    assert len(merged.update(m=join(service("a"), service("b"), endpoint_slice("a", "10.1.0.1")))) == 0
    difference = merged.update(m=join(service("a", "10.0.0.9"), endpoint_slice("a", "10.1.0.1")))
    assert [service.name.name for service in difference.services] == ["a"]
    assert difference.removed_services == [ServiceName("default", "b")]
    assert len(difference) == 2
    assert len(merged.update(m=None)) == 2
    assert merged.services == {}
    assert merged.slices == {}


def test_a_faulty_document_keeps_its_last_good_version() -> None:
    merged = Merged()
    merged.update(m=join(service("a"), service("b")))
    merged.update(m=join(service("a", port="http"), service("b", "10.0.0.9"), service("c")))
    assert merged.addresses == {"a": "10.0.0.1", "b": "10.0.0.9", "c": "10.0.0.1"}
    assert merged.problems == [
        "m document 1: spec.ports[0].port: 'http'; allowed: a number; the last good version stays served"
    ]
    merged.update(m=join(service("a", "10.0.0.8"), service("b", "10.0.0.9")))
    assert merged.addresses == {"a": "10.0.0.8", "b": "10.0.0.9"}
    assert merged.problems == []


def test_the_valid_parts_of_a_new_faulty_object_are_served() -> None:
    merged = Merged()
    merged.update(m=PARTLY)
    assert [port.name for port in merged.services[ServiceName("default", "a")].ports] == ["x"]
    merged.update(m=PARTLY.replace("10.0.0.1", "10.0.0.2"))
    assert merged.addresses == {"a": "10.0.0.2"}
    merged.update(m=service("a", address="nowhere"))
    assert merged.addresses == {"a": "10.0.0.2"}


def test_a_partly_faulty_version_does_not_replace_a_good_one() -> None:
    merged = Merged()
    merged.update(m=service("a", "10.0.0.7"))
    merged.update(m=PARTLY)
    assert merged.addresses == {"a": "10.0.0.7"}


def test_a_version_that_an_api_server_accepts_replaces_a_good_one() -> None:
    merged = Merged()
    merged.update(m=service("a"))
    merged.update(m=service("a", "10.0.0.2") + "    name: x\n  - {name: y, port: 81, protocol: SCTP}\n")
    assert merged.addresses == {"a": "10.0.0.2"}
    assert "SCTP is not served" in merged.problems[0]


def test_a_service_that_becomes_headless_is_withdrawn() -> None:
    merged = Merged()
    merged.update(m=service("a"))
    merged.update(m=service("a", address="None"))
    assert merged.services == {}
    assert merged.problems == []
    merged.update(m=service("a", port=0))
    assert merged.services == {}
    merged.update(m=PARTLY)
    assert merged.addresses == {"a": "10.0.0.1"}


def test_while_a_document_is_broken_nothing_is_withdrawn() -> None:
    """The broken document may define the missing object."""
    merged = Merged()
    merged.update(m=join(service("a"), service("b")))
    merged.update(m=join(service("a", "10.0.0.9"), "kind: Service\nmeta data: [\n"))
    assert merged.addresses == {"a": "10.0.0.9", "b": "10.0.0.1"}
    merged.update(m="this is no manifest")
    assert merged.addresses == {"a": "10.0.0.9", "b": "10.0.0.1"}
    merged.update(m=service("a"))
    assert merged.addresses == {"a": "10.0.0.1"}


def test_an_empty_manifest_withdraws_its_objects() -> None:
    merged = Merged()
    merged.update(m=service("a"))
    merged.update(m="# nothing any more\n")
    assert merged.services == {}


def test_the_same_object_twice_in_a_manifest() -> None:
    merged = Merged()
    merged.update(m=join(service("b"), service("a"), service("a", "10.0.0.2")))
    assert merged.addresses == {"b": "10.0.0.1", "a": "10.0.0.1"}
    assert merged.problems == [
        "m document 3: metadata.name: Service default/a is already defined in document 2, which is served"
    ]


def test_the_same_object_in_two_manifests() -> None:
    merged = Merged()
    merged.update(one=join(service("x"), service("a", "10.0.0.1")))
    assert len(merged.update(two=service("a", "10.0.0.2"))) == 0
    assert merged.problems == [
        "two document 1: metadata.name: Service default/a is already defined in one document 2, which is served"
    ]
    assert len(merged.update(two=service("a", "10.0.0.3"))) == 0
    difference = merged.update(one=service("x"))
    assert [service.cluster_ips for service in difference.services] == [("10.0.0.3",)]
    assert difference.removed_services == []
    assert merged.problems == []
    merged.update(one=join(service("x"), service("a", "10.0.0.1")))
    assert merged.addresses["a"] == "10.0.0.3"
    assert merged.problems[0].startswith("one document 2")


def test_an_object_that_moves_is_not_withdrawn_in_between() -> None:
    merged = Merged()
    merged.update(one=join(service("a"), endpoint_slice("a", "10.1.0.1")))
    assert len(merged.update(one=None, two=join(service("a"), endpoint_slice("a", "10.1.0.1")))) == 0
    assert len(merged.update(one=join(service("a"), endpoint_slice("a", "10.1.0.1")), two="")) == 0
    assert merged.problems == []


def test_other_kinds_are_reported_without_a_fault() -> None:
    merged = Merged()
    merged.update(m=join("apiVersion: v1\nkind: ConfigMap\n", service("a")))
    (problem,) = merged.inventory.problems()
    assert problem.skipped
    text = "v1 ConfigMap is not supported; supported are Service, EndpointSlice and Endpoints"
    assert str(problem) == f"m document 1: kind: {text}"


def test_endpoints_with_changing_subsets() -> None:
    merged = Merged()
    text = "apiVersion: v1\nkind: Endpoints\nmetadata: {name: a}\nsubsets:\n"
    one, two = (
        "- addresses: [{ip: 10.1.0.1}]\n  ports: [{port: 1}]\n",
        "- addresses: [{ip: 10.1.0.2}]\n  ports: [{port: 2}]\n",
    )
    merged.update(m=text + one + two)
    assert len(merged.slices) == 2
    difference = merged.update(m=text + one)
    assert len(difference.removed_slices) == len(difference) == 1
    assert merged.update(m=text + one + "---\n" + service("b")).slices == []


def test_a_problem_keeps_its_key_after_documents_before_it() -> None:
    merged = Merged()
    merged.update(m=service("a", port=0))
    (before,) = merged.inventory.problems()
    merged.update(m=join(service("b"), service("a", port=0)))
    (after,) = merged.inventory.problems()
    assert before.key == after.key
    assert (before.document, after.document) == (1, 2)


DOCUMENTS = [
    *[service(name, address) for name in "ab" for address in ("10.0.0.1", "10.0.0.2", "nowhere")],
    service("a", port="http"), endpoint_slice("a", "10.1.0.1"), endpoint_slice("a", "10.1.0.2", "fd00::1"),
    "a: [\n", "apiVersion: v1\nkind: ConfigMap\n", "",
]  # fmt: skip
TEXTS = st.none() | st.lists(st.sampled_from(DOCUMENTS), max_size=4).map(lambda documents: join(*documents))


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(["one", "two", "three"]), TEXTS, min_size=1, max_size=3), max_size=8))
def test_the_sum_of_differences_is_the_inventory(steps: list[dict[str, str | None]]) -> None:
    """`Merged` compares the sum of all differences with the inventory after each step."""
    merged = Merged()
    for step in steps:
        merged.update(**step)
    healthy = Merged()
    last: dict[str, str | None] = {}
    for step in steps:
        last |= step
    merged.update(**dict.fromkeys(last))
    assert merged.services == healthy.services == {}
    assert merged.problems == []
