from __future__ import annotations

from kubeproxy.dataplane.interface import EjectedEndpoint
from kubeproxy.model import Address, Family, FrontendName, Scope, Target
from kubeproxy.observability.monitor.ejection_log import EJECTED_LOG_AFTER, LASTS_S, QUIET_S, EjectionLog
from tests.observability.conftest import WEB, WEB_IPV4

TARGET = Target(Address("10.0.0.1"), 80)
LOCAL = FrontendName(WEB, Family.IPV4, Scope.LOCAL)


def ejected(failures: int = EJECTED_LOG_AFTER, *, worker: int = 0, target: Target = TARGET) -> EjectedEndpoint:
    return EjectedEndpoint(target, worker, "refused", failures, 1.0)


def still_there(name: FrontendName, target: Target) -> bool:
    return True


def test_an_ejected_endpoint_that_leaves_its_service_is_not_restored() -> None:
    there = {TARGET}
    log = EjectionLog(lambda name, target: name == WEB_IPV4 and target in there)
    log.update({WEB_IPV4: [ejected()]}, 10.0)
    there.clear()
    last = log.update({}, 25.0)
    assert (last.restored, last.removed) == ([], [(WEB, TARGET, 15.0)])
    assert log.update({}, 30.0).removed == []


def test_an_ejection_that_lasts_is_named_once_until_it_ends() -> None:
    log = EjectionLog(still_there)
    seen = [log.update({WEB_IPV4: [ejected()]}, at).lasting for at in (0.0, LASTS_S - 1, LASTS_S, LASTS_S + 5)]
    assert seen == [[], [], [(WEB, TARGET)], []]
    log.update({}, LASTS_S + 10)
    again = LASTS_S + 10 + QUIET_S
    assert log.update({WEB_IPV4: [ejected()]}, again).lasting == []
    assert log.update({WEB_IPV4: [ejected()]}, again + LASTS_S).lasting == [(WEB, TARGET)]


def test_an_ejection_and_its_end_are_logged_once() -> None:
    log = EjectionLog(still_there)
    first = log.update({WEB_IPV4: [ejected()]}, 10.0)
    assert [(name, one.target) for name, one in first.ejected] == [(WEB, TARGET)]
    for failures, now in ((3, 15.0), (1, 20.0)):
        again = log.update({WEB_IPV4: [ejected(failures)]}, now)
        assert (again.ejected, again.restored) == ([], [])
    last = log.update({}, 25.0)
    assert (last.ejected, last.restored) == ([], [(WEB, TARGET, 15.0)])
    assert log.update({}, 30.0).restored == []


def test_a_new_ejection_within_the_quiet_time_is_logged_only_if_it_lasts() -> None:
    log = EjectionLog(still_there)
    log.update({WEB_IPV4: [ejected()]}, 0.0)
    log.update({}, 5.0)
    assert log.update({WEB_IPV4: [ejected()]}, 10.0).ejected == []
    assert log.update({}, 15.0).restored == [], "the second ejection was not logged"
    assert log.update({WEB_IPV4: [ejected()]}, 4.9 + QUIET_S).ejected == []
    assert log.update({WEB_IPV4: [ejected()]}, 5.0 + QUIET_S).ejected != []


def test_a_single_failure_is_not_logged() -> None:
    log = EjectionLog(still_there)
    assert log.update({WEB_IPV4: [ejected(EJECTED_LOG_AFTER - 1)]}, 10.0).ejected == []
    assert log.update({}, 15.0).restored == []


def test_an_endpoint_ejected_by_several_workers_is_logged_once_with_its_most_failures() -> None:
    other = Target(Address("10.0.0.2"), 80)
    seen = {WEB_IPV4: [ejected(2), ejected(5, worker=1), ejected(2, target=other)], LOCAL: [ejected(3)]}
    changes = EjectionLog(still_there).update(seen, 10.0)
    assert [(one.target, one.failures) for _, one in changes.ejected] == [(TARGET, 5), (other, 2)]
