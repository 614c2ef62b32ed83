"""The table of moves, line by line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kubeproxy.model import Address, Family, Frontend, Protocol
from kubeproxy.proxier.plan import ListenerState, Move, endpoints_of, next_move, plan
from tests.proxier.builders import destination, frontend_name, targets
from tests.support.doubles.data_plane import FakePortReserver

ANY = Address("0.0.0.0")
RULES = 7
"""The generation of the rules in force."""

WEB = Frontend(
    name=frontend_name("web"),
    protocol=Protocol.TCP,
    destinations=frozenset({destination("10.96.0.1:80")}),
    endpoints=targets("10.0.0.1:8080 10.0.0.2:8080"),
)
EMPTY = replace(WEB, endpoints=())
FEWER = replace(WEB, endpoints=targets("10.0.0.1:8080"))
ELSEWHERE = replace(WEB, destinations=frozenset({destination("10.96.0.2:80")}))
STICKY = replace(WEB, affinity_timeout_s=60)
OTHER_PROTOCOL = replace(WEB, protocol=Protocol.UDP)


def listener(
    *, confirmed: bool = True, told: Frontend | None = WEB, ruled: Frontend | None = WEB, ruled_at: int = RULES
) -> ListenerState:
    """What stands for WEB."""
    return ListenerState(
        protocol=Protocol.TCP,
        address=ANY,
        reservation=FakePortReserver().reserve(Protocol.TCP, ANY, 0),
        confirmed=confirmed,
        told=None if told is None else endpoints_of(told),
        ruled=ruled,
        ruled_at=ruled_at,
    )


STANDING = listener()
YET_UNKNOWN = RULES + 1


@pytest.mark.parametrize(
    ("wanted", "standing", "move"),
    [
        pytest.param(None, None, Move.REST, id="nothing wanted, nothing there"),
        pytest.param(WEB, None, Move.OPEN, id="new"),
        pytest.param(WEB, listener(confirmed=False, told=None, ruled=None), Move.LISTEN, id="never confirmed"),
        pytest.param(WEB, listener(confirmed=False), Move.LISTEN, id="lost by the data plane"),
        pytest.param(WEB, listener(ruled=None), Move.RULE, id="listens, not in the rules"),
        pytest.param(WEB, STANDING, Move.REST, id="as it should be"),
        pytest.param(FEWER, STANDING, Move.TELL, id="other endpoints"),
        pytest.param(STICKY, STANDING, Move.TELL, id="other affinity"),
        pytest.param(ELSEWHERE, STANDING, Move.RULE, id="other addresses: same listener"),
        pytest.param(EMPTY, STANDING, Move.RULE, id="no endpoints: first refuse"),
        pytest.param(
            EMPTY, listener(ruled=EMPTY, ruled_at=YET_UNKNOWN), Move.WAIT, id="the kernel does not refuse yet"
        ),
        pytest.param(EMPTY, listener(ruled=EMPTY), Move.TELL, id="the kernel refuses"),
        pytest.param(EMPTY, listener(told=EMPTY, ruled=EMPTY), Move.REST, id="all know that there is nobody"),
        pytest.param(
            replace(EMPTY, affinity_timeout_s=60),
            listener(told=EMPTY, ruled=EMPTY, ruled_at=YET_UNKNOWN),
            Move.TELL,
            id="nobody to be sticky to: no need to wait",
        ),
        pytest.param(WEB, listener(told=EMPTY, ruled=EMPTY), Move.TELL, id="somebody came: first tell"),
        pytest.param(WEB, listener(told=WEB, ruled=EMPTY), Move.RULE, id="then refuse no more"),
        pytest.param(None, STANDING, Move.UNRULE, id="unwanted: first out of the rules"),
        pytest.param(None, listener(ruled=None, ruled_at=YET_UNKNOWN), Move.WAIT, id="the kernel still leads there"),
        pytest.param(None, listener(ruled=None), Move.CLOSE, id="nobody leads there"),
        pytest.param(
            None, listener(confirmed=False, told=None, ruled=None, ruled_at=0), Move.CLOSE, id="never came to stand"
        ),
        pytest.param(WEB, listener(ruled=None, ruled_at=YET_UNKNOWN), Move.RULE, id="wanted again: same listener"),
        pytest.param(OTHER_PROTOCOL, STANDING, Move.UNRULE, id="other protocol: leaves"),
        pytest.param(OTHER_PROTOCOL, listener(ruled=None), Move.CLOSE, id="other protocol: closes, then opens anew"),
    ],
)
def test_next_move(wanted: Frontend | None, standing: ListenerState | None, move: Move) -> None:
    assert next_move(wanted, standing, address=ANY, applied=RULES) is move


def test_a_listener_elsewhere_than_we_bind_leaves() -> None:
    assert next_move(WEB, STANDING, address=Address("192.0.2.1"), applied=RULES) is Move.UNRULE


def test_only_those_named_are_looked_at_and_those_who_rest_are_not_named() -> None:
    other = replace(WEB, name=frontend_name("other"))
    resting = replace(WEB, name=frontend_name("resting"))
    found = plan(
        [WEB.name, resting.name],
        {WEB.name: WEB, other.name: other, resting.name: resting},
        {resting.name: replace(STANDING, told=endpoints_of(resting), ruled=resting)},
        bind={Family.IPV6: Address("2001:db8::1")},
        applied=RULES,
    )
    assert found.moves == {Move.OPEN: (WEB.name,)}
    assert found.of(Move.CLOSE) == ()
