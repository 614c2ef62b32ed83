"""The views of Services from all sources, and their changes since they were last taken."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from kubeproxy.model import EndpointSlice, Node, Service, SliceName
from kubeproxy.proxier.tracker import NOTHING, START_GRACE_S, Change, Tracker, View
from tests.proxier.builders import endpoint_slice, name, service

API = "kubernetes"
FILES = "manifests"

OLD, NEW, NEWER = (service("web", ports=f"http:{port}") for port in (80, 81, 82))


def tracker_of(*sources: str, services: tuple[Service, ...] = ()) -> Tracker:
    """A tracker with complete sources, the first of them with these Services, and nothing to take."""
    tracker = Tracker(sources)
    for source in sources:
        tracker.replace_services(source, services if source == sources[0] else ())
        tracker.replace_slices(source, ())
    tracker.take(1000)
    return tracker


def taken(tracker: Tracker) -> list[tuple[Service | None, Service | None]]:
    """Everything there is to take, as Services before and after."""
    return [(change.before.service, change.after.service) for change in tracker.take(1000)]


def put(tracker: Tracker, wanted: Service) -> None:
    tracker.put_service(API, wanted)


def remove(tracker: Tracker, wanted: Service) -> None:
    tracker.remove_service(API, wanted.name)


Act = tuple[Callable[[Tracker, Service], None], Service]


@pytest.mark.parametrize(
    ("known", "acts", "before", "after"),
    [
        pytest.param((), [(put, OLD), (put, NEW)], None, NEW, id="added, updated: added"),
        pytest.param((), [(put, OLD), (remove, OLD)], None, None, id="added, deleted: nothing"),
        pytest.param((OLD,), [(put, NEW), (put, NEWER)], OLD, NEWER, id="updated twice: updated from the oldest"),
        pytest.param((OLD,), [(put, NEW), (remove, NEW)], OLD, None, id="updated, deleted: the oldest deleted"),
        pytest.param((OLD,), [(remove, OLD), (put, NEW)], OLD, NEW, id="deleted, added: updated"),
        pytest.param((OLD,), [(put, OLD)], None, None, id="equal object: no change"),
        pytest.param((OLD,), [(put, NEW), (put, OLD)], None, None, id="changed and changed back: nothing"),
        pytest.param((OLD,), [(remove, OLD), (put, OLD)], None, None, id="deleted and created again: nothing"),
        pytest.param((), [(remove, OLD)], None, None, id="an unknown one deleted: nothing"),
    ],
)
def test_changes_collapse(
    known: tuple[Service, ...], acts: list[Act], before: Service | None, after: Service | None
) -> None:
    """kube-proxy's TestOnServiceAddChangeMap, and more."""
    tracker = tracker_of(API, services=known)
    for act, wanted in acts:
        act(tracker, wanted)
    assert taken(tracker) == ([] if (before, after) == (None, None) else [(before, after)])


class TestSlices:
    def test_they_belong_to_their_service_in_order_of_their_names(self) -> None:
        tracker = tracker_of(API, services=(OLD,))
        second, first = (endpoint_slice("web", "10.0.0.1", called=called) for called in ("web-b", "web-a"))
        tracker.put_slice(API, second)
        tracker.put_slice(API, first)
        assert tracker.take(10) == [
            Change(OLD.name, View(OLD, (), API), View(OLD, (first, second), API)),
        ]

    def test_removed_and_created_again_is_nothing(self) -> None:
        tracker = tracker_of(API, services=(OLD,))
        slices = [endpoint_slice("web", "10.0.0.1", called=called) for called in ("web-a", "web-b")]
        tracker.replace_slices(API, slices)
        tracker.take(10)
        tracker.remove_slice(API, slices[0].name)
        tracker.put_slice(API, slices[0])
        assert tracker.take(10) == []

    def test_one_that_moves_to_another_service_leaves_the_first(self) -> None:
        other = service("other")
        tracker = tracker_of(API, services=(OLD, other))
        tracker.put_slice(API, endpoint_slice("web", "10.0.0.1", called="s"))
        tracker.take(10)
        moved = endpoint_slice("other", "10.0.0.1", called="s")
        tracker.put_slice(API, moved)
        assert {change.name: change.after.slices for change in tracker.take(10)} == {OLD.name: (), other.name: (moved,)}

    def test_slices_without_a_service_are_kept_for_it(self) -> None:
        tracker = tracker_of(API)
        early = endpoint_slice("web", "10.0.0.1")
        tracker.put_slice(API, early)
        assert tracker.take(10) == []
        tracker.put_service(API, OLD)
        assert tracker.take(10) == [Change(OLD.name, NOTHING, View(OLD, (early,), API))]

    def test_a_relist_withdraws_what_it_does_not_name(self) -> None:
        tracker = tracker_of(API, services=(OLD,))
        kept, gone = (endpoint_slice("web", "10.0.0.1", called=called) for called in ("kept", "gone"))
        tracker.replace_slices(API, [kept, gone])
        tracker.take(10)
        tracker.replace_slices(API, [kept])
        assert [change.after.slices for change in tracker.take(10)] == [(kept,)]

    def test_unknown_names_are_fine(self) -> None:
        tracker = tracker_of(API)
        tracker.remove_slice(API, SliceName("default", "none"))
        assert tracker.untaken == 0

    def test_trigger_times_are_those_of_new_slices_that_have_one(self) -> None:
        def at(time: str, called: str, endpoints: str = "10.0.0.1") -> EndpointSlice:
            return endpoint_slice("web", endpoints, called=called, trigger_time=time)

        before = View(OLD, (at("t1", "a"), at("t2", "b")), API)
        after = View(OLD, (at("t1", "a"), at("t3", "b", "10.0.0.2"), at("", "c")), API)
        assert Change(OLD.name, before, after).trigger_times() == ["t3"]


class TestCompleteness:
    @pytest.mark.parametrize("first", ["services", "slices"])
    def test_a_source_is_invisible_until_it_listed_both(self, first: str) -> None:
        tracker = Tracker([API])
        lists: list[Callable[[], None]] = [
            lambda: tracker.replace_services(API, [OLD]),
            lambda: tracker.replace_slices(API, [endpoint_slice("web", "10.0.0.1")]),
        ]
        if first == "slices":
            lists.reverse()
        lists[0]()
        tracker.put_service(API, service("early"))
        assert tracker.take(10) == []
        assert tracker.ready_at(now=5.0) == math.inf
        lists[1]()
        assert OLD.name in {change.name for change in tracker.take(10)}
        assert tracker.ready_at(now=6.0) == 6.0

    def test_complete_sources_wait_for_all_while_another_instance_serves(self) -> None:
        tracker, calls = Tracker([API, FILES]), []
        tracker.start_within(math.inf)
        tracker.notify(lambda: calls.append("changed"))
        tracker.replace_services(FILES, [OLD])
        tracker.replace_slices(FILES, [])
        assert tracker.ready_at(now=10.0) == math.inf
        calls.clear()
        tracker.start_within(START_GRACE_S)
        assert calls == ["changed"]
        assert tracker.ready_at(now=100.0) == 10.0 + START_GRACE_S

    def test_complete_sources_wait_for_the_others_for_a_bounded_time(self) -> None:
        tracker = Tracker([API, FILES])
        assert tracker.ready_at(now=0.0) == math.inf
        tracker.replace_services(FILES, [OLD])
        tracker.replace_slices(FILES, [])
        assert tracker.ready_at(now=10.0) == 10.0 + START_GRACE_S
        assert tracker.ready_at(now=12.0) == 10.0 + START_GRACE_S
        assert tracker.sources() == {API: False, FILES: True}
        tracker.replace_services(API, [])
        tracker.replace_slices(API, [])
        assert tracker.ready_at(now=13.0) <= 13.0

    def test_a_relist_withdraws_nothing_that_it_names(self) -> None:
        tracker = tracker_of(API, services=(OLD,))
        tracker.replace_services(API, [OLD, service("more", "10.96.0.9")])
        assert [change.name for change in tracker.take(10)] == [name("more")]


class TestTwoSources:
    def test_the_first_source_owns_a_service_and_the_second_is_refused(self) -> None:
        tracker = tracker_of(FILES, API, services=(OLD,))
        tracker.put_service(API, NEW)
        assert tracker.take(10) == [Change(OLD.name, View(OLD, (), FILES), View(OLD, (), FILES, (API,)))]

    def test_the_first_stays_though_the_other_defined_it_before_it_was_complete(self) -> None:
        tracker = Tracker([API, FILES])
        tracker.replace_services(API, [NEW])
        tracker.replace_services(FILES, [OLD])
        tracker.replace_slices(FILES, [])
        tracker.replace_slices(API, [])
        assert [change.after.owner for change in tracker.take(10)] == [FILES]

    def test_endpoints_come_from_the_owner_alone(self) -> None:
        tracker = tracker_of(FILES, API, services=(OLD,))
        tracker.put_slice(API, endpoint_slice("web", "10.0.0.66"))
        assert tracker.untaken == 0
        ours = endpoint_slice("web", "10.0.0.1")
        tracker.put_slice(FILES, ours)
        assert [change.after.slices for change in tracker.take(10)] == [(ours,)]

    def test_the_second_source_takes_over_when_the_first_removes_the_service(self) -> None:
        tracker = tracker_of(FILES, API, services=(OLD,))
        theirs = endpoint_slice("web", "10.0.0.66")
        tracker.put_service(API, NEW)
        tracker.put_slice(API, theirs)
        tracker.take(10)
        tracker.remove_service(FILES, OLD.name)
        assert [change.after for change in tracker.take(10)] == [View(NEW, (theirs,), API)]

    def test_changes_of_refused_sources_cause_no_work(self) -> None:
        tracker = tracker_of(FILES, API, services=(OLD,))
        tracker.put_service(API, NEW)
        tracker.take(10)
        tracker.put_service(API, NEWER)
        assert tracker.take(10) == []


class TestTaking:
    def test_some_at_a_time_first_touched_first(self) -> None:
        tracker = tracker_of(API)
        for text in ("c", "a", "b"):
            tracker.put_service(API, service(text))
        assert [change.name.name for change in tracker.take(2)] == ["c", "a"]
        assert [change.name.name for change in tracker.take(2)] == ["b"]

    def test_counts(self) -> None:
        tracker = tracker_of(API)
        tracker.put_service(API, OLD)
        tracker.put_service(API, OLD)
        tracker.put_service(API, NEW)
        tracker.put_slice(API, endpoint_slice("web", "10.0.0.1"))
        assert (tracker.service_changes.pending, tracker.slice_changes.pending) == (2, 1)
        tracker.take(10)
        assert (tracker.service_changes.pending, tracker.slice_changes.pending) == (2, 0), "the kernel follows later"
        tracker.in_effect()
        assert tracker.service_changes.pending == 0
        assert (tracker.service_changes.total, tracker.slice_changes.total) == (2, 1)

    def test_the_callback_is_called(self) -> None:
        tracker = tracker_of(API)
        calls: list[int] = []
        tracker.notify(lambda: calls.append(tracker.untaken))
        tracker.put_service(API, OLD)
        tracker.put_slice(API, endpoint_slice("web", "10.0.0.1"))
        assert calls == [1, 1]

    def test_a_failing_list_changes_nothing(self) -> None:
        tracker = tracker_of(API, services=(OLD,))
        with pytest.raises(ZeroDivisionError):
            tracker.replace_services(API, (service("web", ports=f"http:{1 // 0}") for _ in range(1)))
        assert tracker.take(10) == []


def test_that_there_is_no_such_node_is_news_too() -> None:
    """kube-proxy's newest answers 503 on /healthz then; until a source has reported it, that is unknown."""
    tracker, calls = tracker_of(API), list[object]()
    tracker.notify_node(lambda: calls.append(tracker.node))
    known = [tracker.node_known]
    tracker.set_node(None)
    assert [*known, tracker.node_known] == [False, True]
    tracker.set_node(None)
    assert calls == [None]


def test_recalled_objects_are_served_until_the_source_is_complete() -> None:
    """Then the source's own, all at once: a list without the other kind is half of a state."""
    tracker = Tracker([API])
    stays, goes, comes = service("stays"), service("goes"), service("comes")
    ports, elsewhere = endpoint_slice("stays", "10.0.0.1"), endpoint_slice("stays", "10.0.0.2")
    tracker.recall(API, [stays, goes], [ports])
    assert tracker.ready_at(5.0) == 5.0
    assert taken(tracker) == [(None, goes), (None, stays)]
    assert not any(tracker.sources().values())
    assert tracker.served() == {API: ([stays, goes], [ports])}
    tracker.replace_services(API, [stays, comes])
    tracker.put_slice(API, elsewhere)
    assert tracker.take(1000) == []
    tracker.replace_slices(API, [elsewhere])
    changes = {change.name.name: change for change in tracker.take(1000)}
    assert changes.keys() == {"stays", "goes", "comes"}
    assert changes["goes"].after == NOTHING
    assert (changes["stays"].before.slices, changes["stays"].after.slices) == ((ports,), (elsewhere,))
    assert all(tracker.sources().values())
    assert tracker.services == 2
    tracker.recall(API, [goes], [])
    assert tracker.take(1000) == []


def test_an_equal_list_changes_nothing_that_was_recalled() -> None:
    tracker = Tracker([API])
    wanted, ports = service("web"), endpoint_slice("web", "10.0.0.1")
    tracker.recall(API, [wanted], [ports])
    tracker.take(1000)
    tracker.replace_services(API, [service("web")])
    tracker.replace_slices(API, [endpoint_slice("web", "10.0.0.1")])
    assert tracker.take(1000) == []


def test_each_source_has_its_own_recalled_objects() -> None:
    tracker = Tracker([FILES, API])
    web, dns = service("web"), service("dns")
    tracker.recall(FILES, [web], [])
    tracker.recall("unknown", [dns], [])
    assert tracker.ready_at(5.0) == 5.0 + START_GRACE_S, "the other is waited for"
    tracker.recall(API, [web, dns], [])
    assert tracker.ready_at(6.0) == 5.0
    assert {change.name.name: change.after.owner for change in tracker.take(1000)} == {"web": FILES, "dns": API}
    tracker.replace_services(FILES, [])
    tracker.replace_slices(FILES, [])
    (change,) = tracker.take(1000)
    assert (change.before.owner, change.after.owner) == (FILES, API)


def test_a_recalled_node_counts_until_one_is_reported() -> None:
    tracker = Tracker([API])
    seen: list[Node | None] = []
    tracker.notify_node(lambda: seen.append(tracker.node))
    tracker.recall_node(Node("node-1"))
    tracker.set_node(None)
    tracker.recall_node(Node("node-1"))
    assert seen == [Node("node-1"), None]
