"""What one member decides about itself and the others, step by step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.membership.member_effects import (
    AccuseMember,
    AdoptView,
    BecomeActive,
    ExtendLease,
    ProbeOutcome,
    SendBeat,
    StopMember,
)
from maitred.membership.observer import Observer, without_common_version
from maitred.membership.table import Beats, TableState
from maitred.membership.timing import REDIAL_SECONDS, WATCHED_MAX
from maitred.membership.view import MemberState
from tests.membership.observing import SETTINGS, ObserverUnderTest, member, view

REFUSED, REACHED = ProbeOutcome.REFUSED, ProbeOutcome.REACHED


def linked(others: int = 2) -> ObserverUnderTest:
    """An active member with links to all others, which has watched them for a lease."""
    under_test = ObserverUnderTest(others)
    for number in range(1, others + 1):
        under_test.observer.probed(member(number).id, REACHED, under_test.now)
    under_test.probes_end = REACHED
    under_test.pass_time(6.0)
    under_test.probes_end = None
    under_test.effects.clear()
    return under_test


def test_a_heartbeat_a_second_and_a_lease_from_when_it_was_sent() -> None:
    under_test = ObserverUnderTest()
    under_test.effects.clear()
    begin = under_test.now
    under_test.pass_time(10.0)
    assert len(under_test.taken(SendBeat)) == 10
    leases = [effect.until for effect in under_test.taken(ExtendLease)]
    assert leases == sorted(leases)
    assert leases[-1] == begin + 10.0 + 1e6 + 4.5  # by the boot clock, with a margin of a tenth


def test_a_member_without_heartbeats_is_accused_after_a_lease_and_not_before() -> None:
    under_test = linked()
    under_test.silent = {1}
    under_test.pass_time(4.75)
    assert under_test.accused() == set()
    under_test.pass_time(1.5)
    (vote,) = under_test.taken(AccuseMember)
    assert (vote.member.id, vote.needed, vote.version) == (member(1).id, 2, 1)
    assert vote.beat == under_test.beats[1]
    assert vote.reason == "it sent no heartbeat for 5 seconds"
    under_test.pass_time(20.0)
    assert under_test.accused() == set(), "the vote counts for a while"


def test_a_heartbeat_ends_the_suspicion() -> None:
    under_test = linked()
    under_test.silent = {1}
    under_test.pass_time(4.0)
    under_test.silent = set()
    under_test.pass_time(1.0)
    under_test.silent = {1}
    under_test.pass_time(4.0)
    assert under_test.accused() == set()


@pytest.mark.parametrize(("others", "needed"), [(1, 1), (2, 2), (3, 2), (4, 2), (6, 2)], ids=str)
def test_votes_needed(others: int, needed: int) -> None:
    under_test = linked(others)
    under_test.silent = {1}
    under_test.pass_time(7.0)
    assert {vote.needed for vote in under_test.taken(AccuseMember)} == {needed}


def test_one_survivor_of_three_evicts_the_others_when_they_are_stale() -> None:
    under_test = linked(2)
    under_test.silent = {1, 2}
    under_test.pass_time(14.0)
    assert {vote.needed for vote in under_test.taken(AccuseMember)} == {2}
    under_test.pass_time(3.0)
    votes = under_test.taken(AccuseMember)
    assert {(vote.member.id, vote.needed) for vote in votes} == {
        (member(1).id, 1),
        (member(2).id, 1),
    }


def test_nobody_is_suspected_before_a_full_lease_was_watched() -> None:
    under_test = ObserverUnderTest(silent={1, 2})
    under_test.pass_time(4.75)
    assert under_test.accused() == set()
    under_test.pass_time(1.0)
    assert under_test.accused() == {member(1).id, member(2).id}


def test_after_an_outage_of_the_table_a_full_lease_is_watched_again() -> None:
    under_test = linked()
    under_test.away = True
    under_test.pass_time(30.0)
    under_test.away, under_test.silent = False, {1}
    under_test.pass_time(5.0)
    assert under_test.accused() == set()
    under_test.pass_time(2.0)
    assert under_test.accused() == {member(1).id}


def test_a_late_loop_postpones_every_suspicion() -> None:
    under_test = linked()
    under_test.silent = {1}
    under_test.pass_time(4.0)
    under_test.now += 2.0  # the loop stood still
    under_test.pass_time(4.75)
    assert under_test.accused() == set()
    under_test.pass_time(2.0)
    assert under_test.accused() == {member(1).id}


def test_a_slow_answer_postpones_every_suspicion() -> None:
    under_test = linked()
    under_test.silent = {1}
    under_test.pass_time(4.0)
    beats = {member(n).id: under_test.beats[n] for n in under_test.beats}
    sent = under_test.now - 1.5
    under_test.observer.beat_answered(Beats(1, beats, alive=True), sent, 0.0, under_test.now)
    under_test.pass_time(4.75)
    assert under_test.accused() == set()


def test_a_broken_link_and_a_refused_port_are_evidence_at_once() -> None:
    under_test = linked()
    under_test.observer.link_lost(member(2).id, under_test.now)
    under_test.tick()
    assert under_test.probed() == {member(2).id}, "dialled again at once"
    under_test.observer.probed(member(2).id, REFUSED, under_test.now)
    under_test.tick()
    (vote,) = under_test.taken(AccuseMember)
    assert vote.member.id == member(2).id
    assert vote.reason == "its link broke and its port refuses connections"


@pytest.mark.parametrize("outcome", [one for one in ProbeOutcome if one is not REFUSED])
def test_a_broken_link_alone_is_no_evidence(outcome: ProbeOutcome) -> None:
    under_test = linked()
    under_test.observer.link_lost(member(2).id, under_test.now)
    under_test.observer.probed(member(2).id, outcome, under_test.now)
    under_test.pass_time(10.0)
    assert under_test.accused() == set()


def test_a_link_that_breaks_during_a_probe_is_dialled_again_at_once() -> None:
    under_test = linked()
    under_test.pass_time(1.0)
    assert under_test.probed() == {member(1).id, member(2).id}
    under_test.observer.link_lost(member(2).id, under_test.now)
    under_test.tick()
    assert under_test.probed() == set()
    under_test.observer.probed(member(2).id, ProbeOutcome.NO_ANSWER, under_test.now)
    under_test.tick()
    assert under_test.probed() == {member(2).id}


def test_a_connection_that_is_closed_without_an_answer_is_opened_again_soon() -> None:
    """A process that is killed may still accept it before its port is closed."""
    under_test = linked()
    under_test.observer.link_lost(member(2).id, under_test.now)
    under_test.tick()
    assert under_test.probed() == {member(2).id}
    under_test.observer.probed(member(2).id, ProbeOutcome.NO_ANSWER, under_test.now)
    assert under_test.observer.next_at(under_test.now) <= under_test.now + REDIAL_SECONDS
    under_test.pass_time(REDIAL_SECONDS, step=REDIAL_SECONDS)
    assert under_test.probed() == {member(2).id}
    under_test.observer.probed(member(2).id, REFUSED, under_test.now)
    under_test.tick()
    assert under_test.accused() == {member(2).id}


def test_a_member_that_does_not_answer_is_dialled_often_for_a_moment_only() -> None:
    under_test = linked()
    under_test.observer.link_lost(member(2).id, under_test.now)
    dials = 0
    for _ in range(100):
        under_test.tick()
        if member(2).id in under_test.probed():
            dials += 1
            under_test.observer.probed(member(2).id, ProbeOutcome.NO_ANSWER, under_test.now)
        under_test.pass_time(REDIAL_SECONDS, step=REDIAL_SECONDS)
    assert dials <= 1 / REDIAL_SECONDS + 6


def test_a_port_that_never_answered_may_refuse() -> None:
    under_test = ObserverUnderTest()
    under_test.pass_time(6.0)
    under_test.observer.probed(member(2).id, REFUSED, under_test.now)
    under_test.pass_time(10.0)
    assert under_test.accused() == set()


def test_old_evidence_does_not_count() -> None:
    under_test = linked()
    under_test.away = True
    under_test.pass_time(2.0)
    under_test.observer.probed(member(2).id, REFUSED, under_test.now)
    under_test.pass_time(10.0)
    under_test.away = False
    under_test.pass_time(5.0)
    assert under_test.accused() == set()


@pytest.mark.parametrize("state", [MemberState.JOINING, MemberState.DRAINING])
def test_only_an_active_member_accuses(state: MemberState) -> None:
    under_test = ObserverUnderTest(state=state, silent={1, 2})
    under_test.pass_time(30.0)
    assert under_test.accused() == set()


def test_a_vote_is_repeated_when_the_table_has_changed_or_the_vote_expires() -> None:
    under_test = linked(3)
    under_test.silent = {1}
    under_test.pass_time(7.0)
    assert len(under_test.taken(AccuseMember)) == 1
    under_test.set_state(2, MemberState.DRAINING)
    under_test.pass_time(1.0)
    assert [vote.version for vote in under_test.taken(AccuseMember)] == [2]
    under_test.pass_time(61.0)
    assert len(under_test.taken(AccuseMember)) >= 1


def test_each_member_watches_its_successors() -> None:
    under_test = ObserverUnderTest(others=30)
    assert under_test.probed() == {member(number).id for number in range(1, WATCHED_MAX + 1)}
    assert under_test.observer.linked_ids() == {
        member(number).id for number in range(1, WATCHED_MAX + 1)
    }
    last = Observer(member(30), SETTINGS)
    last.joined(TableState(under_test.table().view, under_test.table().beats), 0.0, 0.0)
    assert last.linked_ids() == {member(number).id for number in range(WATCHED_MAX)}


def test_of_many_silent_members_only_watched_ones_are_accused_until_they_are_stale() -> None:
    under_test = ObserverUnderTest(others=30, silent={25})
    under_test.pass_time(14.0)
    assert under_test.accused() == set()
    under_test.pass_time(3.0)
    assert under_test.accused() == {member(25).id}


def test_views_only_move_forward() -> None:
    under_test = linked()
    under_test.set_state(1, MemberState.DRAINING)
    under_test.pass_time(1.0)
    (adopted,) = under_test.taken(AdoptView)
    assert (adopted.before.version if adopted.before else 0, adopted.view.version) == (1, 2)
    old = TableState(view(1, [member(0), member(1), member(2)]), {})
    under_test.observer.table_read(old, under_test.now, under_test.now)
    under_test.tick()
    assert under_test.taken(AdoptView) == []
    assert under_test.observer.view is not None
    assert under_test.observer.view.version == 2


def test_the_view_says_why_a_member_is_gone() -> None:
    under_test = linked(4)
    under_test.silent = {1}
    under_test.pass_time(7.0)
    under_test.set_state(1, MemberState.DEAD)
    under_test.set_state(2, MemberState.DEAD)
    under_test.set_state(3, MemberState.DRAINING)
    under_test.pass_time(1.0)
    under_test.set_state(3, MemberState.DEAD)
    del under_test.members[4]
    restarted = member(9)
    under_test.members[9] = type(restarted)(
        **{
            name: getattr(restarted if name == "id" else member(4), name)
            for name in restarted.__struct_fields__
        }
    )
    under_test.beats[9] = 1
    under_test.version += 1
    under_test.pass_time(1.0)
    gone = {one.member.id: one.reason for view in under_test.taken(AdoptView) for one in view.gone}
    assert gone == {
        member(1).id: "it sent no heartbeat for 5 seconds",
        member(2).id: "it left, or other members declared it dead",
        member(3).id: "it left the cluster",
        member(4).id: "a later start of the node announced its address",
    }


def test_the_dead_stop() -> None:
    by_beat = linked()
    by_beat.observer.beat_answered(Beats(2, {}, alive=False), by_beat.now, 0.0, by_beat.now)
    by_read = linked()
    by_read.set_state(0, MemberState.DEAD)
    by_read.pass_time(1.0)
    for under_test in (by_beat, by_read):
        under_test.tick()
        assert len(under_test.taken(StopMember)) == 1
        assert under_test.observer.stopped
        assert under_test.observer.state is MemberState.DEAD
        under_test.effects.clear()
        under_test.pass_time(10.0)
        assert under_test.effects == [], "it sends no heartbeat and accuses nobody"


# Joining


def joining(others: int = 2, silent: set[int] | None = None) -> ObserverUnderTest:
    under_test = ObserverUnderTest(others, state=MemberState.JOINING, silent=silent or set())
    under_test.pass_time(0.5)
    return under_test


def test_the_first_member_becomes_active_at_once() -> None:
    assert joining(others=0).taken(BecomeActive)


def test_a_member_becomes_active_when_all_reach_it_and_are_reached() -> None:
    under_test = joining()
    observer = under_test.observer
    observer.probed(member(1).id, REACHED, under_test.now, unreached=())
    under_test.pass_time(0.5)
    assert not under_test.taken(BecomeActive)
    observer.probed(member(2).id, REACHED, under_test.now, unreached=(4748,))
    under_test.pass_time(0.5)
    assert not under_test.taken(BecomeActive)
    assert observer.hindrances() == [
        "Node 10.0.0.2:4747 cannot connect to this node at 10.0.0.0, ports 4748."
    ]
    observer.probed(member(2).id, ProbeOutcome.NO_ANSWER, under_test.now, detail="it is silent")
    assert observer.hindrances() == [
        "Node 10.0.0.2:4747 is active and cannot be reached: it is silent."
    ]
    observer.probed(member(2).id, REACHED, under_test.now)
    assert observer.hindrances() == [
        "Node 10.0.0.2:4747 has not answered whether it reaches this node."
    ]
    observer.probed(member(2).id, REACHED, under_test.now, unreached=())
    under_test.pass_time(0.5)
    assert under_test.taken(BecomeActive)


def test_members_that_are_stale_do_not_delay_a_join() -> None:
    under_test = joining(silent={1, 2})
    under_test.pass_time(14.0)
    assert not under_test.taken(BecomeActive)
    under_test.pass_time(2.0)
    assert under_test.taken(BecomeActive)


def test_draining_and_joining_members_do_not_delay_a_join() -> None:
    under_test = joining()
    under_test.set_state(1, MemberState.DRAINING)
    under_test.set_state(2, MemberState.JOINING)
    under_test.pass_time(2.0)
    assert under_test.taken(BecomeActive)


def test_nobody_is_admitted_while_the_table_is_away() -> None:
    under_test = ObserverUnderTest(state=MemberState.JOINING)
    under_test.away = True
    under_test.pass_time(1.5)
    for number in (1, 2):
        under_test.observer.probed(member(number).id, REACHED, under_test.now, unreached=())
    under_test.pass_time(5.0)
    assert not under_test.taken(BecomeActive)
    assert under_test.observer.hindrances() == ["The membership table does not answer."]


def test_a_probe_back_goes_to_the_address_in_the_table_only() -> None:
    under_test = linked()
    assert under_test.observer.asked_back(member(1).id) == member(1)
    assert under_test.observer.asked_back(member(7).id) is None


def test_a_common_version_of_the_protocol_is_needed() -> None:
    other = member(1)
    newer = type(other)(
        **{name: getattr(other, name) for name in other.__struct_fields__} | {"versions": (5, 6)}
    )
    assert without_common_version(member(0), view(1, [member(0), other])) is None
    assert without_common_version(member(0), view(1, [member(0), newer])) == newer


# Properties


@given(
    st.integers(1, 5),
    st.lists(
        st.tuples(st.floats(0.05, 3.0), st.sampled_from(["beat", "away", "back", "late", "mute"])),
        max_size=40,
    ),
)
def test_a_member_that_beats_in_time_is_never_accused(
    others: int, story: list[tuple[float, str]]
) -> None:
    under_test = ObserverUnderTest(others)
    for seconds, event in story:
        if event == "late":
            under_test.now += seconds
            for number in under_test.beats:  # the others go on meanwhile
                under_test.beats[number] += 1
        under_test.away = event == "away" or (under_test.away and event != "back")
        under_test.silent = {1} if event == "mute" else set()
        under_test.pass_time(seconds)
    assert under_test.accused() <= {member(1).id}
    if "mute" not in {event for _, event in story}:
        assert under_test.accused() == set()


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=40))
def test_the_adopted_versions_rise(reads: list[tuple[int, bool]]) -> None:
    under_test = ObserverUnderTest()
    for version, by_beat in reads:
        under_test.version = version
        if by_beat:
            under_test.pass_time(1.0)
        else:
            under_test.observer.table_read(under_test.table(), under_test.now, under_test.now)
            under_test.tick()
    versions = [effect.view.version for effect in under_test.taken(AdoptView)]
    assert versions == sorted(set(versions))
