"""Requests that are answered: findings 12 (pages open to the network) and 13 (DNS rebinding) of the attack review."""

from __future__ import annotations

import pytest

from kubeproxy.observability.http.access import OPEN_PAGES, Access, host_name, is_loopback

NODE = Access(names=frozenset({"node-1"}))
PUBLIC = Access(names=frozenset({"node-1"}), public=True)
PAGES = ["/statusz", "/statusz.json", "/trace", "/configz", "/debug/{path}", None]


def status(access: Access, page: str | None, *hosts: str, from_loopback: bool = False) -> int:
    refusal = access.refusal(page, hosts, from_loopback=from_loopback)
    return 200 if refusal is None else refusal.status


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_served_to_this_host_only(page: str | None) -> None:
    assert status(NODE, page, "127.0.0.1:10249", from_loopback=True) == 200
    assert status(NODE, page, "192.0.2.1:10249") == 403
    assert status(PUBLIC, page, "192.0.2.1:10249") == 200


@pytest.mark.parametrize("page", sorted(OPEN_PAGES))
def test_metrics_are_served_to_other_hosts_by_any_name(page: str) -> None:
    assert status(NODE, page, "metrics.example.com:10249") == 200
    assert status(NODE, page) == 200


@pytest.mark.parametrize("page", [*PAGES, "/metrics", "/healthz"])
@pytest.mark.parametrize("host", ["evil.example", "evil.example:10249", "localhost.evil.example", "", "a b", "[::1"])
def test_a_website_reads_no_page_of_this_host(page: str | None, host: str) -> None:
    assert status(NODE, page, host, from_loopback=True) == 421
    assert status(NODE, page, "localhost", host, from_loopback=True) == 421, "one of two is enough"


@pytest.mark.parametrize("page", PAGES)
def test_a_website_reads_no_public_page(page: str | None) -> None:
    assert status(PUBLIC, page, "evil.example") == 421


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1:10249",
        "[::1]:10249",
        "localhost",
        "LOCALHOST:1",
        "localhost.",
        "Node-1:10249",
        "10.0.0.9",
    ],
)
def test_names_of_this_node(host: str) -> None:
    assert status(NODE, "/statusz", host, from_loopback=True) == 200


def test_a_client_without_the_header_is_no_browser() -> None:
    assert status(NODE, "/statusz", from_loopback=True) == 200


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("a.example:80", "a.example"),
        (" A.Example. ", "a.example"),
        ("[2001:DB8::1]:80", "2001:db8::1"),
        ("[::ffff:127.0.0.1]", "::ffff:127.0.0.1"),
        ("[::1", None),
        ("::1", None),
        ("[localhost]", None),
        ("a:b", None),
        ("a:123456", None),
        ("user@localhost", None),
        ("localhost/", None),
        (".", None),
        ("", None),
    ],
)
def test_host_names_of_the_header(value: str, name: str | None) -> None:
    assert host_name(value) == name


@pytest.mark.parametrize(
    ("address", "answer"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:192.0.2.1", False),
        ("192.0.2.1", False),
        ("fe80::1%eth0", False),
        ("", False),
        ("localhost", False),
    ],
)
def test_loopback(address: str, answer: bool) -> None:
    assert is_loopback(address) is answer
