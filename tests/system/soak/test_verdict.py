"""An explanation holds only for its client, its object and its moment."""

from __future__ import annotations

import math

import pytest

from kubeproxy.model import Scheduler
from tests.system.soak.clients import Outcome
from tests.system.soak.event_record import Chronicle, Kill, Policy, Retired, Span, State
from tests.system.soak.verdict import BACK_S, LATE_S, LIVE_S, Verdict, slow_repairs, tally

GRACE_S = 5.0


@pytest.fixture
def chronicle() -> Chronicle:
    """A record with services that never change."""
    return Chronicle(
        services={
            "web": [State(0.0, (0, 2))],
            "guest-1": [State(0.0, (2,))],
            "names": [State(0.0, (0, 1))],
        },
        policies=[Policy(0.0, "userspace")],
    )


@pytest.fixture
def kernel(chronicle: Chronicle) -> Chronicle:
    """The same with the kernel path."""
    chronicle.policies = [Policy(0.0, "kernel")]
    return chronicle


def failed(place: str = "web", *, began: float = 100.0, ended: float = 100.1, **more: object) -> Outcome:
    """A client after a reset of its connection."""
    return Outcome("client", "short", place, began, ended, port=11000, error="ConnectionResetError()")._replace(**more)  # type: ignore[arg-type]


def answered(pod: int, place: str = "web", *, began: float = 100.0, ended: float = 100.1) -> Outcome:
    """A client that got an answer."""
    return Outcome("client", "short", place, began, ended, port=11000, pod=pod)


def verdict(chronicle: Chronicle, seen: Outcome) -> str | None:
    """The verdict about one outcome."""
    return Verdict(chronicle, grace_s=GRACE_S).of(seen)


def test_a_failure_that_nothing_explains(chronicle: Chronicle) -> None:
    assert verdict(chronicle, failed()) is None
    result = tally(Verdict(chronicle, grace_s=GRACE_S), [failed(), answered(0)])
    assert (result.unexplained, result.right["short"]) == ([failed()], 1)


def test_wrong_bytes_are_never_explained(chronicle: Chronicle) -> None:
    chronicle.faults.append(Span(100.05, "kill", "2", 101.0))
    chronicle.robbed.append(Span(99.0, "robbed", "", 101.0))
    assert verdict(chronicle, failed()) is not None
    assert verdict(chronicle, failed(error="ValueError('other bytes came back')")) is None
    assert verdict(chronicle, failed(error="ValueError('7 bytes too many came back')")) is None


def test_only_an_endpoint_may_answer(chronicle: Chronicle) -> None:
    chronicle.services["web"].append(State(110.0, (3,)))
    assert verdict(chronicle, answered(0)) == ""
    assert verdict(chronicle, answered(1)) is None
    assert verdict(chronicle, answered(3)) is None, "not yet"
    assert verdict(chronicle, answered(0, began=110.0 + LIVE_S - 1, ended=113.0)) == "", "for a moment still"
    late = 110.0 + LIVE_S + 1
    assert verdict(chronicle, answered(0, began=late, ended=late)) is None
    chronicle.blind.append(Span(109.0, "refuse", "api", 130.0))
    assert verdict(chronicle, answered(0, began=late, ended=late)) == "", "no process could know"
    late = 130.0 + BACK_S + 1
    assert verdict(chronicle, answered(0, began=late, ended=late)) is None


def test_a_process_that_is_stopped_stays_with_what_it_knew(chronicle: Chronicle) -> None:
    """It was about to learn of a change when it was stopped."""
    chronicle.services["web"].append(State(105.0, (3,)))
    chronicle.blind.append(Span(100.0, "refuse", "api", 106.0))
    chronicle.blind.append(Span(106.0 + BACK_S - LIVE_S + 1, "the control process was stopped", "", 115.0))
    at = 106.0 + BACK_S + 0.5
    assert verdict(chronicle, answered(0, began=at, ended=at)) == ""
    chronicle.blind.pop()
    assert verdict(chronicle, answered(0, began=at, ended=at)) is None


@pytest.mark.parametrize("pods", [None, ()])
def test_a_service_that_is_not_there_or_empty(chronicle: Chronicle, pods: tuple[int, ...] | None) -> None:
    chronicle.services["guest-1"] += [State(99.0, pods), State(101.0, (2,))]
    assert verdict(chronicle, failed("guest-1"))
    assert verdict(chronicle, failed("guest-1", began=101.0 + LIVE_S - 1, ended=104.0))
    late = 101.0 + LIVE_S + 1
    assert verdict(chronicle, failed("guest-1", began=late, ended=late)) is None
    assert verdict(chronicle, failed("guest-1", began=98.0, ended=98.9)) is None
    assert verdict(chronicle, failed("web")) is None


def test_a_backend_that_was_killed(chronicle: Chronicle) -> None:
    chronicle.faults.append(Span(100.05, "kill", "2", 104.0))
    assert verdict(chronicle, failed()) == "the backend was killed"
    slow = failed(began=100.5, ended=100.6)
    assert verdict(chronicle, slow) is None
    chronicle.faults[0].done = 100.55
    assert verdict(chronicle, slow) == "the backend was killed"
    chronicle.faults[0].done = 0.0
    assert verdict(chronicle, failed(pod=0)) is None, "it spoke with another"
    assert verdict(chronicle, failed(error="ConnectionRefusedError()")) is None, "it was not even let in"
    assert verdict(chronicle, failed(began=100.3, ended=100.4)) is None, "others are there"
    assert verdict(chronicle, failed("guest-1", began=102.0, ended=103.0)) == "all endpoints of the service were dead"


def test_a_worker_that_was_killed(chronicle: Chronicle) -> None:
    chronicle.kills.append(Kill(100.02, 100.06, frozenset({("client", 11000)})))
    assert verdict(chronicle, failed()) == "its worker was killed"
    assert verdict(chronicle, failed(began=99.0, host="node")) is None
    assert verdict(chronicle, failed(began=99.0, port=11001)) is None
    assert verdict(chronicle, failed(port=11001, began=100.04)) is not None, "it waited to be accepted"
    assert verdict(chronicle, failed(began=100.5, ended=100.6)) is None
    waited = failed(port=11001, began=98.0)
    assert verdict(chronicle, waited) is None, "it was there, and not listed"
    chronicle.gaps.append(Span(97.0, "stop and start", "", 99.5))
    assert verdict(chronicle, waited), "its next attempt came while the worker was stopped"
    assert verdict(chronicle, waited._replace(pod=0)) is None


def test_a_connection_open_longer_than_the_grace_period(chronicle: Chronicle) -> None:
    chronicle.retired.append(Retired(90.0, 90.5, 1, signalled=False, ended=95.6))
    cut = failed(began=80.0, ended=95.7)
    assert verdict(chronicle, cut)
    assert verdict(chronicle, cut._replace(began=93.0)) is None, "the rules led elsewhere by then"
    assert verdict(chronicle, cut._replace(ended=93.0)) is None, "too early"
    chronicle.retired[0].ended = 92.0
    assert verdict(chronicle, cut._replace(ended=92.1)) is None, "it did not wait"
    chronicle.retired[0].signalled = True
    assert verdict(chronicle, cut._replace(heard=80.1, ended=92.1)) is None, "it did not wait for those it had"
    assert verdict(chronicle, cut._replace(heard=90.1, ended=92.1)), "it came after the order to end"


def test_a_client_notices_a_missing_way_at_its_next_attempt(chronicle: Chronicle) -> None:
    chronicle.robbed.append(Span(100.0, "the rules were removed", "", 104.0))
    cut = failed(began=98.0, heard=98.1, kind="long", pod=2)
    assert verdict(chronicle, cut._replace(ended=107.9)), "it pauses up to four seconds after four of trying"
    assert verdict(chronicle, cut._replace(ended=110.0)) is None
    assert verdict(chronicle, cut._replace(began=103.5, ended=104.9)), "it pauses half a second"
    assert verdict(chronicle, cut._replace(began=103.5, ended=106.0)) is None
    chronicle.faults.append(Span(102.0, "kill", "2", 103.0))
    chronicle.robbed[0].begin = 101.9
    assert verdict(chronicle, cut._replace(ended=108.5)) == "the backend was killed"


def test_rules_that_are_not_repaired(chronicle: Chronicle) -> None:
    chronicle.robbed.append(Span(100.0, "the rules were removed", "", 110.0))
    assert slow_repairs(chronicle)
    chronicle.blind.append(Span(90.0, "silence", "api", 120.0))
    assert slow_repairs(chronicle), "that needs no API server"
    chronicle.blind.append(Span(99.0, "no control process", "", 109.0))
    assert slow_repairs(chronicle) == []


def test_an_answer_that_is_late(chronicle: Chronicle) -> None:
    late = answered(0, ended=100.0 + LATE_S + 1)
    assert verdict(chronicle, late) is None
    chronicle.gaps.append(Span(90.0, "stop and start", "", 100.5))
    assert verdict(chronicle, late) == "late: stop and start"
    assert verdict(chronicle, failed()) is None, "it may be late, but not fail"
    assert verdict(chronicle, late._replace(ended=112.0)) is None, "the client could try again long before"
    chronicle.gaps.append(Span(104.0, "stop and start", "", 105.0))
    assert verdict(chronicle, late._replace(ended=112.0)), "every pause is twice as long as the one before"


def test_an_endpoint_that_is_silent_delays_those_that_it_has_answered_before(chronicle: Chronicle) -> None:
    chronicle.faults.append(Span(100.05, "silence", "2", 106.0))
    assert verdict(chronicle, answered(2, ended=107.0)) == "late: the backend was silent"
    assert verdict(chronicle, answered(0, ended=107.0)) is None, "another is tried beside it"


def test_datagrams_are_lost_only_while_there_is_no_way(chronicle: Chronicle) -> None:
    lost = failed("names", ended=112.0, heard=111.0, kind="udp")
    chronicle.faults.append(Span(100.05, "kill", "1", 104.0))
    assert verdict(chronicle, lost) is None
    chronicle.gaps.append(Span(90.0, "stop and start", "", 105.0))
    assert verdict(chronicle, lost) is None, "it is over for long"
    chronicle.gaps[0].end = math.inf
    assert verdict(chronicle, lost)


def test_datagrams_are_lost_for_one_reason_after_the_other(kernel: Chronicle) -> None:
    lost = failed("names", ended=112.0, heard=111.0, kind="udp")
    kernel.gaps.append(Span(99.0, "stop and start", "", 104.0))
    assert verdict(kernel, lost) is None
    kernel.unforwarded.append(Span(106.0, "the node did not forward", "", 109.0))
    assert verdict(kernel, lost) == "one reason after the other, and datagrams do not wait"
    assert verdict(kernel, lost._replace(host="node")) is None, "its packets are not forwarded"
    kernel.faults.append(Span(106.0, "kill", "1", 110.0))
    assert verdict(kernel, lost._replace(host="node")) is None, "the rescue hides it"
    kernel.unattended.append(Span(105.0, "stop control", "", 108.5))
    assert verdict(kernel, lost._replace(host="node")) == "one reason after the other, and datagrams do not wait"
    kernel.gaps.clear()
    assert verdict(kernel, lost) is None, "for the first seconds there is none"


# The kernel path.

REFUSED = "ConnectionRefusedError()"


@pytest.mark.parametrize("error", [REFUSED, "OSError(113, 'No route to host')"])
def test_a_refusal_reaches_a_client_only_without_the_rescue(kernel: Chronicle, error: str) -> None:
    refused = failed(error=error)
    kernel.faults.append(Span(99.0, "refuse", "2", 110.0))
    assert verdict(kernel, refused) is None, "the rescue hides it"
    kernel.inert.append(Span(99.5, "kill rescue", "", 100.5))
    assert verdict(kernel, refused) == "an endpoint was dead, and the rescue did not work (kill rescue)"
    assert verdict(kernel, refused._replace(began=101.1, ended=101.1)) is None, "the rescue works again"
    assert verdict(kernel, refused._replace(began=99.1, ended=99.2)) is None, "it still worked"
    assert verdict(kernel, refused._replace(path="userspace")) is None, "a worker hides it"
    kernel.faults[0].what = "silence"
    assert verdict(kernel, refused) is None, "what is silent does not refuse"
    kernel.faults[0].end = 99.2
    kernel.faults[0].what = "refuse"
    assert verdict(kernel, refused) is None, "no endpoint was dead"


def test_without_a_kernel_path_the_rescue_explains_nothing(chronicle: Chronicle) -> None:
    chronicle.faults.append(Span(99.0, "refuse", "2", 110.0))
    chronicle.inert.append(Span(99.5, "kill rescue", "", 100.5))
    assert verdict(chronicle, failed(error=REFUSED)) is None


def test_no_process_is_needed_by_a_connection_of_the_kernel_path(kernel: Chronicle) -> None:
    kernel.kills.append(Kill(100.02, 100.06, frozenset({("client", 11000)})))
    kernel.retired.append(Retired(90.0, 90.5, 1, signalled=False, ended=100.0))
    assert verdict(kernel, failed()) is None
    assert verdict(kernel, failed(began=80.0, heard=80.1, pod=0, path="kernel")) is None
    kernel.policies.insert(0, Policy(-1.0, "userspace"))
    kernel.policies[1] = Policy(85.0, "kernel")
    moved = failed(began=80.0, heard=80.1, pod=0, path="userspace")
    assert verdict(kernel, moved) == "its worker was killed", "it has stayed where it was"


def test_a_change_of_the_path_cuts_nothing(kernel: Chronicle) -> None:
    kernel.policies.append(Policy(100.0, "userspace"))
    for path in ("kernel", "userspace"):
        assert verdict(kernel, failed(kind="long", began=90.0, heard=90.1, pod=0, path=path)) is None


def test_a_client_takes_the_path_that_is_set(kernel: Chronicle) -> None:
    assert verdict(kernel, answered(0)._replace(path="kernel")) == ""
    astray = answered(0)._replace(path="userspace")
    assert verdict(kernel, astray) is None
    assert verdict(kernel, answered(0)) == "", "unknown"
    assert verdict(kernel, answered(2, "guest-1")._replace(path="userspace")) == "", "all its endpoints may be ejected"
    kernel.unforwarded.append(Span(97.0, "the node did not forward", "", 99.0))
    assert verdict(kernel, astray) == ""
    kernel.unforwarded.clear()
    kernel.policies.append(Policy(98.0, "userspace"))
    assert verdict(kernel, astray) == verdict(kernel, astray._replace(path="kernel")) == "", "it is being changed"
    late = 98.0 + LIVE_S + 1
    assert verdict(kernel, astray._replace(path="kernel", began=late, ended=late)) is None
    kernel.policies = [Policy(0.0, "auto")]
    assert verdict(kernel, astray) == verdict(kernel, astray._replace(path="kernel")) == ""


def test_a_service_whose_connections_are_counted_is_served_by_workers(kernel: Chronicle) -> None:
    kernel.services["web"] = [State(0.0, (0, 2)), State(100.0, (0, 2), Scheduler.LEAST_CONNECTIONS)]
    by_kernel, by_worker = (answered(0)._replace(path=path) for path in ("kernel", "userspace"))
    assert verdict(kernel, by_kernel) == verdict(kernel, by_worker) == "", "it is being changed"
    assert verdict(kernel, by_worker._replace(began=90.0, ended=90.1)) is None
    late = 100.0 + LIVE_S + 1
    assert verdict(kernel, by_worker._replace(began=late, ended=late)) == ""
    assert verdict(kernel, by_kernel._replace(began=late, ended=late)) is None


def test_a_client_waits_where_nothing_notices_that_an_endpoint_is_silent(kernel: Chronicle) -> None:
    late = answered(0, ended=100.0 + LATE_S + 1)._replace(path="kernel")
    kernel.faults.append(Span(99.0, "silence", "2", 104.0))
    assert verdict(kernel, late) is None
    kernel.unattended.append(Span(98.0, "stop control", "", 103.0))
    assert verdict(kernel, late) == "late: an endpoint was dead, and the rescue did not work (stop control)"
    assert verdict(kernel, late._replace(path="userspace")) is None
    assert verdict(kernel, late._replace(ended=112.0)) is None, "it could try again long before"


def test_an_endpoint_that_does_not_answer_one_host_delays_its_clients(kernel: Chronicle) -> None:
    late = answered(0, ended=100.0 + LATE_S + 1)._replace(path="kernel")
    kernel.faults.append(Span(99.0, "shun", "2", 104.0))
    assert verdict(kernel, late) == "late: an endpoint did not answer this client"
    assert verdict(kernel, late._replace(host="node")) is None


def test_a_node_that_does_not_forward_delays_clients_of_other_hosts(kernel: Chronicle) -> None:
    late = answered(0, ended=100.0 + LATE_S + 1)._replace(path="kernel")
    kernel.unforwarded.append(Span(99.0, "the node did not forward", "", 104.0))
    assert verdict(kernel, late) == "late: the node did not forward"
    assert verdict(kernel, late._replace(host="node")) is None
    kernel.unforwarded[0].begin = 80.0
    assert verdict(kernel, late) == "late: the node did not forward"
    assert verdict(kernel, late._replace(path="userspace")) is None, "it is known by then"


def test_a_client_learns_of_its_end_when_the_node_forwards_again(kernel: Chronicle) -> None:
    kernel.faults.append(Span(100.05, "kill", "2", 101.0))
    cut = failed(kind="long", began=90.0, heard=90.1, ended=106.0, pod=2, path="kernel")
    assert verdict(kernel, cut) is None
    kernel.unforwarded.append(Span(99.0, "the node did not forward", "", 105.0))
    assert verdict(kernel, cut) == "the backend was killed"
    assert verdict(kernel, cut._replace(host="node")) is None
    assert verdict(kernel, cut._replace(pod=0)) is None
