"""What two instances serve, compared."""

from __future__ import annotations

import pytest

from kubeproxy.daemon.takeover.protocol import Accepted
from kubeproxy.daemon.takeover.serves_enough import Offer, fewer_services, in_message, other_sources
from kubeproxy.dataplane.workers.takeover_messages import LINE_BYTES, encode

ONE, TWO = "manifests /one", "manifests /two"


@pytest.mark.parametrize(
    ("owner", "own", "allowed"),
    [
        ((ONE,), (ONE,), True),
        ((ONE, TWO), (TWO, ONE), True),
        ((ONE,), (ONE, TWO), True),
        ((ONE, TWO), (ONE,), False),
        ((ONE,), (TWO,), False),
        ((), (TWO,), True),
    ],
    ids=["the same", "in another order", "more", "fewer", "others", "unknown"],
)
def test_sources(owner: tuple[str, ...], own: tuple[str, ...], allowed: bool) -> None:
    reason = other_sources(Offer(5, in_message(owner)), Offer(0, own))
    assert (reason is None) == allowed
    if reason is not None:
        assert reason.startswith("serves from manifests /")


@pytest.mark.parametrize(
    ("owner", "own", "reason"),
    [
        (-1, 0, None),
        (0, 0, None),
        (10, 5, None),
        (10, 4, "serves 10 Services, and this process would serve 4"),
        (1, 0, "serves 1 Service, and this process would serve none"),
    ],
)
def test_the_number_of_services(owner: int, own: int, reason: str | None) -> None:
    assert fewer_services(Offer(owner, ()), Offer(own, ())) == reason


def test_many_sources_fit_into_a_message() -> None:
    many = tuple(f"manifests /a/rather/long/path/{number}" for number in range(1000))
    assert len(encode(Accepted(1_000_000, in_message(many)))) < LINE_BYTES
    assert other_sources(Offer(1, in_message(many)), Offer(1, many)) is None
    assert other_sources(Offer(1, in_message(many)), Offer(1, many[1:])) is not None
