"""Expectations: examples, and a machine in which a controller must never count its own writes twice."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kubeproxy.kubernetes.controller.expectations import EXPIRY_S, Expectations


def test_creations_are_awaited() -> None:
    expectations = Expectations()
    assert expectations.satisfied("k", 0)
    expectations.expect_creations("k", 2, 0)
    assert not expectations.satisfied("k", 0)
    expectations.creation_observed("k")
    assert expectations.outstanding("k") == (1, 0)
    expectations.creation_observed("k")
    assert expectations.satisfied("k", 0)
    expectations.creation_observed("k")  # one that was not expected
    assert expectations.satisfied("k", 0)


def test_an_object_is_deleted_once() -> None:
    expectations = Expectations()
    expectations.expect_deletions("k", ["ns/a", "ns/b"], 0)
    for _ in range(3):
        expectations.deletion_observed("k", "ns/a")
    expectations.deletion_observed("k", "ns/other")
    assert expectations.outstanding("k") == (0, 1)
    assert not expectations.satisfied("k", 0)
    expectations.deletion_observed("k", "ns/b")
    assert expectations.satisfied("k", 0)


def test_they_expire() -> None:
    expectations = Expectations()
    expectations.expect_creations("k", 1, 100)
    assert not expectations.satisfied("k", 100 + EXPIRY_S)
    assert expectations.satisfied("k", 100 + EXPIRY_S + 0.001)


def test_what_came_and_went_unseen_is_not_awaited() -> None:
    expectations = Expectations()
    expectations.expect_creations("k", 2, 0)
    expectations.created("k", "9")
    expectations.created("k", "10")
    assert not expectations.satisfied("k", 0, lambda version: int(version) <= 9)
    assert expectations.unfulfilled() == ["k"]
    assert expectations.satisfied("k", 0, lambda version: int(version) <= 10)


def test_a_deletion_is_awaited_whatever_the_cache_has_reached() -> None:
    expectations = Expectations()
    expectations.expect_deletions("k", ["ns/a"], 0)
    assert not expectations.satisfied("k", 0, lambda version: True)
    assert expectations.unfulfilled() == ["k"]


def test_new_ones_replace_old_ones() -> None:
    expectations = Expectations()
    expectations.expect_creations("k", 5, 0)
    expectations.expect_deletions("k", ["ns/a"], 0)
    assert expectations.outstanding("k") == (0, 1)
    expectations.forget("k")
    assert expectations.satisfied("k", 0)
    assert len(expectations) == 0


class ExpectationsMachine(RuleBasedStateMachine):
    """A ReplicaSet controller with a cache that lags: its pods must converge, and never exceed the wanted number."""

    def __init__(self) -> None:
        super().__init__()
        self.expectations = Expectations()
        self.server: set[str] = set()
        self.cache: set[str] = set()
        self.wanted = 0
        self.events: list[tuple[str, str]] = []
        self.serial = 0
        self.seen = 0
        """How many creations the cache has reached."""
        self.most = 0

    @rule(wanted=st.integers(0, 8))
    def scale(self, wanted: int) -> None:
        self.wanted = wanted
        self.most = max(self.most, wanted)

    @rule(failures=st.integers(0, 3))
    def sync(self, failures: int) -> None:
        if not self.expectations.satisfied("k", 0, lambda version: int(version or "0") <= self.seen):
            return
        missing = self.wanted - len(self.cache)
        if missing > 0:
            self.expectations.expect_creations("k", missing, 0)
            for number in range(missing):
                if number < missing - failures:
                    self.serial += 1
                    self.server.add(f"ns/{self.serial}")
                    self.expectations.created("k", str(self.serial))
                    self.events.append(("add", f"ns/{self.serial}"))
                else:
                    self.expectations.creation_observed("k")
        elif missing < 0:
            chosen = sorted(self.cache)[:-missing]
            self.expectations.expect_deletions("k", chosen, 0)
            for number, name in enumerate(chosen):
                if number < len(chosen) - failures:
                    if name in self.server:
                        self.server.remove(name)
                        self.events += [("terminating", name), ("delete", name)]
                    else:
                        self.expectations.deletion_observed("k", name)
                else:
                    self.expectations.deletion_observed("k", name)

    @precondition(lambda self: self.events)
    @rule()
    def event_arrives(self) -> None:
        kind, name = self.events.pop(0)
        if kind == "add":
            self.cache.add(name)
            self.expectations.creation_observed("k")
            self.seen = int(name.removeprefix("ns/"))
        else:
            self.cache.discard(name)
            self.expectations.deletion_observed("k", name)

    @rule()
    def everything_is_listed_anew(self) -> None:
        """The events on the way are lost; what they would have reported is on the list, or is gone."""
        self.events.clear()
        for name in sorted(self.cache - self.server):
            self.expectations.deletion_observed("k", name)
        for _ in self.server - self.cache:
            self.expectations.creation_observed("k")
        self.cache = set(self.server)
        self.seen = self.serial

    @precondition(lambda self: self.server)
    @rule(data=st.data())
    def pod_vanishes(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.server)))
        self.server.remove(name)
        self.events.append(("delete", name))

    @invariant()
    def never_more_pods_than_were_ever_wanted(self) -> None:
        assert len(self.server) <= self.most

    def teardown(self) -> None:
        """Left alone, it converges."""
        for _ in range(100):
            while self.events:
                self.event_arrives()
            self.sync(0)
        assert len(self.server) == self.wanted
        assert self.cache == self.server


TestExpectationsMachine = ExpectationsMachine.TestCase
TestExpectationsMachine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
