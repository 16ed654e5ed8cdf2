"""One member of a cluster as a state machine: it watches the others, and decides.

The observer has no clock and no sockets. Its shell (`node/member_agent.py`) tells it what came from
the table and from the links, with the time of its own monotonic clock, and carries out the effects
that `tick` returns. The rules:

- A member is suspected after a lease without a heartbeat, by the counter in the table and the
  observer's own clock, and only if the observer watched the table for all that time without
  interruption (`table_watch.py`). Wall clocks do not matter.
- A broken link and a closed port are evidence at once; a link that is silent is none, because the
  member's heartbeats prove that it lives.
- The table counts the votes. min(2, half of the active members) are needed; only an active member
  votes, and only at the heartbeat counter that it saw, so that a heartbeat voids the vote.
- A member whose own heartbeats fail, or whose loop is late, accuses no other member.
- While the table is away, the view stays as it is: no member is admitted or declared dead.
- Views only move forward. A member that reads that it is dead stops.
- A joining member becomes active when every active member has answered its probe and has reached
  it. An active member that does not answer delays this until it answers, dies, or is stale.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from maitred.membership.member_effects import (
    AccuseMember,
    AdoptView,
    BecomeActive,
    ExtendLease,
    GoneMember,
    ProbeMember,
    ProbeOutcome,
    ReadTable,
    SendBeat,
    StopMember,
)
from maitred.membership.table_watch import TableWatch
from maitred.membership.timing import (
    TICK_SECONDS,
    WATCHED_MAX,
    stale_seconds,
    trusted_seconds,
)
from maitred.membership.view import MemberState
from maitred.membership.watched_member import WatchedMember

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from maitred.membership.member_effects import MemberEffect
    from maitred.membership.table import Beats, TableState
    from maitred.membership.view import ClusterMember, ClusterView
    from maitred.settings import ClusterSettings

VOTES_MAX: Final = 2
"""The most votes that a death needs. A third would protect against two observers with a fault at
the same time, and make the death of two members of four undecidable."""


class Observer:
    """The decisions of one member, from `joined` until it stops."""

    def __init__(self, me: ClusterMember, settings: ClusterSettings) -> None:
        self.me = me
        self.view: ClusterView | None = None
        self.stopped = False
        """Whether the table said that this member is dead."""
        self.state = MemberState.JOINING
        """This member's state in its view."""
        self._settings = settings
        self._others: dict[str, WatchedMember] = {}
        self._probed: list[WatchedMember] = []
        """The members that this one probes."""
        self._watch = TableWatch(settings.beat_seconds)
        self._effects: list[MemberEffect] = []
        self._beat_at = -inf
        self._read_at = -inf
        """The earliest time of the next read; after a failure it is not repeated at once."""
        self._read_wanted = False
        self._asking: set[type[MemberEffect]] = set()
        """The kinds of calls of the table that are under way."""

    # Events

    def joined(self, state: TableState, sent: float, now: float) -> None:
        """Begin with the table as it was when this member was inserted."""
        self.table_read(state, sent, now)

    def beat_answered(self, beats: Beats, sent: float, boot_sent: float, now: float) -> None:
        """Take the answer to a heartbeat that was sent at `sent`; at `boot_sent` on the boot
        clock, from which the lease counts."""
        self._asking.discard(SendBeat)
        self._beat_at = sent + self._settings.beat_seconds
        self._watch.awake(now)
        if not beats.alive:
            self._stop("other members declared it dead, or a later start announced its address")
            return
        self._effects.append(ExtendLease(boot_sent + trusted_seconds(self._settings)))
        self._watch.answered(sent, now)
        self._counted(beats.beats, now)
        if self.view is None or beats.version > self.view.version:
            self._read_wanted = True
        elif beats.version < self.view.version:
            self._watch.interrupted()

    def table_read(self, state: TableState, sent: float, now: float) -> None:
        """Take the whole table, from a read, a vote or a change of the own state."""
        self._asking -= {ReadTable, BecomeActive}
        self._watch.awake(now)
        if self.stopped:
            return
        self._watch.answered(sent, now)
        view, before = state.view, self.view
        if before is not None and view.version < before.version:
            # A failover to a standby that had not received the last changes.
            self._watch.interrupted()
            return
        self._counted(state.beats, now)
        if before is None or view.version > before.version:
            self._adopt(view, state.beats, now)

    def accused(self, effect: AccuseMember, state: TableState, sent: float, now: float) -> None:
        """Take the table as it is after a vote."""
        self._asking.discard(AccuseMember)
        other = self._others.get(effect.member.id)
        if other is not None:
            other.asked = (effect.beat, effect.version, effect.needed)
            other.asked_at, other.reason = now, effect.reason
        self.table_read(state, sent, now)

    def table_failed(self, effect: MemberEffect, sent: float, now: float) -> None:
        """Record that a call of the table failed, or that its outcome is unknown."""
        self._asking.discard(type(effect))
        self._watch.awake(now)
        self._watch.interrupted()
        again_at = sent + self._settings.beat_seconds
        if isinstance(effect, SendBeat):
            self._beat_at = again_at
        else:
            self._read_wanted, self._read_at = True, again_at

    def changed(self) -> None:
        """Record that the table's version rose, or may have risen."""
        self._read_wanted = True

    def probed(
        self,
        id_: str,
        outcome: ProbeOutcome,
        now: float,
        *,
        detail: str = "",
        unreached: tuple[int, ...] | None = None,
    ) -> None:
        """Record the end of a probe; `unreached` is what the member answered to a joining node."""
        other = self._others.get(id_)
        if other is not None:
            other.probed(outcome, detail, now)
            other.unreached = unreached

    def link_lost(self, id_: str, now: float) -> None:
        """Record that the link to a member broke."""
        other = self._others.get(id_)
        if other is not None:
            other.link_lost(now)

    def asked_back(self, id_: str) -> ClusterMember | None:
        """Return the joining member that asks to be probed, so that the shell dials the address in
        the table and no other; None, and read the table, if it is not in the view."""
        found = self.view.member(id_) if self.view is not None else None
        if found is None:
            self._read_wanted = True
        return found

    # Decisions

    def tick(self, now: float) -> list[MemberEffect]:
        """Return what is to be done now."""
        self._watch.awake(now)
        effects, self._effects = self._effects, []
        if self.stopped or self.view is None:
            return effects
        if now >= self._beat_at and self._ask(SendBeat):
            effects.append(SendBeat())
        if self._needs_read(now) and self._ask(ReadTable):
            self._read_wanted = False
            effects.append(ReadTable())
        for other in self._probed:
            if now >= other.probe_at and not other.probing:
                other.begin_probe()
                joining = self.state is MemberState.JOINING
                effects.append(ProbeMember(other.member, and_back=joining))
        if self.state is MemberState.ACTIVE:
            effects += self._accusations(now)
        elif self._may_become_active() and self._ask(BecomeActive):
            effects.append(BecomeActive())
        return effects

    def next_at(self, now: float) -> float:
        """Return when `tick` has to be called again if no event comes before."""
        if self._effects or self.stopped:
            return now
        times = [now + TICK_SECONDS]
        if SendBeat not in self._asking:
            times.append(self._beat_at)
        if self._read_wanted and ReadTable not in self._asking:
            times.append(self._read_at)
        times += [other.probe_at for other in self._probed if not other.probing]
        if ReadTable not in self._asking and self.state is MemberState.ACTIVE:
            times += [self._suspicion_at(other) for other in self._accusable()]
        return max(now, min(times))

    def linked_ids(self) -> set[str]:
        """Return the ids of the members to which this one keeps links."""
        return {other.member.id for other in self._probed}

    def hindrances(self) -> list[str]:
        """Return, in whole sentences, what keeps this member from becoming active."""
        if self.view is None or self._watch.since is None:
            return ["The membership table does not answer."]
        return [sentence for other in self._others_active() if (sentence := self._hindered(other))]

    # The parts of these

    def _ask(self, kind: type[MemberEffect]) -> bool:
        if kind in self._asking:
            return False
        self._asking.add(kind)
        return True

    def _stop(self, reason: str) -> None:
        if not self.stopped:
            self.stopped = True
            self.state = MemberState.DEAD
            self._effects.append(StopMember(reason))

    def _counted(self, beats: Mapping[str, int], now: float) -> None:
        for id_, other in self._others.items():
            if id_ in beats:
                other.counted(beats[id_], now)

    def _adopt(self, view: ClusterView, beats: Mapping[str, int], now: float) -> None:
        before, self.view = self.view, view
        own = view.member(self.me.id)
        if own is None:
            self._stop("other members declared it dead, or a later start announced its address")
            return
        gone = tuple(
            GoneMember(one, self._why_gone(one, view))
            for one in (before.members if before is not None else ())
            if view.member(one.id) is None
        )
        others: dict[str, WatchedMember] = {}
        for one in view.members:
            if one.id == self.me.id:
                continue
            known = self._others.get(one.id)
            if known is None:
                known = WatchedMember(one, beats.get(one.id, 0), now)
            known.member = one
            others[one.id] = known
        self._others = others
        self.state = own.state
        self._probed = self._probed_members()
        self._effects.append(AdoptView(before, view, gone))

    def _why_gone(self, one: ClusterMember, view: ClusterView) -> str:
        if any(other.name == one.name for other in view.members):
            return "a later start of the node announced its address"
        if one.state is MemberState.DRAINING:
            return "it left the cluster"
        known = self._others.get(one.id)
        if known is not None and known.reason:
            return known.reason
        return "it left, or other members declared it dead"

    def _successors(self) -> Iterator[WatchedMember]:
        ids = sorted(self._others)
        for id_ in [id_ for id_ in ids if id_ > self.me.id] + [
            id_ for id_ in ids if id_ < self.me.id
        ]:
            yield self._others[id_]

    def _probed_members(self) -> list[WatchedMember]:
        if self.state is MemberState.JOINING:
            return list(self._others_active())
        return [other for other, _ in zip(self._successors(), range(WATCHED_MAX), strict=False)]

    def _accusable(self) -> list[WatchedMember]:
        """Return the members that this one may accuse: those that it probes, and the stale ones,
        whose watchers may all be dead as well."""
        if len(self._others) <= WATCHED_MAX:
            return list(self._others.values())
        watched = self._probed
        stale = [one for one in self._others.values() if self._stale(one) and one not in watched]
        return watched + stale

    def _others_active(self) -> Iterator[WatchedMember]:
        return (one for one in self._others.values() if one.member.state is MemberState.ACTIVE)

    def _silent(self, other: WatchedMember) -> bool:
        return self._watch.silent_seconds(other.seen_at) >= self._settings.lease_seconds

    def _stale(self, other: WatchedMember) -> bool:
        return self._watch.silent_seconds(other.seen_at) >= stale_seconds(self._settings)

    def _suspicion_at(self, other: WatchedMember) -> float:
        """Return when a read would first show that the member's lease is over; `inf` if one has
        shown it already."""
        at = self._watch.suspicion_at(other.seen_at, self._settings.lease_seconds)
        return at if self._watch.confirmed < at else inf

    def _needs_read(self, now: float) -> bool:
        if self._read_wanted:
            return now >= self._read_at
        return self.state is MemberState.ACTIVE and any(
            now >= self._suspicion_at(other) for other in self._accusable()
        )

    def _needed(self, accused: WatchedMember) -> int:
        voters = {self.me.id, accused.member.id}
        voters.update(one.member.id for one in self._others_active() if not self._stale(one))
        return min(VOTES_MAX, (len(voters) + 1) // 2)

    def _accusations(self, now: float) -> Iterator[MemberEffect]:
        """Yield at most one vote: the table's answer to it may change everything."""
        view = self.view
        if view is None or self._watch.since is None or self._read_wanted:
            return
        for other in self._accusable():
            if other.refuses(now):
                reason = "its link broke and its port refuses connections"
            elif self._silent(other):
                seconds = self._settings.lease_seconds
                reason = f"it sent no heartbeat for {seconds:g} seconds"
            else:
                continue
            needed = self._needed(other)
            if other.may_ask(view.version, needed, now) and self._ask(AccuseMember):
                yield AccuseMember(other.member, other.beat, view.version, needed, reason)

    def _may_become_active(self) -> bool:
        return (
            self.state is MemberState.JOINING
            and self._watch.since is not None
            and not self._read_wanted
            and ReadTable not in self._asking
            and not self.hindrances()
        )

    def _hindered(self, other: WatchedMember) -> str:
        name = other.member.name
        if self._stale(other):
            return ""
        if other.outcome is None:
            return f"Node {name} was not probed yet."
        if other.outcome is not ProbeOutcome.REACHED:
            return f"Node {name} is active and cannot be reached: {other.detail}."
        if other.unreached is None:
            return f"Node {name} has not answered whether it reaches this node."
        if other.unreached:
            ports = ", ".join(map(str, other.unreached))
            return f"Node {name} cannot connect to this node at {self.me.host}, ports {ports}."
        return ""


def without_common_version(me: ClusterMember, view: ClusterView) -> ClusterMember | None:
    """Return a member of the view that speaks no version of the protocol that `me` speaks; None if
    there is none."""
    return next(
        (
            one
            for one in view.members
            if one.id != me.id and one.versions and me.versions
            if not set(one.versions) & set(me.versions)
        ),
        None,
    )
