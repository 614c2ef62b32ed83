"""The balancer's preview equals its later picks."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.dataplane.balancing.balancer import Balancer
from kubeproxy.model import Address, Target

TARGETS = tuple(Target(Address(f"10.0.0.{number}"), 80) for number in range(6))
CLIENTS = ("10.9.0.1", "10.9.0.2", "10.9.0.3")

actions = st.one_of(
    st.tuples(st.just("pick"), st.sampled_from(CLIENTS)),
    st.tuples(st.just("failed"), st.sampled_from(TARGETS)),
    st.tuples(st.just("answered"), st.sampled_from(TARGETS)),
    st.tuples(st.just("update"), st.sets(st.sampled_from(TARGETS)).map(lambda some: tuple(sorted(some)))),
    st.tuples(st.just("wait"), st.floats(0, 40)),
)


@given(
    members=st.sets(st.sampled_from(TARGETS)).map(lambda some: tuple(sorted(some))),
    affinity=st.sampled_from([None, 30]),
    history=st.lists(actions, max_size=25),
    client=st.sampled_from(CLIENTS),
)
def test_the_preview_is_the_order_of_picks(
    members: tuple[Target, ...], affinity: int | None, history: list[tuple[str, Any]], client: str
) -> None:
    balancer, now = Balancer(rng=random.Random(1)), 100.0
    balancer.update(members, affinity)
    for action, what in history:
        if action == "pick":
            balancer.pick(what, now)
        elif action == "failed":
            balancer.failed(what, now, "refused")
        elif action == "answered":
            balancer.answered(what)
        elif action == "update":
            balancer.update(what, affinity)
        else:
            now += what
    ejected = {target: (it.until, it.probing, it.failures) for target, it in balancer.ejected.items()}
    before = (tuple(balancer.endpoints), ejected, balancer.affinity_entries)
    bound, order = balancer.preview(client, now, limit=100)
    ejected = {target: (it.until, it.probing, it.failures) for target, it in balancer.ejected.items()}
    assert (tuple(balancer.endpoints), ejected, balancer.affinity_entries) == before
    assert bound is None or affinity is not None
    tried: list[Target] = []
    while (target := balancer.pick(client, now, tried)) is not None:
        tried.append(target)
    assert order == tuple(tried)
    assert balancer.preview(client, now, limit=2)[1] == balancer.preview(client, now, limit=100)[1][:2]


def test_the_preview_has_the_binding_until_it_expires() -> None:
    balancer = Balancer(rng=random.Random(1))
    balancer.update(TARGETS[:3], 30)
    mine = balancer.pick("10.9.0.1", 100.0)
    assert balancer.preview("10.9.0.1", 129.0, limit=9) == (mine, balancer.preview("10.9.0.1", 129.0, limit=9)[1])
    assert balancer.preview("10.9.0.1", 129.0, limit=9)[1][0] == mine
    assert balancer.preview("10.9.0.1", 130.0, limit=9)[0] is None
    assert balancer.preview("10.9.0.2", 100.0, limit=9)[0] is None
