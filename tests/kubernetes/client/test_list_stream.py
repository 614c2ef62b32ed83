"""A page of a list that is read while it arrives."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from kubeproxy.kubernetes.client.errors import GarbageError
from kubeproxy.kubernetes.client.list_stream import ListSplitter

TRAPS = ['}, {"metadata":', '"},{"metadata":{', '"items":[', "]}", "\\", '\\"},{"metadata":{"', "<&\u2028"]
"""Annotations of a tenant that knows how pages are cut."""


def text_of(items: list[Any], **form: Any) -> bytes:
    page = {"kind": "ServiceList", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}, "items": items}
    return json.dumps(page, **form).encode()


def objects(number: int) -> list[Any]:
    return [
        {
            "metadata": {"name": f"s-{index}", "annotations": {str(place): trap for place, trap in enumerate(TRAPS)}},
            "spec": {"ports": [{"port": index}, {"port": 2}], "nested": [{"metadata": {}}, {"metadata": {}}]},
        }
        for index in range(number)
    ]


def read(text: bytes, step: int, **limits: int) -> tuple[list[Any], int]:
    """The items, and how many of them came before the end."""
    splitter = ListSplitter(**limits)
    items: list[Any] = []
    for start in range(0, len(text), step):
        if (page := splitter.feed(text[start : start + step])) is not None:
            assert page.kind == "ServiceList"
            items += map(msgspec.json.decode, page.items)
    early = len(items)
    page = splitter.end()
    assert (page.kind, page.resource_version) == ("ServiceList", "7")
    return items + [msgspec.json.decode(raw) for raw in page.items], early


@pytest.mark.parametrize("form", [{"separators": (",", ":")}, {}, {"indent": 2}], ids=["compact", "spaced", "indented"])
@pytest.mark.parametrize("step", [1, 7, 1000])
def test_the_items_are_those_of_the_page_however_it_falls_into_pieces(step: int, form: dict[str, Any]) -> None:
    wanted = objects(40)
    items, early = read(text_of(wanted, **form), step, piece_bytes=1000)
    assert items == wanted
    assert early > 30


@pytest.mark.parametrize("items", [[], objects(1)])
def test_a_short_page_is_read_at_its_end(items: list[Any]) -> None:
    assert read(text_of(items), 100) == (items, 0)


def test_what_waits_is_no_longer_than_a_piece_and_an_object() -> None:
    splitter = ListSplitter(piece_bytes=10_000)
    text = text_of(objects(1000), separators=(",", ":"))
    longest = 0
    for start in range(0, len(text), 500):
        splitter.feed(text[start : start + 500])
        longest = max(longest, len(splitter._rest))
    assert longest < 12_000 < len(text) // 20


def test_an_object_longer_than_a_piece_is_waited_for() -> None:
    wanted = [*objects(3), {"metadata": {"name": "large", "annotations": {"a": "x" * 50_000}}}, *objects(3)]
    assert read(text_of(wanted), 100, piece_bytes=1000)[0] == wanted


def test_an_object_without_an_end_is_bounded() -> None:
    splitter = ListSplitter(max_object_bytes=100_000, piece_bytes=1000)
    splitter.feed(text_of([])[:-2] + b'{"metadata":{"name":"')
    fed = 0
    with pytest.raises(GarbageError, match="an object of more than 100000 bytes") as caught:  # noqa: PT012
        for _ in range(200):
            fed += 1000
            splitter.feed(b"x" * 1000)
    assert fed < 103_000
    assert caught.value.cause == "endless answer"


@pytest.mark.parametrize(
    "text", [b"", b"<html>", b'{"items":[', text_of(objects(100))[:-1], text_of(objects(100)) + b"}"]
)
def test_what_is_no_page_is_refused(text: bytes) -> None:
    with pytest.raises(GarbageError):
        read(text, 64, piece_bytes=1000)


def test_a_page_that_says_last_what_it_is() -> None:
    text = json.dumps({"items": objects(20), "metadata": {"resourceVersion": "7"}, "kind": "ServiceList"}).encode()
    splitter = ListSplitter(piece_bytes=1000)
    items = [
        raw
        for start in range(0, len(text), 100)
        if (page := splitter.feed(text[start : start + 100]))
        for raw in page.items
    ]
    last = splitter.end()
    assert (last.kind, last.resource_version) == ("ServiceList", "7")
    assert [msgspec.json.decode(raw) for raw in [*items, *last.items]] == objects(20)
