"""What is said by one process is understood by another, of whatever version."""

from __future__ import annotations

import json

import msgspec
import pytest

from kubeproxy import talk
from kubeproxy.dataplane.affinity import AT_ONCE
from kubeproxy.dataplane.messages import Binding, Remember
from kubeproxy.model import Address, Family, FrontendName, Scope, ServicePortName, Target

LONGEST = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
MOST = Remember(
    FrontendName(ServicePortName("n" * 63, "s" * 63, "p" * 63), Family.IPV6, Scope.EXTERNAL),
    (Binding(LONGEST, Target(Address(LONGEST), 65535), 86399.123),) * AT_ONCE,
)


def test_the_longest_piece_fits_into_a_line() -> None:
    assert len(msgspec.json.encode(talk.told(MOST))) < talk.LINE_BYTES


def test_what_is_told_is_heard() -> None:
    assert talk.heard(json.loads(msgspec.json.encode(talk.told(MOST)))) == MOST


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"done": "recall"},
        {"bound": None},
        {"bound": {}},
        {"bound": ["Remember"]},
        {"bound": ["Forget", [["a", "b", "c"], 4, "cluster"], []]},
        {"bound": ["Remember", [["a", "b", "c"], 5, "cluster"], []]},
        {"bound": ["Remember", [["a", "b", "c"], 4, "cluster"], [["10.0.0.1", ["10.0.0.2", "http"], 1.0]]]},
        {"bound": ["Remember", [["a", "b", "c"], 4, "cluster"], [["10.0.0.1", ["10.0.0.2", 80], "new"]]]},
    ],
)
def test_what_is_something_else_is_passed_over(message: talk.Message) -> None:
    assert talk.heard(message) is None
