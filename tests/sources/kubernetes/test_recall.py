"""What is unchanged is recognized by its text."""

from __future__ import annotations

import msgspec

from kubeproxy.sources.kubernetes.recall import Recall

OLD, NEW = msgspec.Raw(b'{"a":1}'), msgspec.Raw(b'{"a":2}')


def test_the_same_text_means_the_same_object() -> None:
    recall: Recall[str] = Recall()
    found = ["web"]
    assert recall.meaning("default/web", OLD) is None
    recall.note("default/web", OLD, found)
    assert recall.meaning("default/web", msgspec.Raw(bytes(OLD))) is found
    assert recall.meaning("default/other", OLD) is None


def test_another_text_has_to_be_read() -> None:
    recall: Recall[str] = Recall()
    recall.note("default/web", OLD, ["old"])
    assert recall.meaning("default/web", NEW) is None
    recall.note("default/web", NEW, ["new"])
    assert recall.meaning("default/web", OLD) is None
    assert recall.meaning("default/web", NEW) == ["new"]


def test_an_object_may_mean_nothing() -> None:
    recall: Recall[str] = Recall()
    recall.note("default/headless", OLD, [])
    assert recall.meaning("default/headless", OLD) == []


def test_what_is_gone_is_forgotten() -> None:
    recall: Recall[str] = Recall()
    for name in ("a", "b", "c"):
        recall.note(name, OLD, [name])
    recall.forget("a")
    recall.forget("unknown")
    recall.keep({"b", "d"})
    assert len(recall) == 1
    assert recall.meaning("b", OLD) == ["b"]
    assert recall.meaning("c", OLD) is None
