"""A store for the simulated world: a disk that outlives processes, and a handle for each of them.

    disk = SimulatedDisk(world.random("disk"), DiskFaults(unknown_probability=0.01))
    store = SimulatedStore(disk)        # in each process
    disk.fail_for(5.0)                  # from outside: down, full or slow for a while
    store.cut_off(5.0)                  # only this process does not reach it

A call takes its time to the disk, is done there in one instant, and takes its time back. So a
process that is killed has commits that never arrived, and others that arrived though it was not
told. Some arrive after its death: a database finishes what it was sent. By then another
process may own the partition, and the range id has to keep the dead one out.

A call to a database fails when it has had no answer for a while, as calls of the PostgreSQL engine
do; its write may arrive later. A call to a node's own disk waits for as long as the disk takes.

Overlapping calls overtake each other, as they do on several connections to a database.
"""

from __future__ import annotations

import asyncio
import contextvars
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

from maitred.errors import MaitredError, OutcomeUnknown, StoreFull, StoreUnavailable
from maitred.simulation.disk import Contents
from maitred.store.fences import Fences
from maitred.store.interface import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from random import Random

    from maitred.matching.records import Acquired, Changes, PartitionKey
    from maitred.store.fences import Fence
    from maitred.store.interface import Acquisition

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")

HANG_SECONDS: Final = 4.0
"""The longest time for which a call of a process that is cut off hangs before it fails."""


@dataclass(frozen=True, slots=True)
class DiskFaults:
    """How long a disk takes and how often it misbehaves; probabilities are per call."""

    delay_min_seconds: float = 0.000_1
    """Shortest way to the disk, and back."""

    delay_max_seconds: float = 0.002
    """Longest usual one; delays are uniform in between."""

    spike_probability: float = 0.0
    """The way to the disk or back takes up to `spike_seconds` longer."""

    spike_seconds: float = 0.5
    """Longest spike: a disk that others use, a server that waits for its own."""

    failure_probability: float = 0.0
    """`StoreUnavailable`, and nothing was done."""

    unknown_probability: float = 0.0
    """A commit ends with `OutcomeUnknown`; half of those were done."""

    posthumous_probability: float = 0.5
    """A write under way when its process dies is done all the same."""

    def calm(self) -> DiskFaults:
        """Return the same delays without faults."""
        return replace(
            self, spike_probability=0.0, failure_probability=0.0, unknown_probability=0.0
        )

    @classmethod
    def drawn(cls, random: Random) -> DiskFaults:
        """Draw faults for one seed: with all faults always on, the frequent ones would hide what
        the rare ones find."""
        return cls(
            delay_max_seconds=random.choice((0.000_2, 0.002, 0.02)),
            spike_probability=random.choice((0.0, 0.0, 0.01, 0.1)),
            failure_probability=random.choice((0.0, 0.0, 0.01, 0.1)),
            unknown_probability=random.choice((0.0, 0.0, 0.01, 0.05)),
            posthumous_probability=random.choice((0.0, 0.5, 1.0)),
        )


class SimulatedDisk:
    """One database, or one node's disk. Belongs to no process."""

    def __init__(self, random: Random, faults: DiskFaults | None = None) -> None:
        self.faults = faults or DiskFaults()
        """The faults of the disk; they may be changed during a run."""
        self.contents = Contents(random)
        """The contents of the disk, for checks from outside, which take no time and cannot fail."""
        self.random = random
        self._down_until = self._full_until = self._slow_until = 0.0
        self._slowness = 1.0

    def fail_for(self, seconds: float) -> None:
        """Let every call fail for this time; commits in progress may have been written."""
        self._down_until = asyncio.get_running_loop().time() + seconds

    def fill_for(self, seconds: float) -> None:
        """Refuse every write for this time, as a full disk does."""
        self._full_until = asyncio.get_running_loop().time() + seconds

    def slow_for(self, seconds: float, factor: float) -> None:
        """Let calls that begin within this time take `factor` times as long."""
        self._slow_until = asyncio.get_running_loop().time() + seconds
        self._slowness = factor

    def fail_over(self, standby: Contents, seconds: float) -> None:
        """Lose all that was written since `standby` was copied from the contents, as a failover to
        an asynchronous standby does; every call fails for this time."""
        standby.timeline = self.contents.timeline + 1
        self.contents = standby
        self.fail_for(seconds)

    def calm(self) -> None:
        """End all faults of the disk."""
        self.faults = self.faults.calm()
        self._down_until = self._full_until = self._slow_until = 0.0

    def down(self, now: float) -> bool:
        return now < self._down_until

    def full(self, now: float) -> bool:
        return now < self._full_until

    def delay(self, now: float) -> float:
        """Draw the delay of one way to the disk, in seconds."""
        faults, random = self.faults, self.random
        shortest = faults.delay_min_seconds
        # As `uniform` draws it, which is a detour for every call.
        delay = shortest + (faults.delay_max_seconds - shortest) * random.random()
        if random.random() < faults.spike_probability:
            delay += random.uniform(0, faults.spike_seconds)
        return delay * self._slowness if now < self._slow_until else delay


def _asking(
    method: Callable[Concatenate[Contents, _Given], _Result],
    *,
    writes: bool = False,
    commit: bool = False,
) -> Callable[Concatenate[SimulatedStore, _Given], Coroutine[Any, Any, _Result]]:
    """Return a method of the store that runs this one on the contents of its disk, with the delays
    and the faults of the disk. Only a commit may have an unknown outcome."""

    async def ask(self: SimulatedStore, /, *given: _Given.args, **named: _Given.kwargs) -> _Result:
        action = partial(method, self.disk.contents, *given, **named)
        return await self.ask(action, writes=writes, commit=commit)

    return ask


class SimulatedStore:
    """The handle of one process to a `SimulatedDisk`; implements `Store`."""

    def __init__(
        self, disk: SimulatedDisk, owner: str = "", *, answer_seconds: float = inf
    ) -> None:
        """`answer_seconds` is how long a call waits for its answer before it fails; infinite for a
        disk of the node's own."""
        self.disk = disk
        self.owner = owner
        """The name with which the process acquires partitions; empty for range ids alone."""
        self._answer_seconds = answer_seconds
        self._fences = Fences()
        self._timeline = disk.contents.timeline
        self._may_have_lost: Callable[[], None] | None = None
        self._cut_until = 0.0
        self._under_way = 0
        self._closed = False
        self._idle: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<SimulatedStore {state}, {self._under_way} calls under way>"

    owners = _asking(Contents.owners)
    segments = _asking(Contents.segments)
    segments_around = _asking(Contents.segments_around)
    later = _asking(Contents.later)
    later_after = _asking(Contents.later_after)
    later_one = _asking(Contents.later_one)
    dead = _asking(Contents.dead)
    dead_one = _asking(Contents.dead_one)
    later_count = _asking(Contents.later_count)
    dead_count = _asking(Contents.dead_count)
    damaged = _asking(Contents.damaged)
    damaged_one = _asking(Contents.damaged_one)
    damaged_around = _asking(Contents.damaged_around)
    damaged_count = _asking(Contents.damaged_count)
    result = _asking(Contents.result)
    history = _asking(Contents.history)
    forget_results = _asking(Contents.forget_results, writes=True)
    partitions = _asking(Contents.partitions)
    queues = _asking(Contents.queues)
    queue_count = _asking(Contents.queue_count)
    empty_partitions = _asking(Contents.empty_partitions)
    forget = _asking(Contents.forget, writes=True)
    delete_queue = _asking(Contents.delete_queue, writes=True)
    partitions_with_tasks = _asking(Contents.partitions_with_tasks)
    children_with_tasks = _asking(Contents.children_with_tasks)
    use = _asking(Contents.use)
    signing_key = _asking(Contents.signing_key, writes=True)
    document = _asking(Contents.document)
    replace_document = _asking(Contents.replace_document, writes=True, commit=True)

    async def acquire(self, group: Sequence[Acquisition]) -> list[Acquired | Refusal]:
        def act() -> tuple[list[tuple[Fence, str]], list[Acquired | Refusal]]:
            contents = self.disk.contents
            before = [contents.fence(one.key) for one in group]
            return before, contents.acquire(group, self.owner)

        before, outcomes = await self.ask(act, writes=True, commit=False)
        return [
            outcome if isinstance(outcome, Refusal) else self._acquired(one.key, outcome, *found)
            for one, outcome, found in zip(group, outcomes, before, strict=True)
        ]

    def _acquired(self, key: PartitionKey, made: Acquired, found: Fence, owner: str) -> Acquired:
        is_own = bool(self.owner) and owner == self.owner
        undone = self._fences.acquired(key, made.range_id, found, is_own=is_own)
        return made._replace(undone=undone and bool(self.owner), own=is_own)

    async def overtaken(self, group: Sequence[PartitionKey]) -> list[PartitionKey]:
        known = {key: self._fences.get(key) for key in group}

        def act() -> list[PartitionKey]:
            return [
                key
                for key, mine in known.items()
                if mine is not None and not self._holds(mine, *self.disk.contents.fence(key))
            ]

        return await self.ask(act, writes=False, commit=False)

    def _holds(self, mine: Fence, found: Fence, owner: str) -> bool:
        return (found.range_id, owner) == (
            mine.range_id,
            self.owner,
        ) and found.commits >= mine.commits

    def watch(self, may_have_lost: Callable[[], None]) -> None:
        self._may_have_lost = may_have_lost

    async def commit(self, group: Sequence[Changes]) -> list[PartitionKey]:
        commits = [self._fences.commits(one.key, one.range_id) for one in group]
        action = partial(self.disk.contents.commit, group, self.owner, commits)
        overtaken = await self.ask(action, writes=True, commit=True)
        for changes in group:
            if changes.key not in overtaken:
                self._fences.confirmed(changes.key)
        return overtaken

    def cut_off(self, seconds: float) -> None:
        """Let this process not reach the disk for this time; what is under way may be done."""
        self._cut_until = asyncio.get_running_loop().time() + seconds

    def reconnect(self) -> None:
        """End a `cut_off`."""
        self._cut_until = 0.0

    async def close(self) -> None:
        self._closed = True
        while self._under_way:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    async def ask(self, action: Callable[[], _Result], *, writes: bool, commit: bool) -> _Result:
        """Let the action travel to the disk, run there, and its outcome travel back."""
        if self._closed:
            raise StoreUnavailable("The store is closed.")
        loop, disk = asyncio.get_running_loop(), self.disk
        answer: asyncio.Future[_Result] = loop.create_future()
        if loop.time() < self._cut_until:
            await asyncio.sleep(disk.random.random() * HANG_SECONDS)
            raise StoreUnavailable("The store cannot be reached.")
        there, back = disk.delay(loop.time()), disk.delay(loop.time())
        is_late = there + back > self._answer_seconds

        def arrive() -> None:
            outcome = self._outcome(action, loop.time(), writes=writes, commit=commit)
            if not is_late:
                loop.call_later(back, settle, outcome)

        def give_up() -> None:
            self._left()
            if not answer.done():
                answer.set_exception(_not_answered(commit=commit))
                answer.exception()

        def settle(outcome: _Result | MaitredError) -> None:
            self._left()
            self._see_timeline()
            lost = disk.down(loop.time()) or loop.time() < self._cut_until
            if commit and lost and not isinstance(outcome, MaitredError):
                outcome = OutcomeUnknown("The store was lost before it confirmed.")
            if answer.done():  # the caller has stopped waiting
                return
            if isinstance(outcome, MaitredError):
                answer.set_exception(outcome)
                answer.exception()  # counts as seen: a process that was killed never will
            else:
                answer.set_result(outcome)

        # Nothing of a dead process runs, unless it runs in the context of no process.
        posthumous = writes and disk.random.random() < disk.faults.posthumous_probability
        loop.call_later(there, arrive, context=contextvars.Context() if posthumous else None)
        if is_late:
            loop.call_later(self._answer_seconds, give_up)
        self._under_way += 1
        return await answer

    def _outcome(
        self, action: Callable[[], _Result], now: float, *, writes: bool, commit: bool
    ) -> _Result | MaitredError:
        disk = self.disk
        faults, luck = disk.faults, disk.random.random()
        if disk.down(now) or luck < faults.failure_probability:
            return StoreUnavailable("The store does not answer.")
        if writes and disk.full(now):
            return StoreFull("The disk is full.")
        if commit and luck > 1 - faults.unknown_probability:
            if luck > 1 - faults.unknown_probability / 2:
                action()
            return OutcomeUnknown("The store was lost before it confirmed.")
        return action()

    def _see_timeline(self) -> None:
        """Tell the process if the disk has failed over since the last answer, as a new connection
        to a database would."""
        timeline = self.disk.contents.timeline
        if timeline != self._timeline:
            self._timeline = timeline
            if self._may_have_lost is not None:
                self._may_have_lost()

    def _left(self) -> None:
        self._under_way -= 1
        if not self._under_way and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)


def _not_answered(*, commit: bool) -> MaitredError:
    """Return the error of a call that had no answer in time."""
    text = "The store did not answer in time."
    return OutcomeUnknown(text) if commit else StoreUnavailable(text)
