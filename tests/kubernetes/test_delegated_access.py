"""Clients of a component's own pages, by an API server's answers."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.errors import UnreachableError
from kubeproxy.kubernetes.delegated_access import CACHE_S, CACHED, STRANGERS, AccessRefusedError, DelegatedAccess
from tests.support.clock import Clock

SCRAPER = {"username": "system:serviceaccount:mon:prom", "uid": "7", "groups": ["mon"], "extra": {"pod": ["p-1"]}}


class Reviewer(Client):
    """An API server that knows one token, and allows one path."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.paths: list[str] = []
        self.away = False
        self.garbage = b""

    async def get_json(self, *_: Any, **__: Any) -> bytearray:
        raise AssertionError("reviews are created, never read")

    async def send_json(
        self, method: str, path: str, body: bytes, *, content_type: str = "application/json"
    ) -> bytearray:
        assert method == "POST"
        self.paths.append(path)
        if self.away:
            raise UnreachableError("connection refused", cause="refused")
        if self.garbage:
            return bytearray(self.garbage)
        sent = msgspec.json.decode(body)
        self.asked.append(sent)
        if path.endswith("/tokenreviews"):
            good = sent["spec"]["token"] == "good"
            status = {"authenticated": True, "user": SCRAPER} if good else {"error": "unknown"}
        else:
            allowed = sent["spec"]["nonResourceAttributes"] == {"path": "/metrics", "verb": "get"}
            status = {"allowed": allowed, "reason": "" if allowed else "no rule"}
        return bytearray(msgspec.json.encode({**sent, "status": status}))


class Slow(Reviewer):
    """It answers when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may = asyncio.Event()
        self.waiting = 0

    async def send_json(
        self, method: str, path: str, body: bytes, *, content_type: str = "application/json"
    ) -> bytearray:
        self.waiting += 1
        await self.may.wait()
        return await super().send_json(method, path, body, content_type=content_type)


async def test_strangers_do_not_keep_known_clients_waiting() -> None:
    server, clock = Slow(), Clock()
    server.may.set()
    access = DelegatedAccess(server, clock=clock)
    known: Any = {"authorization": "Bearer good", "certificate": None}
    await access.demand("/metrics", "GET", **known)
    server.may.clear()
    clock.now += CACHE_S
    strangers = [f"Bearer garbage-{number}" for number in range(60)] + [""] * 60
    asking = [
        asyncio.ensure_future(access.demand("/metrics", "GET", authorization=text, certificate=None))
        for text in strangers
    ]
    done, _ = await asyncio.wait(asking, timeout=5, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.sleep(0)
    refused = [task for task in asking if task.done()]
    assert len(refused) == len(strangers) - STRANGERS
    assert {task.exception().status for task in refused} == {429}  # type: ignore[union-attr]
    again = asyncio.ensure_future(access.demand("/metrics", "GET", **known))
    while server.waiting < STRANGERS + 3:  # two questions before, and the first of this
        await asyncio.sleep(0)
    server.may.set()
    assert (await again).name == SCRAPER["username"]
    assert done
    assert all(isinstance(end, AccessRefusedError) for end in await asyncio.gather(*asking, return_exceptions=True))
    with pytest.raises(AccessRefusedError) as turned:
        await access.demand("/statusz", "GET", authorization="", certificate=None)
    assert turned.value.status == 403, "there is room again"


def _demand(access: DelegatedAccess, path: str = "/metrics", **given: Any) -> str:
    given = {"authorization": "", "certificate": None, **given}
    return asyncio.run(access.demand(path, "GET", **given)).name


def _refused(access: DelegatedAccess, **given: Any) -> tuple[int, str]:
    with pytest.raises(AccessRefusedError) as refused:
        _demand(access, **given)
    return refused.value.status, str(refused.value)


def test_a_token_that_may() -> None:
    server = Reviewer()
    assert _demand(DelegatedAccess(server), authorization="Bearer good") == SCRAPER["username"]
    review, access = server.asked
    assert (review["kind"], review["apiVersion"]) == ("TokenReview", "authentication.k8s.io/v1")
    assert (access["kind"], access["apiVersion"]) == ("SubjectAccessReview", "authorization.k8s.io/v1")
    assert access["spec"] == {
        "nonResourceAttributes": {"path": "/metrics", "verb": "get"},
        "user": SCRAPER["username"],
        "uid": "7",
        "groups": ["mon"],
        "extra": {"pod": ["p-1"]},
    }


def test_clients_that_are_refused() -> None:
    access = DelegatedAccess(Reviewer())
    assert _refused(access, authorization="Bearer bad")[0] == 401
    assert _refused(access, authorization="Bearer " + "x" * 20_000)[0] == 401
    assert _refused(access, path="/statusz", authorization="Bearer good") == (
        403,
        f'Forbidden: user "{SCRAPER["username"]}" cannot get path "/statusz": no rule',
    )
    status, text = _refused(access, path="/statusz")
    assert (status, text) == (403, 'Forbidden: user "system:anonymous" cannot get path "/statusz": no rule')
    assert _refused(access, path="/statusz", authorization="Basic Z29vZA==")[0] == 403


def test_a_client_certificate() -> None:
    server = Reviewer()
    access = DelegatedAccess(server)
    subject = ((("organizationName", "ops"),), (("commonName", "ann"),))
    assert _demand(access, certificate={"subject": subject}, authorization="Bearer bad") == "ann"
    (asked,) = server.asked
    assert asked["spec"]["groups"] == ["ops", "system:authenticated"]
    assert _refused(access, certificate={"subject": subject[:1]})[0] == 401


def test_administrators_need_no_question() -> None:
    server = Reviewer()
    subject = ((("organizationName", "system:masters"),), (("commonName", "root"),))
    assert _demand(DelegatedAccess(server), "/statusz", certificate={"subject": subject}) == "root"
    assert server.asked == []


def test_answers_are_kept_for_a_while() -> None:
    server, clock = Reviewer(), Clock()
    access = DelegatedAccess(server, clock=clock)
    for _ in range(3):
        _demand(access, authorization="Bearer good")
        _refused(access, authorization="Bearer bad")
    assert [each["kind"] for each in server.asked] == ["TokenReview", "SubjectAccessReview", "TokenReview"]
    clock.now += CACHE_S
    _demand(access, authorization="Bearer good")
    assert len(server.asked) == 5


def test_an_api_server_in_trouble_lets_no_client_in_and_is_asked_again() -> None:
    server = Reviewer()
    access = DelegatedAccess(server)
    server.away = True
    assert _refused(access, authorization="Bearer good")[0] == 503
    server.away = False
    for garbage in (b'{"status": []}', b'{"status": {"authenticated": "perhaps", "allowed": []}}', b"<html>"):
        server.garbage = garbage
        assert _refused(access, authorization="Bearer good")[0] == 503
    server.garbage = b""
    assert _demand(access, authorization="Bearer good")


def test_a_flood_of_tokens_does_not_fill_the_memory() -> None:
    server = Reviewer()
    access = DelegatedAccess(server)

    async def flood() -> None:
        for number in range(CACHED + 50):
            with pytest.raises(AccessRefusedError):
                await access.demand("/metrics", "GET", authorization=f"Bearer {number}", certificate=None)

    asyncio.run(flood())
    _refused(access, authorization=f"Bearer {CACHED + 49}")
    assert len(server.asked) == CACHED + 50
    _refused(access, authorization="Bearer 0")
    assert len(server.asked) == CACHED + 51
