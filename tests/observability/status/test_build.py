"""From an observation to the status, and from the status to text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from msgspec import structs

from kubeproxy.dataplane.interface import EjectedEndpoint
from kubeproxy.model import Protocol, Scope, ServiceName, Verdict
from kubeproxy.model.rescue import Ejection
from kubeproxy.model.snapshot import DataPath, FrontendState, Snapshot
from kubeproxy.observability.health import Reason
from kubeproxy.observability.status import build
from kubeproxy.observability.status import text as status_text
from kubeproxy.observability.status import wording as words
from kubeproxy.observability.status.document import RecentWarning, ServiceStatus, Standing, State, Status
from kubeproxy.observability.status.observation import Observation
from kubeproxy.observability.status.service_index import Index, Order, Query, Row
from kubeproxy.observability.status.traffic_history import History
from tests.observability.status.observation import (
    BROKEN,
    EJECTED,
    GOOD,
    MAIL,
    NOW,
    REPORTS,
    TERMINATING,
    UNREADY,
    WALL,
    WEB,
    candidates,
    flows_state,
    health,
    name,
    rescue_state,
    shop,
    snapshot,
    town,
    watch,
)


def index_of(observation: Observation) -> Index:
    index = Index(observation)
    for _ in index.fill():
        pass
    return index


def select(index: Index, history: History | None = None, **query: Any) -> list[str]:
    chosen: list[Row] = []
    for found in index.select(Query(**query), history or History(gap_s=10)):
        chosen = found or chosen
    return [str(row.name) for row in chosen]


def whole(observation: Observation, *, history: History | None = None, **query: object) -> Status:
    history = history or History(gap_s=10)
    index, asked = index_of(observation), Query(**query)  # type: ignore[arg-type]
    rows = [index.rows[ServiceName(*text.split("/"))] for text in select(index, history, **query)]
    head = build.status(
        index, asked, matched=len(rows), history=history, recent_warnings=(WARNING_SHOWN,), interval_s=2.0
    )
    port = asked.service.partition(":")[2]
    services = [build.service(row, observation, port=port, history=history, candidates=candidates) for row in rows]
    return replace(head, services=tuple(services))


WARNING_SHOWN = RecentWarning(at=WALL - 3, level="warning", text="watch ended", details="source=kubernetes", times=2)


def one(status: Status, wanted: ServiceName) -> ServiceStatus:
    return next(it for it in status.services if (it.namespace, it.name) == wanted)


def test_services_with_the_worst_state_come_first() -> None:
    status = whole(shop())
    assert [(f"{it.namespace}/{it.name}", it.state) for it in status.services] == [
        (str(BROKEN), State.PROBLEM),
        (str(WEB), State.EJECTED),
        (str(REPORTS), State.EMPTY),
        (str(MAIL), State.OK),
    ]
    assert status.totals.by_state == {
        State.PROBLEM: 1,
        State.EJECTED: 1,
        State.EMPTY: 1,
        State.WAITING: 0,
        State.OK: 1,
    }
    assert status.totals.ejected_endpoints == 1
    assert (status.totals.traffic.accepted, status.totals.traffic.active, status.totals.traffic.failed) == (110, 8, 1)


def test_each_endpoint_has_its_standing_and_reason() -> None:
    (frontend,) = one(whole(shop()), WEB).frontends
    found = [(it.address, it.standing, it.used) for it in frontend.endpoints]
    assert found == [
        ("10.3.1.2:8080", Standing.EJECTED, True),
        ("10.3.2.2:8080", Standing.TERMINATING, True),
        ("10.3.0.2:8080", Standing.READY, True),
        ("10.3.3.2:8080", Standing.UNREADY, False),
    ]
    ejected = frontend.endpoints[0]
    assert (ejected.reason, ejected.failures, ejected.retry_in_s) == ("refused", 3, 4.0)
    assert (ejected.workers, ejected.node) == ((0,), "node-2")
    assert frontend.addresses == ("node port 30080", "10.96.0.1:80")
    assert frontend.counters.dial_retries == 7


def by_kernel(observation: Observation, **changes: object) -> Observation:
    """The observation with web on the kernel path, and mail not, for a reason."""
    web, mail, *others = observation.proxier.frontends
    proxier = replace(
        observation.proxier,
        frontends=(
            replace(web, data_path=DataPath.KERNEL, targets=(GOOD, TERMINATING)),
            *(replace(each, data_path_reason="there is no endpoint") for each in (mail, *others)),
        ),
    )
    return replace(observation, **{"proxier": proxier, "data_path": "kernel", **changes})  # type: ignore[arg-type]


def test_the_data_path_of_each_frontend_and_their_numbers() -> None:
    status = whole(by_kernel(shop(), rescue=rescue_state()))
    (frontend,) = one(status, WEB).frontends
    assert (frontend.data_path, frontend.targets) == ("kernel", ("10.3.0.2:8080", "10.3.2.2:8080"))
    assert "  data path   kernel, to 2 endpoints in equal shares; 0 connections so far" in list(
        status_text.listener(frontend)
    )
    (frontend,) = one(status, MAIL).frontends
    assert "  data path   userspace: there is no endpoint" in list(status_text.listener(frontend))
    shown = dict(status_text.facts(status))
    assert shown["data paths"] == "1 frontend by the kernel, 3 by userspace (there is no endpoint)"
    assert shown["rescue"] == "works for 1m00s; 7 failures reported, 7 packets sent again"


def test_open_connections_and_bytes_of_both_paths_are_added_up() -> None:
    plain, moved = shop(), {}
    for name_, counters in plain.counters.items():
        moved[name_] = structs.replace(counters, kernel_open=4, kernel_bytes_in=1000, kernel_bytes_out=2000)
    status = whole(by_kernel(plain, counters=moved, kernel_flows=flows_state()))
    web = one(status, WEB)
    assert (web.traffic.active, web.traffic.bytes_in, web.traffic.bytes_out) == (7, 3000, 3_002_000)
    assert (status.totals.traffic.active, status.totals.traffic.bytes_in) == (16, 4100)
    shown = dict(status_text.facts(status))
    assert shown["flows"] == "8 open by the kernel; bytes are counted"
    assert "  by kernel   4 open, 1.0 kB in, 2.0 kB out" in list(status_text.listener(web.frontends[0]))
    # What the kernel has led there goes on when new connections take the userspace path.
    assert "  by kernel   4 open, 1.0 kB in, 2.0 kB out" in list(status_text.listener(one(status, MAIL).frontends[0]))


def test_what_the_kernel_does_not_count_has_its_reason() -> None:
    status = whole(by_kernel(shop(), kernel_flows=flows_state(bytes_counted=False)))
    why = "bytes are not counted: net.netfilter.nf_conntrack_acct is not 1"
    assert dict(status_text.facts(status))["flows"] == f"0 open by the kernel; {why}"
    (frontend,) = one(status, WEB).frontends
    assert f"  by kernel   0 open; {why}" in list(status_text.listener(frontend))
    status = whole(by_kernel(shop(), kernel_flows=flows_state(problem="the table is away")))
    assert dict(status_text.facts(status))["flows"] == (
        "open connections and bytes of the kernel path are OLD: the table is away"
    )


def test_an_inert_rescue_has_its_reason() -> None:
    state = rescue_state(working=False, changed_at=NOW - 5, problem="the rescue process has ended", restarts=2)
    assert dict(status_text.facts(whole(by_kernel(shop(), rescue=state))))["rescue"] == (
        "INERT for 5.0s, clients meet failed endpoints: the rescue process has ended; "
        "7 failures reported, 7 packets sent again, 2 restarts of its process"
    )


def test_without_a_wish_for_the_kernel_path_nothing_mentions_it() -> None:
    status = whole(shop())
    assert status.data_paths is not None
    assert status.data_paths.userspace == 4
    assert not {"data paths", "rescue"} & dict(status_text.facts(status)).keys()


def test_an_ejection_has_one_state_with_the_part_that_noticed_it() -> None:
    ejected = {
        (Protocol.TCP, EJECTED): Ejection("silent", "rescue", NOW, NOW + 2, 0.1, failures=2),
        (Protocol.TCP, GOOD): Ejection("refused", "worker", NOW, NOW - 1, 0.1),
        (Protocol.UDP, TERMINATING): Ejection("unreachable", "rescue", NOW, NOW + 1, 1.0),
    }
    status = whole(by_kernel(shop(), rescue=rescue_state(ejected)))
    (frontend,) = one(status, WEB).frontends
    first, second, *_ = frontend.endpoints
    assert (first.address, first.standing, first.noticed_by, first.workers) == (str(EJECTED), "ejected", "rescue", (0,))
    assert words.endpoint(first) == (
        "did not answer in time (2 times in a row), noticed on the kernel path; next probe in 2.0s"
    )
    assert (second.address, second.standing, second.noticed_by) == (str(GOOD), "probing", "worker")
    # Each Service counts its own; the UDP endpoint belongs to none.
    assert status.totals.ejected_endpoints == 4
    assert one(status, MAIL).state is State.EJECTED


def test_an_endpoint_ejected_by_several_workers_has_one_standing() -> None:
    two = (
        EjectedEndpoint(target=EJECTED, worker=1, reason="timeout", failures=1, retry_in_s=0.0),
        EjectedEndpoint(target=EJECTED, worker=0, reason="refused", failures=4, retry_in_s=9.0),
    )
    status = whole(shop(ejected={name(WEB): two}))
    assert status.totals.ejected_endpoints == 1
    ejected = one(status, WEB).frontends[0].endpoints[0]
    assert (ejected.standing, ejected.reason, ejected.failures, ejected.workers) == (
        Standing.EJECTED,
        "refused",
        4,
        (0, 1),
    )
    probing = whole(shop(ejected={name(WEB): two[:1]}))
    assert one(probing, WEB).frontends[0].endpoints[0].standing is Standing.PROBING


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"service": "web"}, [WEB]),
        ({"service": "shop/web"}, [WEB]),
        ({"service": "shop/web:http"}, [WEB]),
        ({"service": "web:dns"}, []),
        ({"service": "billing/web"}, []),
        ({"search": "SHOP/"}, [WEB, MAIL]),
        ({"search": "10.96.0.3"}, [REPORTS]),
        ({"search": "30080"}, [WEB]),
        ({"search": "10.3.1.2:8080"}, [WEB]),
        ({"search": "10.3.0.2"}, [BROKEN, WEB, MAIL]),
        ({"search": "nothing"}, []),
        ({"states": frozenset({State.EMPTY})}, [REPORTS]),
        ({"order": Order.NAME}, [BROKEN, REPORTS, MAIL, WEB]),
        ({"order": Order.ACTIVE}, [MAIL, WEB, BROKEN, REPORTS]),
        ({"order": Order.CONNECTIONS}, [WEB, MAIL, BROKEN, REPORTS]),
        ({"order": Order.BYTES}, [WEB, MAIL, BROKEN, REPORTS]),
    ],
)
def test_a_query_selects_and_orders_services(query: dict[str, Any], found: list[ServiceName]) -> None:
    assert select(index_of(shop()), **query) == [str(it) for it in found]


def test_services_with_failed_connections_come_first_within_a_state() -> None:
    observation = town(300)
    history = History(gap_s=10)
    for accepted in (0, 4):
        late = {
            key: type(it)(accepted=accepted, refused=accepted)
            for key, it in list(observation.counters.items())[250:251]
        }
        list(history.add({**observation.counters, **late}, NOW + accepted))
    assert select(index_of(observation), history)[:4] == [
        "ns-00/service-00000",
        "ns-00/service-00100",
        "ns-00/service-00200",
        "ns-50/service-00250",
    ]


def test_an_index_is_filled_in_slices_and_reuses_sorted_names() -> None:
    observation = town(1000)
    index = Index(observation)
    assert len(list(index.fill())) >= 8
    again = Index(observation)
    assert len(list(again.fill(index.names))) >= 8
    assert again.names == index.names == sorted(index.names)
    fewer = Index(town(999))
    list(fewer.fill(index.names))
    assert fewer.names == index.names[:10] + fewer.names[10:]
    assert len(fewer.names) == 999


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"health": health(workers="worker 1 keeps dying").at(NOW)}, "workers: worker 1 keeps dying"),
        ({"health": health(draining=True).at(NOW)}, "draining: the process ends"),
        ({"health": health(failing="netfilter: no nft").at(NOW)}, "sync: netfilter: no nft"),
        ({"health": health(eligible=False).at(NOW)}, "the node is being deleted or will be"),
        ({"health": health(eligible=False, exists=False).at(NOW)}, "the cluster has no Node "),
    ],
)
def test_the_status_names_the_problems_of_the_daemon(changes: dict[str, object], text: str) -> None:
    status = whole(shop(**changes))
    assert not status.healthy
    assert text in " ".join(status.problems)
    assert text in "\n".join(status_text.summary(status))
    assert text in (status_text.verdict(status) or "")


def test_a_degraded_daemon_is_not_called_healthy() -> None:
    made = health()
    made.degraded(Reason.CONNTRACK, "the kernel's connection tracking is nearly full")
    made.degraded(Reason.SERVER, "cannot listen on 127.0.0.1:10249", part="metrics")
    made.degraded(Reason.SERVER, "cannot listen on 0.0.0.0:10256", part="health")
    status = whole(shop(health=made.at(NOW)))
    assert status.healthy, "it serves, so the command's exit status is 0"
    assert status.problems == (
        "conntrack: the kernel's connection tracking is nearly full",
        "server: cannot listen on 127.0.0.1:10249; cannot listen on 0.0.0.0:10256",
    )
    assert status.summary == "degraded, 1 Service with a problem"
    for part in ("metrics", "health"):
        made.degraded(Reason.SERVER, None, part=part)
    made.degraded(Reason.CONNTRACK, None)
    assert whole(shop(health=made.at(NOW))).summary == "healthy, 1 Service with a problem"


def test_an_ejected_endpoint_does_not_make_the_daemon_unhealthy() -> None:
    status = whole(shop())
    assert status.healthy
    assert status_text.verdict(status) is None


def test_sources_show_their_lag_and_faults() -> None:
    watches = (watch(left_out=9), watch(resource="endpointslices", behind_s=12.0, failures={"connection": 3}, faulty=2))
    proxier = snapshot((), sources={"kubernetes": True, "manifests": False})
    found = [(it.name, words.source(it), it.problems) for it in whole(shop(proxier=proxier, watches=watches)).sources]
    assert found == [
        ("kubernetes services", "up to date, 9 left out", ("9 objects left out because of the memory limit",)),
        ("kubernetes endpointslices", "behind by 12s, 2 faulty", ("connection: failed 3 times",)),
        ("manifests", "not listed yet", ()),
    ]


def test_the_status_survives_json() -> None:
    history = History(gap_s=10)
    observation = shop()
    list(history.add({}, NOW - 2))
    list(history.add(observation.counters, NOW))
    status = whole(observation, history=history)
    assert msgspec.json.decode(msgspec.json.encode(status), type=Status) == status


def test_the_summary_as_text() -> None:
    assert (
        list(status_text.summary(whole(shop())))[1:]
        == """\
netfilter   nftables; last transaction 3.0s ago; everything is in effect
source      manifests: up to date
worker      0: pid 42, up 1m00s; 3 connections, 1 UDP sessions; 50 of 1000 descriptors; loop lag 1.5 ms
traffic     8 open, 110 accepted, 1 failed, 2.1 kB in, 3.0 MB out
services    4: 1 problem, 1 ejected, 1 empty, 1 ok

STATE    SERVICE          ACTIVE  ACCEPTED  FAILED  CONN/S  BYTES/S  ENDPOINTS  NOTE
problem  billing/broken        0         0       0       -        -          1  node port 30090 is not served: it is in use
ejected  shop/web              3       100       1       -        -        2/3  10.3.1.2:8080 refuses (3 times in a row); \
next probe in 4.0s
empty    billing/reports       0         0       0       -        -          0  port http: no endpoints; clients are refused
ok       shop/mail             5        10       0       -        -          1

recent warnings and errors
  2027-01-15T07:59:57Z warning watch ended source=kubernetes (2 times)""".splitlines()  # noqa: E501
    )


@pytest.mark.parametrize(("pending_s", "changes", "failures", "text"), [
    (None, 0, 0, "everything is in effect"),
    (9.1, 1, 0, "1 change pending, for 9.1s"),
    (9.1, 12, 1, "12 changes pending, for 9.1s; 1 failure in a row"),
    (9.1, 0, 3, "not everything is in effect, for 9.1s; 3 failures in a row"),
])  # fmt: skip
def test_the_text_shows_pending_changes(pending_s: float | None, changes: int, failures: int, text: str) -> None:
    status = whole(shop())
    filter_ = replace(status.netfilter, pending_s=pending_s, changes_pending=changes, failures=failures)
    line = status_text.netfilter(replace(status, netfilter=filter_))
    assert line == f"nftables; last transaction 3.0s ago; {text}"


def test_the_headline() -> None:
    status = replace(whole(shop()), version="1.2.3")
    assert (
        status_text.headline(status)
        == "kubeproxy 1.2.3 on node-1: healthy, 1 Service with a problem, up 3h02m (pid 42)"
    )
    assert whole(shop(health=health(failing="no nft").at(NOW))).summary.startswith("NOT HEALTHY, ")
    assert whole(shop(health=health(draining=True).at(NOW))).summary.startswith("draining, ")


def test_what_is_open_to_an_endpoint_by_workers_and_by_the_kernel_is_added_up() -> None:
    by_worker = {name(WEB): {GOOD: 2, TERMINATING: 1}}
    by_kernel = {name(WEB): {GOOD: 5, UNREADY: 1}}
    status = whole(shop(open_by_endpoint=by_worker, open_by_kernel=lambda of: by_kernel.get(of, {})))
    found = {endpoint.address: endpoint.open for endpoint in one(status, WEB).frontends[0].endpoints}
    assert found == {str(GOOD): 7, str(TERMINATING): 1, str(EJECTED): 0, str(UNREADY): 1}
    assert {endpoint.open for endpoint in one(status, MAIL).frontends[0].endpoints} == {0}


def test_scheduler_weight_share_and_what_is_open_are_shown() -> None:
    found = one(whole(shop()), WEB)
    frontend = found.frontends[0]
    weighed = [
        replace(each, weight=weight, share=weight / 5, open=number) if each.used else each
        for number, (weight, each) in enumerate(zip((1, 3, 1, 1), frontend.endpoints, strict=True))
    ]
    shown = list(status_text.listener(replace(frontend, scheduler="least-connections", endpoints=tuple(weighed))))
    assert "  scheduler   least-connections, by weight" in shown
    assert "  terminating 10.3.2.2:8080, weight 3 (60.0%), 1 open: serves while no endpoint is ready" in shown
    assert "  ready       10.3.0.2:8080 on node-1, weight 1 (20.0%), 2 open" in shown


def test_one_service_as_text() -> None:
    assert (
        list(status_text.details(one(whole(shop()), WEB)))
        == """\
shop/web: ejected (an endpoint is ejected)
  source      manifests
  traffic     3 open, 100 accepted, 1 failed, 2.0 kB in, 3.0 MB out

  http TCP IPv4: proxy port 40001
    addresses   node port 30080, 10.96.0.1:80
    scheduler   round-robin
    counters    3 open, 100 accepted, 7 retries; 1 failed (1 refused)
    ejected     10.3.1.2:8080 on node-2: refuses (3 times in a row); next probe in 4.0s
    terminating 10.3.2.2:8080: serves while no endpoint is ready
    ready       10.3.0.2:8080 on node-1
    unready     10.3.3.2:8080: not ready""".splitlines()
    )


def test_the_summary_counts_services_that_are_not_shown() -> None:
    status = whole(shop())
    assert "... and 2 more" in list(status_text.summary(replace(status, services=status.services[:2])))
    assert "... and 1 more" in list(status_text.summary(replace(status, services=status.services[2:3], offset=2)))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0s"), (9.94, "9.9s"), (59.4, "59s"), (60, "1m00s"), (3600, "1h00m"), (90000, "1d1h"), (864000, "10d0h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert words.duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (99_949, "99.9 kB"),
        (999_499, "999 kB"),
        (999_500, "1.0 MB"),
        (1.5e15, "1500 TB"),
    ],
)
def test_sizes(count: float, text: str) -> None:
    assert words.size(count) == text


@pytest.mark.parametrize(
    "text",
    [
        "cannot read https://me:secret@host/a.yaml",
        "http://host/a?token=secret",
        "password: secret",
        "Bearer secret-token",
    ],
)
def test_credentials_are_redacted(text: str) -> None:
    failing = whole(shop(proxier=snapshot((), failing=text)))
    assert "secret" not in msgspec.json.encode(failing).decode()


def test_a_local_policy_without_local_endpoints_is_no_problem() -> None:
    observation = shop()
    assert isinstance(observation.proxier, Snapshot)
    *others, status = observation.proxier.frontends
    local = replace(status.frontend, name=status.frontend.name._replace(scope=Scope.EXTERNAL), endpoints=())
    for verdict, state in ((Verdict.DROP, State.OK), (Verdict.REFUSE, State.EMPTY)):
        both = (*others, status, FrontendState(replace(local, when_empty=verdict), 40009))
        seen = one(whole(shop(proxier=snapshot(both))), BROKEN)
        assert seen.state is state
        assert ("none on this node; clients are dropped" in "\n".join(status_text.details(seen))) == (state is State.OK)
