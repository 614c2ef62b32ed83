"""The channel's frames: decoded as encoded, with their descriptors; garbage is refused."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.dataplane.interface import Counters, WorkerStatus
from kubeproxy.dataplane.messages import Binding, Listen, RestoreBindings, Retire, SetEndpoints, Tune
from kubeproxy.dataplane.workers import protocol
from kubeproxy.dataplane.workers.channel import Channel
from kubeproxy.dataplane.workers.protocol import (
    BODY_LIMIT,
    DESCRIPTORS_LIMIT,
    HEADER,
    ROOM_BYTES,
    Apply,
    BindingsReply,
    ClosePrevious,
    CountersReply,
    Decoder,
    DoneReply,
    Drain,
    Exit,
    Frame,
    GarbledError,
    Heartbeat,
    Query,
    Report,
    Request,
    Topic,
    WorkerStatusReply,
    encode,
)
from kubeproxy.model import Address, Family, FrontendName, Protocol, Scope, ServicePortName, Target

WEB = FrontendName(ServicePortName("default", "web", "http"), Family.IPV6, Scope.EXTERNAL)
POD = Target(Address("fd00::1"), 8080)
REQUESTS: list[Request] = [
    Apply(
        1,
        (
            Tune(dial_steps_s=(0.5,), access_log=True),
            Listen(WEB, Protocol.UDP, Address("::"), 31000),
            SetEndpoints(WEB, (POD,), 10800, frozenset({POD})),
            RestoreBindings(WEB, (Binding("fd00::9", POD, 12.5),)),
            Retire(WEB),
        ),
    ),
    ClosePrevious(2, (WEB,)),
    Query(3, Topic.EJECTED),
    Query(4, Topic.BINDINGS),
    Drain(4, 2.5),
    Exit(5),
]
REPORTS: list[Report] = [
    DoneReply(1, 7, ((WEB, "cannot listen"),)),
    CountersReply(2, 0, ((WEB, Counters(accepted=2**40, bytes_out=2**62)),)),
    WorkerStatusReply(3, 1, WorkerStatus(1, 0, 1.5, 2, 3, 4, 5, 6, 0.25, (1, 2), 0.5)),
    BindingsReply(4, 1, RestoreBindings(WEB, (Binding("fd00::9", POD, 12.5), Binding("fd00::a", POD, 0.25)))),
    BindingsReply(4, 1),
    Heartbeat(9),
]


def decode(data: bytes, kind: object, *, step: int = 65536) -> list[tuple[Frame, int]]:
    decoder: Decoder[Request] = Decoder(kind)
    return [found for at in range(0, len(data), step) for found in feed(decoder, data[at : at + step])]


def feed(decoder: Decoder[Request], data: bytes) -> Iterator[tuple[Frame, int]]:
    room = decoder.room
    room[: len(data)] = data
    yield from decoder.frames(len(data))


@pytest.mark.parametrize("step", [1, 5, 65536])
@pytest.mark.parametrize(("kind", "frames"), [(Request, REQUESTS), (Report, REPORTS)])
def test_frames_are_decoded_as_they_were_encoded(kind: object, frames: list[Frame], step: int) -> None:
    data = b"".join(encode(frame, count) for count, frame in enumerate(frames))
    assert decode(data, kind, step=step) == [(frame, count) for count, frame in enumerate(frames)]
    (found, _), *_ = decode(encode(REQUESTS[0]), Request)
    assert isinstance(found, Apply)
    listen = found.messages[1]
    assert isinstance(listen, Listen)
    assert listen.frontend.service_port.service == WEB.service_port.service
    assert listen.frontend.scope is Scope.EXTERNAL


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (HEADER.pack(BODY_LIMIT + 1, 0), "exceeds the limits"),
        (HEADER.pack(1, DESCRIPTORS_LIMIT + 1), "exceeds the limits"),
        (HEADER.pack(0, 0), "not a frame"),
        (HEADER.pack(3, 0) + b"\xc1\xc1\xc1", "not a frame"),
        (HEADER.pack(2, 0) + b"\x92\x01", "not a frame"),
        (encode(REPORTS[0]), "not a frame"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "exceeds the limits"),
    ],
)
def test_garbage_is_refused(data: bytes, error: str) -> None:
    with pytest.raises(GarbledError, match=error):
        decode(data, Request)


@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_or_refused(body: bytes) -> None:
    for kind in (Request, Report):
        for data in (body, HEADER.pack(len(body), 0) + body):
            try:
                decode(data, kind)
            except GarbledError:
                continue


@given(st.sampled_from(REQUESTS), st.data())
def test_any_changed_byte_is_decoded_or_refused(frame: Request, data: st.DataObject) -> None:
    text = bytearray(encode(frame))
    text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(text), Request)
    except GarbledError:
        return


def test_deep_nesting_is_refused() -> None:
    body = b"\x91" * 100_000
    with pytest.raises(GarbledError):
        decode(HEADER.pack(len(body), 0) + body, Request)


def test_the_buffer_grows_for_a_long_frame_and_shrinks_again() -> None:
    long = Apply(1, tuple(SetEndpoints(WEB, (POD,) * 500) for _ in range(50)))
    data = encode(long) + encode(Exit(2))
    decoder: Decoder[Request] = Decoder(Request)
    found: list[tuple[Frame, int]] = []
    while data:
        taken = min(len(decoder.room), 50_000, len(data))
        found += feed(decoder, data[:taken])
        data = data[taken:]
    assert found == [(long, 0), (Exit(2), 0)]
    assert len(decoder.room) == ROOM_BYTES


def test_a_header_alone_takes_no_memory() -> None:
    decoder: Decoder[Request] = Decoder(Request)
    assert not list(feed(decoder, HEADER.pack(BODY_LIMIT, 0)))
    assert len(decoder.room) < ROOM_BYTES


def test_frames_survive_a_memory_error(monkeypatch: pytest.MonkeyPatch) -> None:
    long = Apply(1, tuple(SetEndpoints(WEB, (POD,) * 500) for _ in range(50)))
    with channels() as (left, right):
        left.send(Exit(1))
        left.send(long)
        left.send(Exit(2))
        found: list[Request] = []
        with monkeypatch.context() as poor:
            poor.setattr(protocol, "bytearray", no_memory, raising=False)
            failed = 0
            for _ in range(20):
                try:
                    found.extend(frame for frame, _ in right.receive())
                except MemoryError:
                    failed += 1
            assert failed > 3
        for _ in range(100):
            left.flush()
            found += [frame for frame, _ in right.receive()]
    assert found == [Exit(1), long, Exit(2)]


def no_memory(size: int) -> bytearray:
    raise MemoryError


@contextmanager
def channels() -> Iterator[tuple[Channel[Report], Channel[Request]]]:
    ours, theirs = socket.socketpair()
    with closing(Channel[Report](ours, Report)) as left, closing(Channel[Request](theirs, Request)) as right:
        yield left, right


def test_descriptors_arrive_with_their_frames() -> None:
    with channels() as (left, right):
        pipes = [os.pipe() for _ in range(DESCRIPTORS_LIMIT)]
        left.send(Exit(1), [write for _, write in pipes])
        left.send(Exit(2))
        left.send(Exit(3), [pipes[0][1]])
        for _, write in pipes:
            os.close(write)
        found = [got for _ in range(4) for got in right.receive()]
        assert [(frame, len(descriptors)) for frame, descriptors in found] == [
            (Exit(1), DESCRIPTORS_LIMIT),
            (Exit(2), 0),
            (Exit(3), 1),
        ]
        for (read, _), descriptor in zip(pipes, found[0][1], strict=True):
            os.write(descriptor, b"x")
            os.close(descriptor)
            assert os.read(read, 2) == b"x"
            os.close(read)
        os.close(found[2][1][0])


def test_queued_frames_keep_their_descriptors_open() -> None:
    with channels() as (left, right):
        long = Apply(1, tuple(SetEndpoints(WEB, (POD,) * 500) for _ in range(50)))
        for _ in range(5):
            left.send(long)
        assert left.congested
        read, write = os.pipe()
        left.send(Exit(2), [write])
        os.close(write)
        seen: list[tuple[Request, tuple[int, ...]]] = []
        while len(seen) < 6:
            left.flush()
            seen += right.receive()
        assert [frame for frame, _ in seen[:5]] == [long] * 5
        assert seen[5][0] == Exit(2)
        os.write(seen[5][1][0], b"still open")
        os.close(seen[5][1][0])
        assert os.read(read, 20) == b"still open"
        assert os.read(read, 20) == b"", "no other copy is open"
        os.close(read)
        assert not left.congested


def test_a_closed_channel_raises() -> None:
    with channels() as (left, right):
        left.close()
        with pytest.raises(EOFError):
            list(right.receive())
        with pytest.raises(OSError, match="Broken pipe"):
            right.send(DoneReply(1, 0))


def test_a_frame_with_missing_descriptors_is_refused() -> None:
    with channels() as (left, right):
        left.sock.send(encode(Exit(1), 2))
        with pytest.raises(GarbledError, match="needs 2 descriptors, 0 arrived"):
            list(right.receive())


def test_ten_thousand_counters_are_far_from_the_limit() -> None:
    """Within a tenth of the limit of a frame."""
    assert len(msgspec.msgpack.encode((WEB, Counters(bytes_in=2**50)))) * 10_000 < BODY_LIMIT / 10
