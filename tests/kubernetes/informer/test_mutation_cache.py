"""What this process has written counts until the watch reports it."""

from __future__ import annotations

import msgspec

from kubeproxy.controllers.api_types import Pod
from kubeproxy.controllers.informers import pod_informer
from kubeproxy.kubernetes.informer.informer import Informer
from kubeproxy.kubernetes.informer.mutation_cache import MutationCache
from kubeproxy.kubernetes.informer.store import CONTROLLER, ORPHANS
from tests.controllers.builders import pod


def _at(version: str, name: str = "a", owner: str = "") -> Pod:
    item = pod(name, owner=owner)
    return msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, resource_version=version))


def _cache() -> tuple[Informer[Pod], MutationCache[Pod]]:
    informer = pod_informer()
    return informer, MutationCache(informer)


def test_a_write_is_seen_at_once() -> None:
    informer, cache = _cache()
    informer.put(_at("5"))
    cache.written(_at("9"))
    assert cache.get("default/a") == _at("9")
    informer.put(_at("7"))  # another's change, before ours
    assert cache.get("default/a") == _at("9")
    informer.put(_at("9"))
    informer.put(_at("12"))
    assert cache.get("default/a") == _at("12")


def test_a_late_answer_does_not_hide_what_the_watch_has_reported() -> None:
    informer, cache = _cache()
    informer.put(_at("12"))
    cache.written(_at("9"))
    assert cache.get("default/a") == _at("12")


def test_indexes_follow() -> None:
    informer, cache = _cache()
    informer.put(_at("5", owner="x"))
    cache.written(_at("9", owner="y"))
    cache.written(_at("10", "b", owner="y"))
    assert cache.indexed(CONTROLLER, "x") == []
    assert [item.metadata.name for item in cache.indexed(CONTROLLER, "y")] == ["a", "b"]
    assert cache.indexed(ORPHANS, "default") == []


def test_what_is_deleted_is_gone() -> None:
    informer, cache = _cache()
    cache.written(_at("9"))
    informer.put(_at("9"))
    cache.written(_at("10"))
    informer.remove("default/a")
    assert cache.get("default/a") is None


def test_what_was_deleted_before_a_list_is_gone() -> None:
    informer, cache = _cache()
    cache.written(_at("9"))
    informer.replace([_at("3", "b")])
    informer.listed("8")
    assert cache.get("default/a") == _at("9")
    informer.replace([_at("3", "b")])
    informer.listed("10")
    assert cache.get("default/a") is None
    assert cache.indexed(ORPHANS, "default") == [_at("3", "b")]


def test_an_answer_that_comes_after_the_deletion_was_reported_is_no_object() -> None:
    informer, cache = _cache()
    informer.put(_at("9"))
    informer.remove("default/a")
    cache.written(_at("9"))
    assert cache.get("default/a") is None


def test_a_server_that_was_restored_from_a_backup_begins_anew() -> None:
    informer, cache = _cache()
    informer.put(_at("100"))
    cache.written(_at("101"))
    cache.written(_at("102", "b"))
    informer.replace([_at("50")])
    informer.listed("51")
    assert cache.get("default/a") == _at("50"), "the write was lost"
    assert cache.get("default/b") is None
    cache.written(_at("60"))
    assert cache.get("default/a") == _at("60")


def test_versions_that_are_no_numbers_are_not_compared() -> None:
    informer, cache = _cache()
    informer.put(_at("5"))
    cache.written(_at("abc"))
    assert cache.get("default/a") == _at("5")
