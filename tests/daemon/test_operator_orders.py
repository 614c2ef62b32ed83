"""The orders of a person at the node: which are refused, and what the refusal says."""

from __future__ import annotations

import pytest

from kubeproxy.daemon.operator_orders import why_unknown
from kubeproxy.model import Address, Target


def target(text: str) -> Target:
    host, _, port = text.rpartition(":")
    return Target(Address(host.strip("[]")), int(port))


KNOWN = {target(it) for it in ("10.0.0.1:80", "10.0.0.1:8080", "10.0.0.2:80", "10.0.1.1:80", "[fd00::1]:80")}


@pytest.mark.parametrize("endpoint", ["10.0.0.2:80", "[fd00::1]:80"])
def test_an_endpoint_of_a_service_is_known(endpoint: str) -> None:
    assert why_unknown(target(endpoint), KNOWN) is None


@pytest.mark.parametrize(
    ("endpoint", "near"),
    [
        ("10.0.0.1:81", "10.0.0.1:80 or 10.0.0.1:8080 or 10.0.0.2:80"),
        ("10.0.0.9:80", "10.0.0.2:80 or 10.0.0.1:80 or 10.0.0.1:8080"),
        ("[fd00::2]:80", "[fd00::1]:80"),
    ],
)
def test_the_nearest_to_an_unknown_one_are_named(endpoint: str, near: str) -> None:
    reason = why_unknown(target(endpoint), KNOWN)
    assert reason is not None
    assert reason.startswith(f"no Service has the endpoint {endpoint}; did you mean {near}?")


def test_a_family_without_endpoints_has_none_to_name() -> None:
    assert why_unknown(target("[fd00::1]:80"), {target("10.0.0.1:80")}) == (
        "no Service has the endpoint [fd00::1]:80, or any other of IPv6"
    )
