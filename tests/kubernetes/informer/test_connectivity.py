"""Log messages about the API server's loss and return. The answers are from kube-apiserver 1.20.2."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from kubeproxy.kubernetes.client.errors import AheadError, ExpiredError, ForbiddenError, UnreachableError
from kubeproxy.kubernetes.informer.connectivity import Connectivity

REFUSED = UnreachableError("https://10.2.0.2:6443/api/v1/services: connection refused", cause="refused")
EXPIRED = ExpiredError("an ERROR event 410: Expired: too old resource version: 360 (426)", cause="expired", status=410)
AHEAD = AheadError(
    "https://10.2.0.2:6443/api/v1/endpoints answered 504: Timeout: Too large resource version: 495, current: 428",
    cause="ahead",
)


def forbidden(resource: str, user: str = "system:serviceaccount:kube-system:kube-proxy") -> ForbiddenError:
    return ForbiddenError(
        f'{resource} is forbidden: User "{user}" cannot list resource "{resource}" in API group ""',
        cause="forbidden",
        status=403,
    )


@pytest.fixture
def logs() -> Iterator[list[Any]]:
    with capture_logs() as found:
        yield found


def in_step() -> Connectivity:
    contact = Connectivity(
        server="https://10.2.0.2:6443", clock=lambda: 20.0, optional="nodes", rights="bind system:node-proxier"
    )
    for resource in ("services", "endpointslices", "nodes"):
        contact.found(resource)
    return contact


def test_an_expired_version_is_no_outage(logs: list[Any]) -> None:
    contact = in_step()
    contact.broke("services")
    contact.failed("services", EXPIRED, since=10.0)
    contact.found("services")
    assert not contact.lost
    assert [line["log_level"] for line in logs] == ["info"]
    assert logs[0]["event"] == "watch version expired, listing again"


def test_a_version_that_expires_twice_is_an_outage(logs: list[Any]) -> None:
    contact = in_step()
    contact.failed("services", EXPIRED, since=10.0)
    contact.failed("services", EXPIRED, since=10.0)
    assert contact.lost
    assert logs[-1]["log_level"] == "warning"
    contact.found("services")
    contact.failed("services", EXPIRED, since=15.0)
    assert not contact.lost


def test_a_restart_in_the_middle_of_an_outage_is_one_outage(logs: list[Any]) -> None:
    contact = in_step()
    contact.failed("services", REFUSED, since=10.0)
    contact.failed("services", EXPIRED, since=10.0)
    contact.found("services")
    assert [line["event"] for line in logs] == [
        "API server lost, serving last state",
        "watch version expired, listing again",
        "API server back",
    ]
    assert logs[-1]["away_s"] == 10.0


def test_a_forbidden_node_is_not_logged_while_everything_is_forbidden(logs: list[Any]) -> None:
    """A starting server forbids everything until its RBAC rules are loaded; the node's request may be the first."""
    contact = in_step()
    for resource in ("services", "nodes"):
        contact.broke(resource)
    contact.failed("nodes", forbidden("nodes"), since=10.0)
    contact.failed("services", forbidden("services"), since=10.0)
    assert [line["event"] for line in logs] == ["API server lost, serving last state"]
    contact.found("services")
    contact.failed("nodes", forbidden("nodes"), since=10.0)
    assert "reading this node is forbidden" in logs[-1]["event"]
    assert "bind system:node-proxier" in logs[-1]["hint"]


def test_a_hint_at_rights_is_that_of_the_program(logs: list[Any]) -> None:
    for rights, end in (
        ("bind a role", "its RBAC rules are loaded; else bind a role"),
        ("", "its RBAC rules are loaded"),
    ):
        contact = Connectivity(server="https://10.2.0.2:6443", clock=lambda: 20.0, rights=rights)
        contact.failed("pods", forbidden("pods"), since=10.0)
        assert logs[-1]["hint"].endswith(end)


def test_warnings_carry_hints(logs: list[Any]) -> None:
    contact = in_step()
    contact.failed("services", forbidden("services", "system:anonymous"), since=10.0)
    assert "no credentials" in logs[-1]["hint"]
    contact.failed("endpointslices", AHEAD, since=10.0, called="endpoints")
    assert "restored from a backup" in logs[-1]["hint"]
    assert logs[-1]["resource"] == "endpoints"


def test_credentials_that_are_not_sent_over_http_are_explained(logs: list[Any]) -> None:
    contact = Connectivity(server="http://10.2.0.2:8080", clock=lambda: 20.0)
    contact.failed("services", forbidden("services", "system:anonymous"), since=10.0)
    assert "they are sent by https only" in logs[-1]["hint"]


def test_a_resource_that_was_never_listed_is_not_served_from_a_last_state(logs: list[Any]) -> None:
    """Services were listed, and the role lacks EndpointSlices: there is no last state, and the server is not lost."""
    contact = Connectivity(server="https://10.2.0.2:6443", clock=lambda: 20.0)
    contact.listed("services")
    contact.failed("endpointslices", forbidden("endpointslices"), since=10.0)
    assert [line["event"] for line in logs] == ["API server refuses, nothing listed yet"]
