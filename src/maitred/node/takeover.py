"""Asks the owners of partitions to hand them over, before this shard acquires them.

Acquiring a partition is enough for safety: the last owner can write nothing from then on. But what
that owner only had in memory would be lost, and the new one would have to wait for the workers of
the tasks that run. So a shard in a cluster looks up who acquired the partition last. If that member
is alive, its shard is asked to let the partition go, and the answer says what runs.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from maitred.errors import DeadlineExceeded, Draining, MaitredError, NotOwner
from maitred.matching.hand_out import not_trusted
from maitred.matching.running_attempts import Inheritance
from maitred.membership.homes import FormerHomes
from maitred.protocol.cluster import HandedOver, HandOver
from maitred.protocol.tasks import Describe
from maitred.store.fences import UNDONE_RANGES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from msgspec import Struct

    from maitred.matching.records import Acquired, PartitionKey
    from maitred.membership.view import ClusterView
    from maitred.node.shard_services import PartitionShard
    from maitred.store.interface import Store

HAND_OVER_SECONDS: Final = 2.0
"""How long the owner of a partition may take to persist everything and let go. Usually that is one
commit; after this time it is as if the owner were dead."""

PULL_SECONDS: Final = HAND_OVER_SECONDS + 0.5
"""How long a shard waits for the owner's answer."""

MUTE_SECONDS: Final = 2.0
"""How long a member that did not answer is not asked again: the partitions of a member that hangs
must not wait one after another."""

TOLD_SECONDS: Final = 60.0
"""How long the answer of an owner is kept if the partition could not be loaded then. Leases are
shorter."""


class FormerOwner(NamedTuple):
    """The member that acquired a partition last, as far as it has to be asked."""

    range_id: int = 0
    """The partition's range id; 0 if the partition does not exist."""
    member: str = ""
    """The member's id; empty if the partition can be acquired at once."""
    shards: tuple[int, ...] = ()
    """The owner numbers of its shards that may have the partition."""


class ToldByOwner(NamedTuple):
    """The answer of the last owner of a partition."""

    handed: HandedOver
    at: float
    """The loop's time at which it came."""
    range_id: int
    """The range id that the partition had last, as far as this shard knows."""


class Takeovers:
    """Asks for partitions on behalf of one shard, and keeps the answers until the partitions are
    loaded."""

    def __init__(self, shard: PartitionShard, store: Store) -> None:
        self._shard = shard
        self._store = store
        self._loop = shard.loop
        self._view: ClusterView | None = None
        self._former: FormerHomes | None = None
        self._muted: dict[str, float] = {}
        """Until when members that did not answer are not asked, by id."""
        self._told: dict[PartitionKey, ToldByOwner] = {}
        self.pulled = self.unanswered = 0
        """Partitions that were handed over to this shard, and requests without an answer."""

    async def owners(self, keys: Sequence[PartitionKey]) -> dict[PartitionKey, FormerOwner]:
        """Return, for each of these partitions, the member that acquired it last and the shards of
        that member that may have it."""
        last = await self._store.owners(keys)
        return {
            key: self._former_owner(key, *last[key]) if key in last else FormerOwner()
            for key in keys
        }

    def _former_owner(self, key: PartitionKey, range_id: int, id_: str) -> FormerOwner:
        shard, now = self._shard, self._loop.time()
        view = shard.view
        member = None if view is None else view.member(id_)
        if view is None or member is None or self._muted.get(id_, now) > now:
            return FormerOwner(range_id)
        if view is not self._view or self._former is None:
            self._view, self._former = view, FormerHomes(view)
        own = shard.number if id_ == shard.place.member else None
        numbers = [one for one in self._former.shards(member, key) if one != own]
        if not numbers:
            return FormerOwner(range_id)
        return FormerOwner(range_id, id_, tuple(shard.owner_number(id_, one) for one in numbers))

    def refusal(self, key: PartitionKey) -> MaitredError | None:
        """Return why this shard must not acquire the partition now, though it was about to: the
        lease or the view may have changed while the store, or the last owner, was asked. A member
        that is stopping may have been declared dead without its shards being told."""
        if self._shard.draining:
            return Draining("The node is stopping.")
        if not self._shard.trusted():
            return not_trusted()
        return None if is_owner(self._shard, key) else moved()

    async def pull(self, key: PartitionKey, owner: FormerOwner) -> None:
        """Ask these shards for the partition, one of which may have it; raise `NotOwner` if one of
        them owns it by a newer view than this shard's."""
        outcomes = await asyncio.gather(*(self._ask(key, one) for one in owner.shards))
        if owner.member != self._shard.place.member and any(map(_is_unanswered, outcomes)):
            self._muted[owner.member] = self._loop.time() + MUTE_SECONDS
        for outcome in outcomes:
            if isinstance(outcome, NotOwner):
                raise outcome
        answers = [one for one in outcomes if isinstance(one, HandedOver) and one.range_id]
        if not answers:
            return
        best = max(answers, key=_range_id)
        self.pulled += best.released
        now = self._loop.time()
        for old in [one for one, told in self._told.items() if told.at < now - TOLD_SECONDS]:
            del self._told[old]
        self._told[key] = ToldByOwner(best, now, best.range_id)

    async def _ask(self, key: PartitionKey, owner: int) -> Struct | MaitredError:
        shard = self._shard
        future: asyncio.Future[Struct | MaitredError] = self._loop.create_future()
        version = shard.view.version if shard.view is not None else 0

        def done(outcome: Struct | MaitredError) -> None:
            if not future.done():
                future.set_result(outcome)

        asked = shard.ask(HandOver(*key, 0, version), PULL_SECONDS, done, owner=owner)
        try:
            async with asyncio.timeout(PULL_SECONDS + 1.0):
                outcome = await future
        except TimeoutError:  # a shard of this process has no deadline of its own
            asked.give_up()
            outcome = DeadlineExceeded("The owner of the partition did not answer in time.")
        if _is_unanswered(outcome):
            self.unanswered += 1
            shard.log.warning(
                "partition not handed over",
                queue=key.queue,
                partition=key.partition,
                error=outcome,
            )
        return outcome

    def inherited(self, key: PartitionKey, acquired: Acquired) -> Inheritance | None:
        """Return what the last owner told, for the owner that has just acquired the partition; None
        if it told nothing, or if another shard has owned the partition since."""
        told = self._told.get(key)
        if told is None:
            return None
        if acquired.range_id - told.range_id not in (1, UNDONE_RANGES):
            del self._told[key]
            return None
        # It still holds if this shard has to acquire the partition once more.
        self._told[key] = told._replace(range_id=acquired.range_id)
        return Inheritance(told.handed.attempts, told.handed.released, told.at)

    def loaded(self, key: PartitionKey) -> None:
        """Forget what the last owner told: the partition is loaded."""
        self._told.pop(key, None)


def is_owner(shard: PartitionShard, key: PartitionKey) -> bool:
    """Return whether the shard owns the partition by its view."""
    try:
        return shard.owner_of(Describe(*key, 0)) == shard.number
    except MaitredError:  # no member is active, or this one is dead
        return False


def moved() -> NotOwner:
    """Return the error for callers of a partition that is handed over: they ask again, and find its
    next owner."""
    return NotOwner("Another shard owns this partition now.", remedy="Ask again.")


def _is_unanswered(outcome: Struct | MaitredError) -> bool:
    return isinstance(outcome, MaitredError) and not isinstance(outcome, NotOwner)


def _range_id(one: HandedOver) -> int:
    return one.range_id
