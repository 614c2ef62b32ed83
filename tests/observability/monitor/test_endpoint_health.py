from __future__ import annotations

from kubeproxy.dataplane.interface import EjectedEndpoint
from kubeproxy.model import Address, Family, FrontendName, Scope, Target
from kubeproxy.observability.monitor.endpoint_health import EJECTED_LOG_AFTER, QUIET_S, EndpointHealthLog
from tests.observability.conftest import WEB, WEB_IPV4

TARGET = Target(Address("10.0.0.1"), 80)
LOCAL = FrontendName(WEB, Family.IPV4, Scope.LOCAL)


def ejected(failures: int = EJECTED_LOG_AFTER, *, worker: int = 0, target: Target = TARGET) -> EjectedEndpoint:
    return EjectedEndpoint(target, worker, "refused", failures, 1.0)


def test_it_is_told_once_when_it_begins_and_once_when_it_is_over() -> None:
    illness = EndpointHealthLog()
    first = illness.look({WEB_IPV4: [ejected()]}, 10.0)
    assert [(name, one.target) for name, one in first.fallen] == [(WEB, TARGET)]
    for failures, now in ((3, 15.0), (1, 20.0)):
        again = illness.look({WEB_IPV4: [ejected(failures)]}, now)
        assert (again.fallen, again.over) == ([], [])
    last = illness.look({}, 25.0)
    assert (last.fallen, last.over) == ([], [(WEB, TARGET, 15.0)])
    assert illness.look({}, 30.0).over == []


def test_soon_again_it_is_told_of_only_if_it_stays() -> None:
    illness = EndpointHealthLog()
    illness.look({WEB_IPV4: [ejected()]}, 0.0)
    illness.look({}, 5.0)
    assert illness.look({WEB_IPV4: [ejected()]}, 10.0).fallen == []
    assert illness.look({}, 15.0).over == [], "nobody was told"
    assert illness.look({WEB_IPV4: [ejected()]}, 4.9 + QUIET_S).fallen == []
    assert illness.look({WEB_IPV4: [ejected()]}, 5.0 + QUIET_S).fallen != []


def test_a_single_failure_is_no_illness() -> None:
    illness = EndpointHealthLog()
    assert illness.look({WEB_IPV4: [ejected(EJECTED_LOG_AFTER - 1)]}, 10.0).fallen == []
    assert illness.look({}, 15.0).over == []


def test_processes_and_frontends_agree_on_one_and_the_worst_is_told() -> None:
    other = Target(Address("10.0.0.2"), 80)
    seen = {WEB_IPV4: [ejected(2), ejected(5, worker=1), ejected(2, target=other)], LOCAL: [ejected(3)]}
    news = EndpointHealthLog().look(seen, 10.0)
    assert [(one.target, one.failures) for _, one in news.fallen] == [(TARGET, 5), (other, 2)]
