"""`kubeproxy.rescue.kernel_path_ejections`: when an endpoint leaves and comes back."""

from __future__ import annotations

from itertools import pairwise

import pytest

from kubeproxy.model import Address, Protocol, Target
from kubeproxy.rescue.kernel_path_ejections import (
    FIRST_S,
    FLAP_LIMIT_S,
    FLAP_S,
    LIMIT_S,
    UDP_FIRST_S,
    Endpoint,
    KernelPathEjections,
)

POD = Endpoint(Protocol.TCP, Target(Address("10.0.0.1"), 80))
OTHER = Endpoint(Protocol.TCP, Target(Address("10.0.0.2"), 80))
DNS = Endpoint(Protocol.UDP, Target(Address("10.0.0.1"), 53))


def fail(ejections: KernelPathEjections, now: float, endpoint: Endpoint = POD) -> bool:
    return ejections.failed(endpoint, now, reason="refused", noticed_by="rescue")


def test_many_failures_eject_once_and_keep_the_first_reason() -> None:
    ejections = KernelPathEjections()
    assert fail(ejections, 100.0)
    assert not ejections.failed(POD, 100.01, reason="silent", noticed_by="worker")
    assert list(ejections.ejected) == [POD]
    assert (ejections.ejected[POD].reason, ejections.ejected[POD].noticed_by) == ("refused", "rescue")
    assert ejections.ejected[POD].until == pytest.approx(100.0 + FIRST_S)


def test_dials_become_rarer_up_to_a_limit() -> None:
    ejections = KernelPathEjections()
    now = 100.0
    fail(ejections, now)
    pauses = []
    for _ in range(10):
        pauses.append(ejections.ejected[POD].until - now)
        now = ejections.ejected[POD].until
        assert list(ejections.due(now)) == [POD]
        ejections.dialed(POD, now)
        assert not ejections.due(now), "one dial at a time"
        ejections.unanswered(POD, now)
    assert pauses[0] == pytest.approx(FIRST_S)
    assert all(later == pytest.approx(min(2 * before, LIMIT_S)) for before, later in pairwise(pauses))


def test_an_answer_brings_it_back() -> None:
    ejections = KernelPathEjections()
    fail(ejections, 100.0)
    assert ejections.answered(POD, 100.2)
    assert not ejections.ejected
    assert not ejections.answered(POD, 100.3)


def test_an_endpoint_that_flaps_stays_away_longer_each_time() -> None:
    """This node reaches it, and the client does not."""
    ejections = KernelPathEjections()
    now, ejected_s, rounds = 100.0, 0.0, 0
    while now < 100.0 + 3600:
        assert fail(ejections, now)
        rounds += 1
        assert ejections.ejected[POD].until - now >= min(2 * ejected_s, FLAP_LIMIT_S) - 1e-6
        ejected_s, now = ejections.ejected[POD].until - now, ejections.ejected[POD].until
        assert list(ejections.due(now)) == [POD]
        ejections.answered(POD, now)
        now += 0.3  # the next client finds it silent
    assert ejected_s == pytest.approx(FLAP_LIMIT_S)
    assert rounds < 30


def test_one_that_has_been_well_for_long_begins_anew() -> None:
    ejections = KernelPathEjections()
    fail(ejections, 100.0)
    ejections.answered(POD, 100.1)
    fail(ejections, 100.1 + FLAP_S + 1)
    assert ejections.ejected[POD].delay_s == FIRST_S


def test_udp_comes_back_by_time() -> None:
    ejections = KernelPathEjections()
    fail(ejections, 100.0, DNS)
    assert not ejections.due(100.0 + UDP_FIRST_S - 0.01)
    assert list(ejections.due(100.0 + UDP_FIRST_S)) == [DNS]


def test_endpoints_without_a_service_are_forgotten() -> None:
    ejections = KernelPathEjections()
    fail(ejections, 100.0)
    fail(ejections, 100.0, OTHER)
    assert ejections.keep({OTHER}, 100.0)
    assert list(ejections.ejected) == [OTHER]
    assert not ejections.keep({OTHER}, 100.0)
    fail(ejections, 100.5)
    assert ejections.ejected[POD].delay_s == FIRST_S, "a new pod of the same address"


def test_a_dial_without_a_result_is_made_again() -> None:
    ejections = KernelPathEjections()
    fail(ejections, 100.0)
    ejections.dialed(POD, 101.0)
    assert not ejections.due(101.5)
    assert list(ejections.due(104.0)) == [POD]


def test_what_cannot_be_dialed_yet_stays_due() -> None:
    """Thousands at once: the last of them waits for the dials before it, and for nothing else."""
    ejections = KernelPathEjections()
    pods = [Endpoint(Protocol.TCP, Target(Address(f"10.0.1.{number}"), 80)) for number in range(100)]
    for number, pod in enumerate(pods):
        fail(ejections, 100.0 + (number * 7 % 100) / 1000, pod)
    found: list[Endpoint] = []
    while due := list(ejections.due(101.0)):
        ejections.dialed(due[0], 101.0)
        found.append(due[0])
    assert found == sorted(pods, key=lambda pod: pods.index(pod) * 7 % 100), "the longest due first"


def test_a_tenant_is_known_until_the_endpoint_is_back() -> None:
    ejections = KernelPathEjections()
    ejections.failed(POD, 100.0, reason="silent", noticed_by="rescue", tenants=frozenset({"shop"}))
    assert ejections.due(101.0) == {POD: frozenset({"shop"})}
