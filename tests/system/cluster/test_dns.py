"""The cluster's DNS server: names of Services, as tests ask for them."""

from __future__ import annotations

import socket
import struct
from typing import Any

import pytest

from tests.system.cluster import dns
from tests.system.cluster.dns import Found

SERVICES: dict[str, Any] = {
    "web": {"clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7", "fd00::7"]},
    "headless": {"clusterIP": "None"},
    "other": {"type": "ExternalName", "externalName": "web.default.svc.cluster.local"},
    "away": {"type": "ExternalName", "externalName": "www.example.com."},
}
ENDPOINTS = [
    {"addresses": ["10.244.1.2"], "hostname": "a", "conditions": {"ready": True}},
    {"addresses": ["10.244.1.3"], "conditions": {}},
    {"addresses": ["10.244.1.4"], "conditions": {"ready": False}},
]


def get(path: str) -> Any:
    """An API server with these objects."""
    kind, _, name = path.rpartition("/")
    if kind.endswith("/services"):
        return {"spec": SERVICES[name]} if name in SERVICES else None
    return {"items": [{"addressType": "IPv4", "endpoints": ENDPOINTS}]}


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("web.default.svc.cluster.local", Found(("10.96.0.7",))),
        ("headless.default.svc.cluster.local", Found(("10.244.1.2", "10.244.1.3"))),
        ("a.headless.default.svc.cluster.local", Found(("10.244.1.2",))),
        ("other.default.svc.cluster.local", Found(("10.96.0.7",), "web.default.svc.cluster.local")),
        ("away.default.svc.cluster.local", Found((), "www.example.com")),
        ("missing.default.svc.cluster.local", None),
        ("web.default.svc", None),
        ("www.example.com", None),
    ],
)
def test_names(name: str, found: Found | None) -> None:
    assert dns.resolve(name, get) == found


def ask(name: str, kind: int = 1) -> bytes:
    """A question for a name."""
    encoded = b"".join(bytes([len(it)]) + it.encode() for it in name.split(".")) + b"\0"
    return struct.pack("!HHHHHH", 7, 0x0100, 1, 0, 0, 0) + encoded + struct.pack("!HH", kind, 1)


def test_an_answer_holds_the_question_and_the_address() -> None:
    question = ask("Web.default.svc.cluster.local")
    reply = dns.answer(question, get)
    ident, flags, questions, answers = struct.unpack("!HHHH", reply[:8])
    assert (ident, flags & 0x800F, questions, answers) == (7, 0x8000, 1, 1)
    assert question[12:] in reply
    assert reply.endswith(socket.inet_aton("10.96.0.7"))


def test_a_question_for_another_type_is_answered_with_nothing() -> None:
    reply = dns.answer(ask("web.default.svc.cluster.local", kind=28), get)
    assert struct.unpack("!HHHH", reply[:8])[1:] == (0x8580, 1, 0)


def test_a_missing_name_and_a_silent_server_are_different_errors() -> None:
    def silent(path: str) -> Any:
        raise OSError("no route")

    assert dns.answer(ask("www.example.com"), get)[3] & 0x0F == 3
    assert dns.answer(ask("web.default.svc.cluster.local"), silent)[3] & 0x0F == 2
