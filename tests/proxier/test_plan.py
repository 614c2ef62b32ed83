"""The table of moves, line by line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kubeproxy.dataplane.messages import Listen
from kubeproxy.model import Address, Family, Frontend, Origin, Protocol
from kubeproxy.proxier.plan import ListenerState, Move, endpoints_of, next_move, plan
from kubeproxy.proxier.shared_ports import SharedPort
from tests.proxier.builders import destination, frontend_name, targets
from tests.support.doubles.data_plane import FakePortReserver

ANY = Address("0.0.0.0")
RULES = 7
"""The generation of the rules in force."""

WEB = Frontend(
    name=frontend_name("web"),
    protocol=Protocol.TCP,
    destinations={destination("10.96.0.1:80"): Origin.ANYWHERE},
    endpoints=targets("10.0.0.1:8080 10.0.0.2:8080"),
)
EMPTY = replace(WEB, endpoints=())
FEWER = replace(WEB, endpoints=targets("10.0.0.1:8080"))
ELSEWHERE = replace(WEB, destinations={destination("10.96.0.2:80"): Origin.ANYWHERE})
STICKY = replace(WEB, affinity_timeout_s=60)
OTHER_PROTOCOL = replace(WEB, protocol=Protocol.UDP)


def listener(
    *,
    confirmed: bool = True,
    sent: Frontend | None = WEB,
    in_rules: Frontend | None = WEB,
    port_in_rules: int = 0,
    rules_generation: int = RULES,
) -> ListenerState:
    """A listener of WEB."""
    reservation = FakePortReserver().reserve(Protocol.TCP, ANY, 0)
    return ListenerState(
        protocol=Protocol.TCP,
        address=ANY,
        reservation=reservation,
        confirmed=confirmed,
        sent=None if sent is None else endpoints_of(sent),
        in_rules=in_rules,
        port_in_rules=port_in_rules or reservation.port,
        rules_generation=rules_generation,
    )


STANDING = listener()
YET_UNKNOWN = RULES + 1


@pytest.mark.parametrize(
    ("wanted", "standing", "move"),
    [
        pytest.param(None, None, Move.REST, id="nothing wanted, nothing there"),
        pytest.param(WEB, None, Move.OPEN, id="new"),
        pytest.param(WEB, listener(confirmed=False, sent=None, in_rules=None), Move.LISTEN, id="never confirmed"),
        pytest.param(WEB, listener(confirmed=False), Move.LISTEN, id="lost by the data plane"),
        pytest.param(WEB, listener(port_in_rules=7), Move.ADD_RULE, id="at another port"),
        pytest.param(WEB, listener(in_rules=None), Move.ADD_RULE, id="listens, not in the rules"),
        pytest.param(WEB, STANDING, Move.REST, id="as it should be"),
        pytest.param(FEWER, STANDING, Move.UPDATE, id="other endpoints"),
        pytest.param(STICKY, STANDING, Move.UPDATE, id="other affinity"),
        pytest.param(ELSEWHERE, STANDING, Move.ADD_RULE, id="other addresses: same listener"),
        pytest.param(EMPTY, STANDING, Move.ADD_RULE, id="no endpoints: first refuse"),
        pytest.param(
            EMPTY,
            listener(in_rules=EMPTY, rules_generation=YET_UNKNOWN),
            Move.WAIT,
            id="the kernel does not refuse yet",
        ),
        pytest.param(EMPTY, listener(in_rules=EMPTY), Move.UPDATE, id="the kernel refuses"),
        pytest.param(EMPTY, listener(sent=EMPTY, in_rules=EMPTY), Move.REST, id="no endpoints, and all is updated"),
        pytest.param(
            replace(EMPTY, affinity_timeout_s=60),
            listener(sent=EMPTY, in_rules=EMPTY, rules_generation=YET_UNKNOWN),
            Move.UPDATE,
            id="affinity without endpoints: no need to wait",
        ),
        pytest.param(WEB, listener(sent=EMPTY, in_rules=EMPTY), Move.UPDATE, id="new endpoints: first update"),
        pytest.param(WEB, listener(sent=WEB, in_rules=EMPTY), Move.ADD_RULE, id="then refuse no more"),
        pytest.param(None, STANDING, Move.REMOVE_RULE, id="unwanted: first out of the rules"),
        pytest.param(
            None, listener(in_rules=None, rules_generation=YET_UNKNOWN), Move.WAIT, id="the kernel still leads there"
        ),
        pytest.param(None, listener(in_rules=None), Move.CLOSE, id="no rule redirects there"),
        pytest.param(
            None,
            listener(confirmed=False, sent=None, in_rules=None, rules_generation=0),
            Move.CLOSE,
            id="never came to stand",
        ),
        pytest.param(
            WEB, listener(in_rules=None, rules_generation=YET_UNKNOWN), Move.ADD_RULE, id="wanted again: same listener"
        ),
        pytest.param(OTHER_PROTOCOL, STANDING, Move.REMOVE_RULE, id="other protocol: leaves"),
        pytest.param(OTHER_PROTOCOL, listener(in_rules=None), Move.CLOSE, id="other protocol: closes, then opens anew"),
    ],
)
def test_next_move(wanted: Frontend | None, standing: ListenerState | None, move: Move) -> None:
    assert next_move(wanted, standing, address=ANY, applied=RULES) is move


def test_a_listener_at_another_address_than_bind_is_closed() -> None:
    assert next_move(WEB, STANDING, address=Address("192.0.2.1"), applied=RULES) is Move.REMOVE_RULE


def test_a_frontend_on_a_shared_port_is_refused_before_its_new_addresses_are_served_by_nobody() -> None:
    name = frontend_name("shared")
    port = SharedPort(Listen(name, Protocol.TCP, ANY, STANDING.reservation.port, shared=True), STANDING.reservation)
    sharing = replace(STANDING, shared=port, joined=WEB.destinations.keys())
    assert next_move(ELSEWHERE, sharing, address=ANY, applied=RULES) is Move.LISTEN
    assert next_move(replace(ELSEWHERE, endpoints=()), sharing, address=ANY, applied=RULES) is Move.ADD_RULE


def test_only_named_frontends_are_planned_and_resting_ones_have_no_move() -> None:
    other = replace(WEB, name=frontend_name("other"))
    resting = replace(WEB, name=frontend_name("resting"))
    found = plan(
        [WEB.name, resting.name],
        {WEB.name: WEB, other.name: other, resting.name: resting},
        {resting.name: replace(STANDING, sent=endpoints_of(resting), in_rules=resting)},
        bind={Family.IPV6: Address("2001:db8::1")},
        applied=RULES,
    )
    assert found.moves == {Move.OPEN: (WEB.name,)}
    assert found.of(Move.CLOSE) == ()
