"""Messages of a takeover: what every protocol version understands, and how long a line can be."""

from __future__ import annotations

import msgspec
import pytest

from kubeproxy.daemon.takeover import protocol
from kubeproxy.daemon.takeover.control_socket import PREFIX
from kubeproxy.daemon.takeover.protocol import Accepted, Busy, Hello, Proof, Prove, Stop, Stopping
from kubeproxy.dataplane.balancing.affinity import AT_ONCE
from kubeproxy.dataplane.messages import Binding, RestoreBindings
from kubeproxy.dataplane.workers.takeover_messages import (
    FOR_ORPHANS,
    FROM_ORPHANS,
    LINE_BYTES,
    Bindings,
    OrphanHello,
    Retire,
    TakeoverMessage,
    decode,
    encode,
)
from kubeproxy.model import Address, Family, FrontendName, Scope, ServicePortName, Target

LONGEST = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
MOST = RestoreBindings(
    FrontendName(ServicePortName("n" * 63, "s" * 63, "p" * 63), Family.IPV6, Scope.EXTERNAL),
    (Binding(LONGEST, Target(Address(LONGEST), 65535), 86399.123),) * AT_ONCE,
)


@pytest.mark.parametrize(
    ("line", "message", "decoder"),
    [
        (b'{"type":"hello","protocol":7,"pid":42,"version":"x"}', Hello(7, 42, "x"), protocol.HELLOS),
        (b'{"type":"orphan","protocol":7,"pid":42,"run":"x"}', OrphanHello(7, 42, "x"), protocol.HELLOS),
        (b'{"type":"busy","protocol":7,"looking":true}', Busy(7, looking=True), protocol.FIRST_ANSWERS),
        (b'{"type":"prove","protocol":7,"pid":42,"version":"x"}', Prove(7, 42, "x"), protocol.FIRST_ANSWERS),
        (b'{"type":"proof"}', Proof(), protocol.PROOFS),
        (b'{"type":"accepted"}', Accepted(), protocol.ANSWERS),
        (b'{"type":"accepted","services":5,"sources":["x"]}', Accepted(5, ("x",)), protocol.ANSWERS),
        (b'{"type":"stop"}', Stop(), protocol.REQUESTS),
        (b'{"type":"stopping","within_s":1.5}', Stopping(1.5), protocol.ANSWERS),
        (b'{"type":"retire"}', Retire(), FOR_ORPHANS),
    ],
)
def test_frozen_messages_never_change(
    line: bytes, message: TakeoverMessage, decoder: msgspec.json.Decoder[TakeoverMessage]
) -> None:
    """If this fails, processes of other versions no longer understand this one. Change the code, not the test."""
    assert encode(message) == line + b"\n"
    assert decode(line, decoder) == message
    assert decode(line[:-1] + b',"added":[1]}', decoder) == message


def test_the_control_sockets_name_never_changes() -> None:
    assert PREFIX == "kubeproxy/control/"


def test_the_longest_part_of_bindings_fits_into_a_line() -> None:
    assert len(encode(Bindings(MOST))) < LINE_BYTES


def test_bindings_survive_encoding() -> None:
    assert decode(encode(Bindings(MOST)), FROM_ORPHANS) == Bindings(MOST)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b"[" * 4000,
        b'{"type": "another"}',
        b'{"type": "bindings"}',
        b'{"type": "bindings", "bound": {}}',
        b'{"type": "bindings", "bound": ["RestoreBindings"]}',
        b'{"type": "bindings", "bound": ["Forget", [["a", "b", "c"], 4, "cluster"], []]}',
        b'{"type": "bindings", "bound": ["RestoreBindings", [["a", "b", "c"], 5, "cluster"], []]}',
        b'{"type": "bindings", "bound": ["RestoreBindings", [["a", "b", "c"], 4, "cluster"], [["a", 80, 1.0]]]}',
    ],
)
def test_other_text_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match="expected a takeover message"):
        decode(line, FROM_ORPHANS)
