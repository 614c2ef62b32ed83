"""What is said by one process is understood by another, of whatever version."""

from __future__ import annotations

import json

import msgspec
import pytest

from kubeproxy.daemon.takeover import protocol
from kubeproxy.dataplane.balancing.affinity import AT_ONCE
from kubeproxy.dataplane.messages import Binding, RestoreBindings
from kubeproxy.model import Address, Family, FrontendName, Scope, ServicePortName, Target

LONGEST = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
MOST = RestoreBindings(
    FrontendName(ServicePortName("n" * 63, "s" * 63, "p" * 63), Family.IPV6, Scope.EXTERNAL),
    (Binding(LONGEST, Target(Address(LONGEST), 65535), 86399.123),) * AT_ONCE,
)


def test_the_longest_piece_fits_into_a_line() -> None:
    assert len(msgspec.json.encode(protocol.told(MOST))) < protocol.LINE_BYTES


def test_what_is_told_is_heard() -> None:
    assert protocol.heard(json.loads(msgspec.json.encode(protocol.told(MOST)))) == MOST


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"done": "recall"},
        {"bound": None},
        {"bound": {}},
        {"bound": ["RestoreBindings"]},
        {"bound": ["Forget", [["a", "b", "c"], 4, "cluster"], []]},
        {"bound": ["RestoreBindings", [["a", "b", "c"], 5, "cluster"], []]},
        {"bound": ["RestoreBindings", [["a", "b", "c"], 4, "cluster"], [["10.0.0.1", ["10.0.0.2", "http"], 1.0]]]},
        {"bound": ["RestoreBindings", [["a", "b", "c"], 4, "cluster"], [["10.0.0.1", ["10.0.0.2", 80], "new"]]]},
    ],
)
def test_what_is_something_else_is_passed_over(message: protocol.Message) -> None:
    assert protocol.heard(message) is None
