"""Decoding of answers: lines, events, pages, errors."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.kubernetes.client.decode import EventType, LineSplitter, parse_event, parse_page
from kubeproxy.kubernetes.client.errors import (
    AheadError,
    ApiError,
    ExpiredError,
    ForbiddenError,
    GarbageError,
    OverloadedError,
    StatusError,
    UnauthorizedError,
)
from kubeproxy.kubernetes.client.status import parse_status, status_error
from tests.support.apiserver.recordings import Exchange, Stream, exchanges, streams

ALL_STREAMS = [found for found in streams("v1.*/watch/*") if found.status == 200]
REFUSALS = [found for found in exchanges("v1.*/*/*") if found.status >= 400]


@given(st.lists(st.binary(max_size=20).map(lambda line: line.replace(b"\n", b"")), max_size=20), st.data())
def test_lines_are_independent_of_the_stream_s_pieces(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + b"\n" for line in lines) + b"rest"
    splitter = LineSplitter()
    found = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        found += splitter.feed(stream[:size])
        stream = stream[size:]
    assert found == [line for line in lines if line.strip()]
    assert splitter.rest == b"rest"


def test_an_endless_line_is_refused_early() -> None:
    splitter = LineSplitter(max_line_bytes=1000)
    splitter.feed(b"x" * 999)
    with pytest.raises(GarbageError, match="more than 1000 bytes"):
        splitter.feed(b"xx")


@pytest.mark.parametrize("recorded", ALL_STREAMS, ids=lambda recorded: recorded.name)
def test_every_recorded_event_is_decoded(recorded: Stream) -> None:
    for line in recorded.lines:
        spoken = json.loads(line)
        if spoken["type"] == "ERROR":
            with pytest.raises(ApiError) as caught:
                parse_event(line)
            assert caught.value.status == spoken["object"]["code"]
            assert isinstance(caught.value, ExpiredError) is (caught.value.status == 410)
            assert spoken["object"]["message"] in str(caught.value)
            continue
        event = parse_event(line)
        assert event.type == spoken["type"]
        assert event.resource_version == spoken["object"]["metadata"]["resourceVersion"]
        assert event.metadata.name == spoken["object"]["metadata"].get("name")
        assert (event.type is EventType.BOOKMARK) is (event.metadata.name is None)


@pytest.mark.parametrize(
    "line",
    [
        b"not JSON",
        b"{}",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b'{"type":"ADDED"}',
        b'{"type":"ADDED","object":null}',
        b'{"type":"ADDED","object":{}}',
        b'{"type":"ADDED","object":{"metadata":{"name":"a"}}}',
        b'{"type":"ADDED","object":{"metadata":{"resourceVersion":"1"}}}',
        b'{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":1}}}',
        b'{"type":"ADDED","object":{"metadata":{"name":"a","resourceVer',
        b'{"type":"RENAMED","object":{"metadata":{"name":"a","resourceVersion":"1"}}}',
        b'{"type":"BOOKMARK","object":{"metadata":{}}}',
        b'{"type":"","object":{"metadata":{"name":"a","resourceVersion":"1"}}}',
    ],
)
def test_invalid_events_are_garbage(line: bytes) -> None:
    with pytest.raises(GarbageError):
        parse_event(line)


@given(st.binary(max_size=200))
def test_any_line_gives_an_event_or_an_api_error(line: bytes) -> None:
    with contextlib.suppress(ApiError):
        parse_event(line)


def test_an_unreadable_error_event_is_an_error() -> None:
    with pytest.raises(ApiError) as caught:
        parse_event(b'{"type":"ERROR","object":{"nothing":"known"}}')
    assert caught.value.status == 500


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.name)
def test_every_recorded_refusal_becomes_an_error_with_its_message(refusal: Exchange) -> None:
    error = status_error(parse_status(refusal.body), code=refusal.status, seen="answered")
    assert error.status == refusal.status
    kinds = {401: UnauthorizedError, 403: ForbiddenError, 410: ExpiredError, 429: OverloadedError, 503: OverloadedError}
    ahead = AheadError if "ResourceVersionTooLarge" in refusal.body.decode() else StatusError
    assert type(error) is kinds.get(refusal.status, ahead)
    message = refusal.json.get("message") if refusal.body.startswith(b"{") else refusal.body.decode().strip()
    assert " ".join(str(message).split())[:150] in " ".join(str(error).split())


def test_an_expired_token_comes_with_a_new_one() -> None:
    refusal = next(found for found in REFUSALS if "410-expired-continue" in found.name)
    error = status_error(parse_status(refusal.body), code=410, seen="answered")
    assert isinstance(error, ExpiredError)
    assert error.token == refusal.json["metadata"]["continue"]


def test_pages_carry_version_and_token() -> None:
    page = parse_page(b'{"kind":"ServiceList","metadata":{"resourceVersion":"7","continue":"x"},"items":[{},{}]}')
    assert (len(page.items), page.resource_version, page.token) == (2, "7", "x")
    page = parse_page(b'{"kind":"ServiceList","metadata":{"resourceVersion":"7"},"items":null}')
    assert (page.items, page.token) == ([], "")


@pytest.mark.parametrize(
    "body", [b"", b"{", b"{}", b"[]", b'{"kind":"ServiceList","metadata":{}}', b'{"kind":"Status","metadata":{}}']
)
def test_invalid_lists_are_garbage(body: bytes) -> None:
    with pytest.raises(GarbageError):
        parse_page(body)
