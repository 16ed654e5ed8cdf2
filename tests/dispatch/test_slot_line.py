"""A line of queries that wait for slots: how many are asked for, and who gets them."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from maitred.dispatch import slot_requests
from maitred.dispatch.pending_query import PendingQuery
from maitred.dispatch.slot_requests import (
    APART_SECONDS,
    GROUPS_MAX,
    QueryGroup,
    SlotLine,
    WaitingQuery,
)

MOST = 5


class Query(PendingQuery):
    """A query, as far as its line needs to know it."""

    def __init__(self, since: float) -> None:
        self.since = since


def line() -> SlotLine:
    return SlotLine(("n", "q", "ann", 2, False, False), cast("Any", None))


def test_one_turn_is_one_group() -> None:
    demand = line()
    queries = [Query(1.0) for _ in range(3)]
    for one in queries:
        demand.add(one)
    (group,) = demand.to_ask()
    assert list(group.members) == queries
    assert group.since == 1.0
    assert demand.to_ask() == []
    assert demand.answered(group, 3) == queries
    assert demand.idle


def test_fewer_than_wanted_are_asked_for_again_as_old_as_they_are() -> None:
    demand = line()
    first, second = Query(1.0), Query(1.001)
    demand.add(first)
    demand.add(second)
    (group,) = demand.to_ask()
    demand.add(Query(5.0))
    assert demand.answered(group, 1) == [first]
    again, fresh = demand.to_ask()
    assert again is group
    assert (list(again.members), again.since) == ([second], 1.0)
    assert fresh.since == 5.0


def test_an_old_one_takes_nobody_with_it_to_the_front() -> None:
    demand = line()
    demand.add(Query(50.0))
    demand.add(Query(1.0))
    assert sorted(group.since for group in demand.to_ask()) == [1.0, 50.0]


def test_slots_that_a_group_does_not_need_go_to_the_oldest_of_the_others() -> None:
    demand = line()
    gone, old, young = Query(1.0), Query(2.0), Query(3.0)
    groups = []
    for one in (gone, old, young):
        demand.add(one)
        groups += demand.to_ask()
    assert demand.remove(gone) is groups[0], "asked for in vain"
    assert demand.answered(groups[0], 1) == [old]
    assert demand.answered(groups[1], 1) == [young]
    assert demand.answered(groups[2], 2) == [], "surplus"
    assert demand.idle


def test_refusals_are_for_those_who_were_asked_for() -> None:
    demand = line()
    one, two = Query(1.0), Query(2.0)
    demand.add(one)
    (first,) = demand.to_ask()
    demand.add(two)
    (second,) = demand.to_ask()
    assert demand.refused(second) == [two]
    assert demand.failed(first)
    assert first.tries == 1
    assert demand.to_ask() == [], "after a pause"
    demand.again(first)
    assert demand.to_ask() == [first]


class Lines(RuleBasedStateMachine):
    """Whatever is done in whatever order: nobody is served twice, forgotten, or asked for twice."""

    def __init__(self) -> None:
        super().__init__()
        self.demand = line()
        self.now = 0.0
        self.waiting: list[WaitingQuery] = []
        self.over: list[WaitingQuery] = []
        self.asked: list[QueryGroup] = []
        self.pausing: list[QueryGroup] = []

    @rule(passes=st.sampled_from([0.0, APART_SECONDS / 2, 1.0]), age=st.sampled_from([0.0, 3.0]))
    def add(self, passes: float, age: float) -> None:
        self.now += passes
        query = Query(self.now - age)
        self.demand.add(query)
        self.waiting.append(query)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        query = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        self.over.append(query)
        group = self.demand.remove(query)
        if group is not None:
            assert not group.members
            assert group in self.asked or group in self.pausing
            if group in self.pausing:
                self.pausing.remove(group)
                assert not self.demand.failed(group)
        assert self.demand.remove(query) is None

    @rule()
    def ask(self) -> None:
        for group in self.demand.to_ask():
            assert 1 <= len(group.members) <= MOST
            assert group not in self.asked
            self.asked.append(group)

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), slots=st.integers(1, MOST))
    def answer(self, data: st.DataObject, slots: int) -> None:
        group = self.asked.pop(data.draw(st.integers(0, len(self.asked) - 1)))
        before = len(self.waiting)
        own = list(group.members)
        given = self.demand.answered(group, slots)
        assert given[: len(own)] == own[:slots], "its own first, in order"
        assert len(given) == min(slots, before), "nobody waits while there is a slot"
        for query in given:
            self.waiting.remove(query)
            self.over.append(query)

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        group = self.asked.pop(data.draw(st.integers(0, len(self.asked) - 1)))
        if self.demand.failed(group):
            self.pausing.append(group)

    @precondition(lambda self: self.pausing)
    @rule()
    def again(self) -> None:
        self.demand.again(self.pausing.pop(0))

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        group = self.asked.pop(data.draw(st.integers(0, len(self.asked) - 1)))
        for query in self.demand.refused(group):
            self.waiting.remove(query)
            self.over.append(query)

    @invariant()
    def everybody_waits_once(self) -> None:
        assert len(self.demand.queries) == len(self.waiting)
        assert len(set(map(id, self.over))) == len(self.over)
        assert len(self.asked) + len(self.pausing) <= GROUPS_MAX
        groups = list(self.demand._groups)
        members = [query for group in groups for query in group.members]
        assert sorted(map(id, members)) == sorted(map(id, self.waiting))
        for group in groups:
            assert all(group.since <= query.since for query in group.members)
            assert group.members or group.asked


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let groups be full sooner."""
    monkeypatch.setattr(slot_requests, "SLOTS_MAX", MOST)


TestLines = Lines.TestCase
TestLines.settings = settings(max_examples=150, stateful_step_count=40)
