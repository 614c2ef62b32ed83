"""Stores, and the calls that handlers get."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.controllers.api_types import Pod
from kubeproxy.controllers.informers import pod_informer
from kubeproxy.kubernetes.informer.informer import Informer
from kubeproxy.kubernetes.informer.store import CONTROLLER, INDEXERS, NAMESPACE, ORPHANS, Store
from tests.controllers.builders import pod


def _version(item: Pod, version: str, **changes: str) -> Pod:
    return msgspec.structs.replace(
        item, metadata=msgspec.structs.replace(item.metadata, resource_version=version, **changes)
    )


class _Recorder:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def added(self, item: Pod) -> None:
        self.calls.append(f"+{item.metadata.name}")

    def updated(self, old: Pod, new: Pod) -> None:
        self.calls.append(f"{old.metadata.resource_version}~{new.metadata.resource_version}")

    def deleted(self, item: Pod) -> None:
        self.calls.append(f"-{item.metadata.name}")

    def take(self) -> list[str]:
        calls, self.calls = self.calls, []
        return calls


def _informer() -> tuple[Informer[Pod], _Recorder]:
    informer, seen = pod_informer(), _Recorder()
    informer.add_handler(seen)
    return informer, seen


def test_handlers_are_called_for_changes() -> None:
    informer, seen = _informer()
    assert not informer.synced.is_set()
    informer.replace([pod("a"), pod("b")])
    assert informer.synced.is_set()
    assert seen.take() == ["+a", "+b"]
    informer.put(_version(pod("a"), "8"))
    informer.put(_version(pod("a"), "8"))  # reported twice
    informer.remove("default/b")
    informer.remove("default/b")
    assert seen.take() == ["7~8", "-b"]


def test_a_list_shows_what_was_missed() -> None:
    informer, seen = _informer()
    informer.replace([pod("a"), pod("b"), pod("c")])
    seen.take()
    informer.replace([_version(pod("a"), "9"), pod("b"), pod("d")])
    assert seen.take() == ["-c", "7~9", "+d"]


def test_another_object_under_the_same_name() -> None:
    informer, seen = _informer()
    informer.put(pod("a"))
    informer.put(_version(pod("a"), "9", uid="another"))
    assert seen.take() == ["+a", "-a", "+a"]


def test_a_resync_reports_all_again() -> None:
    informer, seen = _informer()
    informer.replace([pod("a"), pod("b")])
    seen.take()
    informer.resync()
    assert seen.take() == ["7~7", "7~7"]


def test_a_late_handler_gets_what_is_there() -> None:
    informer, _ = _informer()
    informer.put(pod("a"))
    late = _Recorder()
    informer.add_handler(late)
    assert late.take() == ["+a"]


def test_a_handler_that_fails_does_not_stop_the_others() -> None:
    informer = pod_informer()

    class Failing(_Recorder):
        def added(self, item: Pod) -> None:
            raise RuntimeError("broken")

        def updated(self, old: Pod, new: Pod) -> None:
            raise RuntimeError("broken")

    seen = _Recorder()
    informer.add_handler(Failing())
    informer.add_handler(seen)
    informer.put(pod("a"))
    informer.put(_version(pod("a"), "8"))
    assert seen.take() == ["+a", "7~8"]


def test_indexes() -> None:
    store: Store[Pod] = Store()
    for item in (pod("a", owner="x"), pod("b", owner="x"), pod("c", owner="y"), pod("d")):
        store.put(item)
    assert [item.metadata.name for item in store.indexed(CONTROLLER, "x")] == ["a", "b"]
    assert [item.metadata.name for item in store.indexed(ORPHANS, "default")] == ["d"]
    assert len(store.indexed(NAMESPACE, "default")) == 4
    store.put(pod("a"))  # released
    assert [item.metadata.name for item in store.indexed(CONTROLLER, "x")] == ["b"]
    assert {item.metadata.name for item in store.indexed(ORPHANS, "default")} == {"a", "d"}
    store.remove("default/b")
    assert store.indexed(CONTROLLER, "x") == []


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abc"), st.sampled_from(["", "x", "y"]))))
def test_indexes_are_what_a_walk_would_find(steps: list[tuple[bool, str, str]]) -> None:
    store: Store[Pod] = Store()
    for put, name, owner in steps:
        if put:
            store.put(pod(name, owner=owner))
        else:
            store.remove(f"default/{name}")
    for index, values in INDEXERS.items():
        for value in ("default", "x", "y"):
            expected = {item.metadata.name for item in store if value in values(item)}
            assert {item.metadata.name for item in store.indexed(index, value)} == expected
