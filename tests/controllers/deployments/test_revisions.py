"""Revisions, their history, copied annotations; which ReplicaSet is new; cleanup and rollback."""

from __future__ import annotations

import msgspec
import pytest

from kubeproxy.controllers.api_types import NO_LIMIT, ReplicaSet
from kubeproxy.controllers.deployments import retention, revisions, rollback
from kubeproxy.controllers.deployments.revisions import REVISION, REVISION_HISTORY, ROLLBACK_TO, annotations_for_new
from tests.controllers.builders import deployment, replica_set, template


def test_the_new_replica_set_has_the_template() -> None:
    sets = [replica_set("a", age=10), replica_set("b", age=30, image="web:1"), replica_set("c", age=20, image="web:1")]
    new = revisions.find_new(deployment(), sets)
    assert new is not None
    assert new.metadata.name == "b"  # the oldest of several
    assert [each.metadata.name for each in revisions.others(sets, new)] == ["c", "a"]
    assert revisions.find_new(deployment(image="web:9"), sets) is None


def test_equal_times_are_ordered_by_name() -> None:
    sets = [replica_set("b", image="web:1"), replica_set("a", image="web:1")]
    assert revisions.find_new(deployment(), sets) == sets[1]


@pytest.mark.parametrize(
    ("text", "number"), [("5", 5), ("-1", -1), ("+7", 7), ("x", 0), ("", 0), ("1.0", 0), ("9223372036854775808", 0)]
)
def test_a_revision_is_an_integer(text: str, number: int) -> None:
    assert revisions.revision_of(replica_set("a", revision=text)) == number


def test_the_highest_revision() -> None:
    sets = [replica_set("a", revision=3), replica_set("b", revision="oops"), replica_set("c", revision=11)]
    assert revisions.max_revision(sets) == 11
    assert revisions.max_revision([]) == 0


def test_annotations_are_copied_but_not_all() -> None:
    own = {"team": "a", REVISION: "9", ROLLBACK_TO: "1", revisions.LAST_APPLIED: "{}", revisions.DESIRED_REPLICAS: "4"}
    found = annotations_for_new(deployment(annotations=own), {"kept": "yes", "team": "b"}, 2, exists=True)
    assert found == {"kept": "yes", "team": "a", REVISION: "2"}


def test_a_revision_is_never_lowered() -> None:
    assert annotations_for_new(deployment(), {REVISION: "5"}, 3, exists=True) == {REVISION: "5"}


def test_a_former_revision_goes_to_the_history() -> None:
    first = annotations_for_new(deployment(), {REVISION: "1"}, 3, exists=True)
    assert first == {REVISION: "3", REVISION_HISTORY: "1"}
    assert annotations_for_new(deployment(), first, 5, exists=True) == {REVISION: "5", REVISION_HISTORY: "1,3"}


def test_a_history_that_begins_with_nothing_is_replaced() -> None:
    garbled = {REVISION: "1", REVISION_HISTORY: ",,x"}
    assert annotations_for_new(deployment(), garbled, 3, exists=True)[REVISION_HISTORY] == "1"


def test_the_oldest_entries_leave_a_full_history() -> None:
    full = {REVISION: "33", REVISION_HISTORY: "1,22"}
    assert annotations_for_new(deployment(), full, 40, exists=True, limit=5)[REVISION_HISTORY] == "22,33"
    assert annotations_for_new(deployment(), full, 40, exists=True, limit=4)[REVISION_HISTORY] == "33"
    assert annotations_for_new(deployment(), full, 40, exists=True, limit=1)[REVISION_HISTORY] == "1,22"
    long = {REVISION: "1000", REVISION_HISTORY: ",".join(map(str, range(100, 600)))}
    history = annotations_for_new(deployment(), long, 1001, exists=True)[REVISION_HISTORY]
    assert len(history) <= 2000
    assert history.endswith("599,1000")


def test_an_unreadable_revision_stays() -> None:
    assert annotations_for_new(deployment(), {REVISION: "x"}, 3, exists=True) == {REVISION: "x"}


# Cleanup


def _names(sets: list[ReplicaSet]) -> list[str]:
    return [each.metadata.name for each in sets]


def test_surplus_sets_are_deleted_lowest_revision_first() -> None:
    empty = [replica_set(name, 0, revision=number) for name, number in (("c", 3), ("a", 1), ("b", 2))]
    assert _names(retention.surplus(deployment(revisionHistoryLimit=1), empty)) == ["a", "b"]
    assert retention.surplus(deployment(revisionHistoryLimit=3), empty) == []
    assert retention.surplus(deployment(), empty) == []
    assert retention.surplus(deployment(revisionHistoryLimit=NO_LIMIT), empty) == []


def test_sets_in_use_are_left() -> None:
    sets = [
        replica_set("empty", 0, revision=1),
        replica_set("wanted", 1, pods=0, revision=2),
        replica_set("running", 0, pods=1, revision=3),
        replica_set("unobserved", 0, revision=4, generation=2),
        replica_set("leaving", 0, revision=5, deleted=True),
    ]
    assert _names(retention.surplus(deployment(revisionHistoryLimit=0), sets)) == ["empty"]


def test_no_higher_one_goes_in_place_of_one_in_use() -> None:
    sets = [replica_set("running", 1, revision=1), replica_set("empty", 0, revision=2)]
    assert retention.surplus(deployment(revisionHistoryLimit=1), sets) == []


# Rollback


def test_what_is_asked_for() -> None:
    assert rollback.requested_revision(deployment(annotations={ROLLBACK_TO: "3"})) == 3
    assert rollback.requested_revision(deployment(annotations={ROLLBACK_TO: "0"})) == 0
    assert rollback.requested_revision(deployment(annotations={ROLLBACK_TO: "x"})) is None
    assert rollback.requested_revision(deployment()) is None


def test_the_revision_before() -> None:
    sets = [replica_set("a", revision=4), replica_set("b", revision=9), replica_set("c", revision=7)]
    assert rollback.previous_revision(sets) == 7
    assert rollback.previous_revision(sets[:1]) is None
    assert rollback.find_revision(sets, 9) == sets[1]
    assert rollback.find_revision(sets, 5) is None


def test_the_patch_of_a_rollback() -> None:
    own = {"old": "1", REVISION: "2", ROLLBACK_TO: "1", revisions.LAST_APPLIED: "{}"}
    target = replica_set("a", revision=1, image="web:0", annotations={"of-then": "yes", REVISION_HISTORY: "1"})
    operations = {each["path"]: each["value"] for each in rollback.patch(deployment(annotations=own), target)}
    assert operations == {
        "/spec/template": template("web:0"),
        "/metadata/annotations": {"of-then": "yes", REVISION: "2", revisions.LAST_APPLIED: "{}"},
    }
    assert not rollback.same_template(deployment(), target)
    assert rollback.same_template(deployment(image="web:0"), target)


def test_a_template_is_not_shared_with_the_answer_that_it_came_in() -> None:
    body = bytearray(msgspec.json.encode({"spec": {"template": template("web:5")}}))
    found = msgspec.json.decode(body, type=ReplicaSet)
    body[:] = b" " * len(body)
    assert msgspec.json.decode(found.spec.template) == template("web:5")
