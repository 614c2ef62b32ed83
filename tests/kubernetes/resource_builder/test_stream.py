"""Bytes to documents: separators, JSON streams, encodings, limits, and no more memory than a document takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.kubernetes.resource_builder.errors import UnreadableError
from kubeproxy.kubernetes.resource_builder.stream import Document, Splitter


def documents(data: bytes, step: int = 1 << 20, **more: int) -> list[Document]:
    splitter = Splitter("it", **more)
    found = [each for start in range(0, len(data), step) for each in splitter.feed(data[start : start + step])]
    return [*found, *splitter.end()]


def texts(data: bytes) -> list[bytes]:
    return [each.text.strip() for each in documents(data)]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"\n# only\n---\n  \n...\n%YAML 1.1\n---\n", []),
        (b"a: 1\n---\nb: 2\n", [b"a: 1", b"b: 2"]),
        (b"---\na: 1\n--- # comment\nb: 2\n---", [b"a: 1", b"# comment\nb: 2"]),
        (b"a: 1\r\n---\r\nb: 2\r\n", [b"a: 1", b"b: 2"]),
        (b"a: |\n  ---\n  x\n---x: 1\n", [b"a: |\n  ---\n  x\n---x: 1"]),
        (b'{"a": 1}{"b": "}{"}\n\n {"c": []}', [b'{"a": 1}', b'{"b": "}{"}', b'{"c": []}']),
        (b'---\n{"a": "\\"}"}\n---\nb: 1\n', [b'{"a": "\\"}"}', b"b: 1"]),
        (b'{a: "}"}\n---\n{"b": 1}\n', [b'{a: "}"}', b'{"b": 1}']),
        (b'{"a": 1} rest\n---\nb: 1\n', [b'{"a": 1}', b"rest", b"b: 1"]),
        (b"\xef\xbb\xbfa: 1\n", [b"a: 1"]),
        (b"\xff\xfe" + "a: é\n---\nb: 1\n".encode("utf-16-le"), ["a: é".encode(), b"b: 1"]),
        (b"\xfe\xff" + '{"a": "é"}'.encode("utf-16-be"), ['{"a": "é"}'.encode()]),
        (b"{" * 50, [b"{" * 50]),
    ],
)
def test_a_stream_is_cut_into_documents(data: bytes, expected: list[bytes]) -> None:
    assert texts(data) == expected


def test_documents_know_their_number_and_line() -> None:
    found = documents(b'# head\n---\na: 1\n---\n# empty\n---\n\n{"b": 1}\n{"c": 1}\n---\nd: 1\n')
    assert [(each.number, each.line) for each in found] == [(1, 2), (2, 8), (3, 9), (4, 10)]
    assert [each.is_json for each in found] == [False, True, True, False]


@given(
    st.lists(st.sampled_from([b"---\n", b"a: 1\n", b'{"a":"}"}', b"{", b"}", b'"', b"\\", b"\n", b" ", b"--", b"\r\n"]))
)
def test_pieces_of_any_size_give_the_same_documents(parts: list[bytes]) -> None:
    data = b"".join(parts)
    whole = documents(data)
    for step in (1, 2, 3, 7):
        assert documents(data, step) == whole


def test_a_document_that_is_too_long_ends_the_stream() -> None:
    with pytest.raises(UnreadableError, match="more than 1000 bytes"):
        documents(b"a: 1\n---\nb: " + b"x" * 2000, step=100, max_document=1000)
    with pytest.raises(UnreadableError, match="more than 1000 bytes"):
        documents(b'{"a": "' + b"x" * 2000, step=100, max_document=1000)


def test_half_a_character_of_utf_16_is_reported() -> None:
    with pytest.raises(UnreadableError, match="not UTF-16"):
        documents(b"\xff\xfea")


def test_a_long_stream_takes_the_memory_of_one_document() -> None:
    for part in (b"---\na: 1\n" * 64, b'{"a": 1}\n' * 64):
        splitter = Splitter("it")
        count = 0
        for _ in range(500):
            count += sum(1 for _ in splitter.feed(part))
            assert len(splitter._buffer) < 200
        count += sum(1 for _ in splitter.end())
        assert count == 32_000
