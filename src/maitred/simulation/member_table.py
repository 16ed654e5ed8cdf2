"""The membership table of a simulated cluster, which outlives processes, and a handle for each.

    members = SimulatedMembers("maitred", disk.random)
    table = SimulatedMemberTable(members, disk)     # in each process
    disk.fail_for(5.0)                              # the whole database is away
    table.cut_off(5.0)                              # only this process does not reach it

`SimulatedMembers` is the table in its plainest form, dictionaries without time and faults. The
handle adds both: the delays and faults of the `SimulatedDisk`, on which the tasks of the simulated
cluster are too, so that an outage of the database is one for everything in it. A write may have an
unknown outcome, done or not done; a notification may be lost. The conformance tests of membership
tables run on it as on PostgreSQL.
"""

from __future__ import annotations

import asyncio
import contextvars
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from msgspec.structs import replace

from maitred.errors import CannotStart, InternalError, OutcomeUnknown, StoreUnavailable
from maitred.membership.table import (
    MEMBER_SECONDS,
    TIMELINE_VERSIONS,
    VOTE_SECONDS,
    Beats,
    TableState,
    Vote,
)
from maitred.membership.view import MEMBER_TABLE, ClusterMember, ClusterView, MemberState
from maitred.simulation.hosts import EPOCH_SECONDS
from maitred.simulation.store import SimulatedStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from maitred.simulation.store import SimulatedDisk

_Result = TypeVar("_Result")

SECRET_BYTES: Final = 32
HANG_SECONDS: Final = 4.0
"""The longest time for which a call of a process that is cut off hangs before it fails."""


class _CountedVote(NamedTuple):
    at: float
    beat: int


class SimulatedDeath(NamedTuple):
    """A death in the table, for the checks of scenarios."""

    at: float
    member: ClusterMember
    """The member as it was before."""
    cause: str
    """`votes`, `replaced` or `left`."""
    votes: tuple[str, ...] = ()
    """The ids of those who voted."""


@dataclass(slots=True)
class SimulatedMembers:
    """The contents of the table; every method is one transaction. `now` is the database's clock."""

    cluster: str
    random: Random
    version: int = 0
    rows: dict[str, ClusterMember] = field(default_factory=dict)
    """All members that ever were, by id."""
    beats: dict[str, int] = field(default_factory=dict)
    loads: dict[str, float] = field(default_factory=dict)
    clocks: dict[str, float | None] = field(default_factory=dict)
    """How far each member's clock is ahead of the database's, as the member says."""
    votes: dict[str, dict[str, _CountedVote]] = field(default_factory=dict)
    """The votes by accused and accuser."""
    deaths: list[SimulatedDeath] = field(default_factory=list)
    terms: tuple[str, str] = ("0", "wrap")
    timeline: int = 0
    """The number of failovers of the database so far."""
    on_change: list[Callable[[], None]] = field(default_factory=list)
    """Called after each change of the version."""
    _secret: bytes = b""

    def copy(self) -> SimulatedMembers:
        """Return a copy of the contents, without listeners, for a later `restore`."""
        return SimulatedMembers(
            cluster=self.cluster,
            random=self.random,
            version=self.version,
            rows=self.rows.copy(),
            beats=self.beats.copy(),
            loads=self.loads.copy(),
            clocks=self.clocks.copy(),
            votes={accused: by.copy() for accused, by in self.votes.items()},
            terms=self.terms,
            timeline=self.timeline,
            _secret=self._secret,
        )

    def restore(self, standby: SimulatedMembers) -> None:
        """Lose all that changed since the copy was made, as a failover to an asynchronous standby
        does. As in PostgreSQL, the version rises by more than a moment can lose."""
        copied = standby.copy()
        self.rows, self.beats, self.loads = copied.rows, copied.beats, copied.loads
        self.clocks, self.votes, self.terms = copied.clocks, copied.votes, copied.terms
        self.timeline += 1
        self.version = copied.version + TIMELINE_VERSIONS * (self.timeline - copied.timeline)
        self._changed()

    def secret(self) -> bytes:
        """Return the secret; create it the first time."""
        self._secret = self._secret or self.random.randbytes(SECRET_BYTES)
        return self._secret

    @property
    def living(self) -> list[ClusterMember]:
        """The members that are not dead, ordered by id."""
        rows = sorted(self.rows.values(), key=lambda row: row.id)
        return [row for row in rows if row.state is not MemberState.DEAD]

    def read(self, now: float) -> TableState:
        """Return the whole table."""
        living = self.living
        view = ClusterView(
            cluster=self.cluster,
            version=self.version,
            members=tuple(living),
            spread_batch=self.terms[0],
            placement=self.terms[1],
        )
        votes = tuple(
            Vote(accuser, accused, now - vote.at)
            for accused, by in self.votes.items()
            for accuser, vote in by.items()
            if now - vote.at < VOTE_SECONDS
        )
        return TableState(view, {row.id: self.beats[row.id] for row in living}, votes)

    def join(
        self, member: ClusterMember, spread_batch: str, placement: str, now: float
    ) -> TableState:
        """Insert a joining member, and declare dead all others with its address."""
        if member.id not in self.rows:
            older = [row for row in self.living if row.name == member.name]
            terms = (spread_batch, placement)
            if len(older) < len(self.living) and terms != self.terms:
                raise CannotStart(
                    f"The cluster {self.cluster} places partitions by {self.terms}, not {terms}.",
                    remedy="Give all nodes the same spread_batch and placement.",
                )
            self.terms = terms
            for row in older:
                self._die(row.id, now, "replaced")
            self.rows[member.id] = replace(member, state=MemberState.JOINING, since=now)
            self.beats[member.id] = 0
            self._changed()
        return self.read(now)

    def beat(self, id_: str, load: float, clock_ahead_seconds: float | None, now: float) -> Beats:
        """Count a heartbeat."""
        row = self.rows.get(id_)
        alive = row is not None and row.state is not MemberState.DEAD
        if alive:
            self.beats[id_] += 1
            self.loads[id_] = load
            self.clocks[id_] = clock_ahead_seconds
        beats = {row.id: self.beats[row.id] for row in self.living}
        return Beats(self.version, beats, alive, EPOCH_SECONDS + now)

    def change(self, id_: str, before: MemberState, after: MemberState, now: float) -> TableState:
        """Change the member's state if it is still `before`."""
        row = self.rows.get(id_)
        if row is not None and row.state is before:
            if after is MemberState.DEAD:
                self._die(id_, now, "left")
            else:
                self.rows[id_] = replace(row, state=after, since=now)
            self._changed()
        return self.read(now)

    def accuse(
        self, accuser: str, accused: str, *, beat: int, version: int, needed: int, now: float
    ) -> TableState:
        """Record a vote; declare the accused dead if there are enough."""
        row = self.rows.get(accused)
        current = (
            version == self.version
            and self._is_active(accuser)
            and row is not None
            and row.state is not MemberState.DEAD
            and self.beats[accused] == beat
        )
        if current:
            votes = self.votes.setdefault(accused, {})
            votes[accuser] = _CountedVote(now, beat)
            fresh = [
                by
                for by, vote in votes.items()
                if vote.beat == beat and now - vote.at < VOTE_SECONDS and self._is_active(by)
            ]
            if len(fresh) >= needed:
                self._die(accused, now, "votes", tuple(fresh))
                self._changed()
        return self.read(now)

    def _is_active(self, id_: str) -> bool:
        row = self.rows.get(id_)
        return row is not None and row.state is MemberState.ACTIVE

    def _die(self, id_: str, now: float, cause: str, votes: tuple[str, ...] = ()) -> None:
        row = self.rows[id_]
        self.deaths.append(SimulatedDeath(now, row, cause, votes))
        self.rows[id_] = replace(row, state=MemberState.DEAD, since=now)
        self.votes.pop(id_, None)

    def _changed(self) -> None:
        self.version += 1
        for told in self.on_change:
            told()


class SimulatedMemberTable:
    """The handle of one process to the table; implements `MembershipTable`."""

    def __init__(
        self,
        members: SimulatedMembers,
        disk: SimulatedDisk,
        *,
        lost_notification_probability: float = 0.0,
    ) -> None:
        self.members = members
        self.lost_notification_probability = lost_notification_probability
        """The probability that a process is not told of a change, without any sign of it."""
        self._store = SimulatedStore(disk, answer_seconds=MEMBER_SECONDS)
        self._cut_until = 0.0
        self._told: Callable[[], None] | None = None
        self._context = contextvars.Context()

    def cut_off(self, seconds: float) -> None:
        """Let this process not reach the table for this time; what is under way may be done."""
        loop = asyncio.get_running_loop()
        self._cut_until = max(self._cut_until, loop.time() + seconds)
        if self._told is not None:  # the connection is made anew, and may have missed something
            loop.call_at(self._cut_until, self._told, context=self._context)

    def reconnect(self) -> None:
        """End a `cut_off`."""
        self._cut_until = 0.0

    async def secret(self) -> bytes:
        return await self._ask(self.members.secret, writes=True)

    async def read(self) -> TableState:
        return await self._ask(lambda: self.members.read(_now()), writes=False)

    async def join(self, member: ClusterMember, spread_batch: str, placement: str) -> TableState:
        def insert() -> TableState | CannotStart:
            try:
                return self.members.join(member, spread_batch, placement, _now())
            except CannotStart as problem:
                return problem

        found = await self._ask(insert, writes=True)
        if isinstance(found, CannotStart):
            raise found
        return found

    async def beat(self, id_: str, load: float, clock_ahead_seconds: float | None = None) -> Beats:
        return await self._ask(
            lambda: self.members.beat(id_, load, clock_ahead_seconds, _now()), writes=True
        )

    async def change(self, id_: str, before: MemberState, after: MemberState) -> TableState:
        if after not in MEMBER_TABLE.transitions[before].values():
            raise InternalError(f"A member that is {before.value} cannot become {after.value}.")
        return await self._ask(lambda: self.members.change(id_, before, after, _now()), writes=True)

    async def accuse(
        self, accuser: str, accused: str, *, beat: int, version: int, needed: int
    ) -> TableState:
        def vote() -> TableState:
            return self.members.accuse(
                accuser, accused, beat=beat, version=version, needed=needed, now=_now()
            )

        return await self._ask(vote, writes=True)

    async def listen(self, changed: Callable[[], None]) -> None:
        self._told = changed
        self._context = contextvars.copy_context()
        if self._notify not in self.members.on_change:
            self.members.on_change.append(self._notify)

    async def close(self) -> None:
        if self._notify in self.members.on_change:
            self.members.on_change.remove(self._notify)
        await self._store.close()

    def _notify(self) -> None:
        loop, disk = asyncio.get_running_loop(), self._store.disk
        lost = disk.random.random() < self.lost_notification_probability
        if self._told is not None and not lost and not self._is_cut():
            loop.call_later(disk.delay(loop.time()), self._told, context=self._context)

    def _is_cut(self) -> bool:
        return _now() < self._cut_until

    async def _ask(self, action: Callable[[], _Result], *, writes: bool) -> _Result:
        if self._is_cut():
            await asyncio.sleep(self._store.disk.random.random() * HANG_SECONDS)
            raise StoreUnavailable("The database cannot be reached.")
        found = await self._store.ask(action, writes=writes, commit=writes)
        if self._is_cut():
            if writes:
                raise OutcomeUnknown("The database was lost before it confirmed.")
            raise StoreUnavailable("The database cannot be reached.")
        return found


def _now() -> float:
    return asyncio.get_running_loop().time()
