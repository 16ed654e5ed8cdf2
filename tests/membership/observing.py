"""Members, tables and an observer under test, whose clock is a number."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from maitred.membership.member_effects import (
    AccuseMember,
    ProbeMember,
    ProbeOutcome,
    ReadTable,
    SendBeat,
)
from maitred.membership.observer import Observer
from maitred.membership.table import Beats, TableState
from maitred.membership.view import ClusterMember, ClusterView, MemberState
from maitred.settings import ClusterSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Set

    from maitred.membership.member_effects import MemberEffect

_Effect = TypeVar("_Effect")

SETTINGS = ClusterSettings(beat_seconds=1.0, lease_seconds=5.0)


def member(number: int, state: MemberState = MemberState.ACTIVE) -> ClusterMember:
    """A member; its id is in the order of the numbers."""
    return ClusterMember(
        id=f"{number:016x}",
        node=f"node-{number}",
        host=f"10.0.0.{number}",
        port=4747,
        member_port=4746,
        shards=2,
        shard_ports=(4748, 4749),
        state=state,
        versions=(4,),
    )


def view(version: int, members: Iterable[ClusterMember]) -> ClusterView:
    return ClusterView(
        cluster="maitred", version=version, members=tuple(sorted(members, key=lambda one: one.id))
    )


class ObserverUnderTest:
    """An observer with a table that the test changes at will; `pass_time` answers its calls."""

    def __init__(
        self,
        others: int = 2,
        *,
        state: MemberState = MemberState.ACTIVE,
        silent: Set[int] = frozenset(),
    ) -> None:
        self.now = 100.0
        self.version = 1
        self.members = {number: member(number) for number in range(1, others + 1)}
        self.me = member(0, state)
        self.members[0] = self.me
        self.beats = dict.fromkeys(self.members, 1)
        self.silent = set(silent)
        """The members that send no heartbeats."""
        self.away = False
        """Whether the table does not answer."""
        self.probes_end: ProbeOutcome | None = None
        """How probes end; None: they do not."""
        self.observer = Observer(self.me, SETTINGS)
        self.effects: list[MemberEffect] = []
        self.observer.joined(self.table(), self.now, self.now)
        self.tick()

    def table(self) -> TableState:
        found = view(self.version, self.members.values())
        return TableState(found, {self.members[n].id: self.beats[n] for n in self.members})

    def set_state(self, number: int, state: MemberState) -> None:
        """Change a member in the table, with the next version."""
        self.version += 1
        if state is MemberState.DEAD:
            del self.members[number]
        else:
            self.members[number] = replace(self.members[number], state=state)

    def tick(self) -> None:
        """Let the observer decide, and answer its calls of the table at once."""
        for _ in range(10):
            effects = self.observer.tick(self.now)
            self.effects += effects
            for effect in effects:
                self.answer(effect)
            if not effects:
                return

    def answer(self, effect: MemberEffect) -> None:
        if isinstance(effect, SendBeat | ReadTable) and self.away:
            self.observer.table_failed(effect, self.now, self.now)
        elif isinstance(effect, SendBeat):
            beats = {self.members[n].id: self.beats[n] for n in self.members}
            answer = Beats(self.version, beats, 0 in self.members)
            self.observer.beat_answered(answer, self.now, self.now + 1e6, self.now)
        elif isinstance(effect, ReadTable):
            self.observer.table_read(self.table(), self.now, self.now)
        elif isinstance(effect, ProbeMember) and self.probes_end is not None:
            self.observer.probed(effect.member.id, self.probes_end, self.now)
        elif isinstance(effect, AccuseMember):
            self.observer.accused(effect, self.table(), self.now, self.now)

    def pass_time(self, seconds: float, step: float = 0.25) -> None:
        """Let time pass; all members but the silent ones send a heartbeat each second."""
        for _ in range(round(seconds / step)):
            self.now += step
            if self.now % 1.0 < step:
                for number in self.beats.keys() - self.silent:
                    self.beats[number] += 1
            self.tick()

    def taken(self, kind: type[_Effect]) -> list[_Effect]:
        """The effects of this kind since the last call, in their order."""
        found: list[_Effect] = [one for one in self.effects if isinstance(one, kind)]
        self.effects = [effect for effect in self.effects if not isinstance(effect, kind)]
        return found

    def accused(self) -> set[str]:
        return {effect.member.id for effect in self.taken(AccuseMember)}

    def probed(self) -> set[str]:
        return {effect.member.id for effect in self.taken(ProbeMember)}
