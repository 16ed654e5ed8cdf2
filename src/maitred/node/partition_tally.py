"""Counts the partitions of a store by the member of the cluster that owns them.

A store can have 100,000 partitions, so a count is made in portions between which the shard serves
requests, is made once however many operators ask for it, and is used again for a while.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from maitred.errors import MaitredError
from maitred.membership.homes import ClusterHomes
from maitred.membership.view import MemberState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maitred.matching.records import PartitionKey
    from maitred.membership.view import ClusterView
    from maitred.store.interface import Store

PORTION: Final = 200
"""Partitions that are placed in one loop turn: some 2 ms."""

OWNERS_PORTION: Final = 1_000
"""Partitions whose owners are asked for in one read of the store."""

REUSE_TIMES: Final = 20
"""A count is used again for this many times as long as it took, so that counting takes at most a
twentieth of the shard's time."""

REUSE_LEAST_SECONDS: Final = 0.5
REUSE_MOST_SECONDS: Final = 30.0


class MemberPartitions(NamedTuple):
    """The number of partitions of each member, by its id."""

    placed: dict[str, int]
    """Partitions that the ring gives to the member."""
    held: dict[str, int]
    """Partitions that a draining member acquired and has not handed over yet."""


class PartitionTally:
    """Counts the partitions of one store, by the newest view that it was asked for."""

    def __init__(self, store: Store, wall_clock: Callable[[], float]) -> None:
        self._store = store
        self._wall_clock = wall_clock
        self._version = -1
        self._counts: MemberPartitions | None = None
        self._reused_until = 0.0
        self._counting: asyncio.Task[None] | None = None

    async def counts(self, view: ClusterView, within: float) -> MemberPartitions | None:
        """Return the counts by this view, waiting for at most `within` seconds; None if that was
        not enough or the store cannot be read. Counting goes on until the next call."""
        loop = asyncio.get_running_loop()
        if view.version != self._version:
            self.close()
            self._version, self._counts = view.version, None
        if self._counts is None or loop.time() >= self._reused_until:
            if self._counting is None or self._counting.done():
                self._counting = loop.create_task(self._count(view))
            await asyncio.wait((self._counting,), timeout=within)
            if self._counting.done() and not self._counting.cancelled():
                self._counting.result()
        return self._counts

    def close(self) -> None:
        """Stop counting."""
        if self._counting is not None:
            self._counting.cancel()
            self._counting = None

    async def _count(self, view: ClusterView) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            keys = await self._store.partitions()
            placed = await self._placed(view, keys)
            held = await self._held(view, keys)
        except MaitredError:
            self._counts = None  # the table of members tells the operator that the store is away
            return
        now = loop.time()
        reuse = min(max(REUSE_TIMES * (now - began), REUSE_LEAST_SECONDS), REUSE_MOST_SECONDS)
        self._counts, self._reused_until = MemberPartitions(placed, held), now + reuse

    async def _placed(self, view: ClusterView, keys: Sequence[PartitionKey]) -> dict[str, int]:
        if not view.active:
            return {}
        homes, now = ClusterHomes(view), self._wall_clock()
        placed: Counter[str] = Counter()
        for start in range(0, len(keys), PORTION):
            placed.update(homes.home(key, now).member.id for key in keys[start : start + PORTION])
            await asyncio.sleep(0)
        return dict(placed)

    async def _held(self, view: ClusterView, keys: Sequence[PartitionKey]) -> dict[str, int]:
        draining = {one.id: 0 for one in view.members if one.state is MemberState.DRAINING}
        if not draining:
            return {}
        for start in range(0, len(keys), OWNERS_PORTION):
            owners = await self._store.owners(keys[start : start + OWNERS_PORTION])
            for last in owners.values():
                if last.member in draining:
                    draining[last.member] += 1
        return draining
