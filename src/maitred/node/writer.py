"""Group commit: what all partitions of a shard have to write goes to the store together.

One commit is under way at a time; what comes up meanwhile is the next one. So a lone task is
written at once, and under load the groups grow by themselves.
"""

from __future__ import annotations

import asyncio
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final

from maitred.errors import MaitredError, NotOwner, OutcomeUnknown, StoreUnavailable
from maitred.matching.store_health import UNSAFE_SECONDS
from maitred.store.interface import PartlyWritten
from maitred.wire.alarm import Alarm
from maitred.wire.silence import SilenceTimer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maitred.matching.records import PartitionKey
    from maitred.node.partition_driver import Owned
    from maitred.node.partitions import Partitions
    from maitred.node.shard import Shard
    from maitred.store.interface import Store

RETRY_SECONDS: Final = 0.25
"""After a failure, before the store is tried again; nobody waits for this: who cannot be served
meanwhile is told at once."""


class Writer:
    """Takes batches from partitions, commits them, and reports."""

    def __init__(self, shard: Shard, store: Store) -> None:
        self._shard = shard
        self._store = store
        self._partitions: Partitions | None = None
        self._wanting: dict[Owned, float] = {}
        """Who has something to write, and when."""
        self._awake = asyncio.Event()
        self._alarm = Alarm(shard.loop, self._rings)
        self._failing = False
        self._silence: SilenceTimer | asyncio.TimerHandle | None = None
        """Rings when the commit under way has not been answered for `UNSAFE_SECONDS`."""
        self._silent: MaitredError | None = None
        """What producers hear since it rang."""
        self._committing = asyncio.Lock()
        self.commits = 0

    def begin(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._shard.spawn(self._run(partitions))

    def look_at(self, owned: Owned, now: float) -> None:
        """Something happened to the partition: does it want to write?"""
        partition = owned.partition
        at = partition.ledger.wanted_at(partition.settings.finish_seconds)
        if at == inf:
            self._wanting.pop(owned, None)
            return
        self._wanting[owned] = at
        if at <= now:
            self._awake.set()
        elif at < self._alarm.at:
            self._alarm.by(at)

    def _rings(self, _: float) -> None:
        self._awake.set()

    async def _run(self, partitions: Partitions) -> None:
        loop = self._shard.loop
        while True:
            await self._awake.wait()
            self._awake.clear()
            now = loop.time()
            due = [owned for owned, at in self._wanting.items() if at <= now]
            for owned in due:
                del self._wanting[owned]
            if due:
                await self.commit(due, partitions)
            if self._failing:
                await asyncio.sleep(RETRY_SECONDS)
                await self._probe(partitions)
            if self._wanting:
                soonest = min(self._wanting.values())
                if soonest <= loop.time():
                    self._awake.set()
                else:
                    self._alarm.by(soonest)

    async def finish(self, partitions: Partitions) -> None:
        """The last commit, of everything; the shard stops."""
        await self.commit(list(partitions.owned.values()), partitions, anything=True, clean=True)

    async def _probe(self, partitions: Partitions) -> None:
        """Is the store back? Those who could not write try again, with whatever they have."""
        failing = [one for one in partitions.owned.values() if one.partition.health.problem]
        if failing:
            await self.commit(failing, partitions, anything=True)
        else:
            self._failing = False
        if self._failing:
            self._awake.set()

    async def commit(
        self,
        due: Iterable[Owned],
        partitions: Partitions,
        *,
        anything: bool = False,
        clean: bool = False,
    ) -> None:
        """Write what they have, and tell them what came of it."""
        async with self._committing:
            loop = self._shard.loop
            ring = partial(self._store_is_silent, partitions)
            self._silence = SilenceTimer(loop, UNSAFE_SECONDS, ring)
            try:
                await self._commit(due, partitions, anything=anything, clean=clean)
            finally:
                self._silence.cancel()
                self._silent = None

    def _store_is_silent(self, partitions: Partitions) -> None:
        """The commit under way is not answered. Other partitions cannot write either while it is,
        so all of them refuse what no worker takes; those that are loaded meanwhile do so soon."""
        loop = self._shard.loop
        if self._silent is None:
            self._silent = store_silent(UNSAFE_SECONDS)
            self._note(self._silent)
        now = loop.time()
        for owned in list(partitions.owned.values()):
            if owned.partition.health.problem is None:
                try:
                    owned.partition.store_replies.store_silent(self._silent, now)
                except Exception as fault:  # noqa: BLE001 - the others are told all the same
                    partitions.failed(owned, fault)
                partitions.touch(owned)
        self._silence = loop.call_later(RETRY_SECONDS, self._store_is_silent, partitions)

    def _store_answers(self, partitions: Partitions) -> None:
        """The commit was written after all: partitions that had no part in it go on, too."""
        for owned in partitions.owned.values():
            if owned.partition.health.problem is self._silent:
                owned.partition.store_replies.store_answers()
                partitions.touch(owned)

    async def _commit(
        self, due: Iterable[Owned], partitions: Partitions, *, anything: bool, clean: bool
    ) -> None:
        loop = self._shard.loop
        now = loop.time()
        batches = []
        for owned in due:
            if partitions.owned.get(owned.key) is not owned:
                continue  # it left in order while this waited for another commit
            try:
                batch = owned.partition.ledger.take(now, anything=anything)
            except Exception as fault:  # noqa: BLE001 - the others are written all the same
                partitions.failed(owned, fault)
                continue
            if batch is not None:
                batch.changes.clean = clean and owned.partition.unattended
                batches.append((owned, batch.changes))
        if not batches:
            return
        problem: MaitredError | None = None
        overtaken: Iterable[PartitionKey] = ()
        written = {owned.key for owned, _ in batches}
        try:
            overtaken = await self._store.commit([changes for _, changes in batches])
            self.commits += 1
        except PartlyWritten as partly:
            problem = partly.problem
            written = set(partly.written)
            overtaken = partly.overtaken
        except OutcomeUnknown as unknown:
            # Both are possible: whoever reads the store again knows. So we leave, and come again.
            for owned, _ in batches:
                partitions.lost(owned.key, unknown)
            return
        except MaitredError as failure:
            problem = failure
            written = set()
        except Exception:
            # No engine should; but if this were the end of the writer, everybody would wait for
            # ever.
            self._shard.log.exception("commit failed")
            nobody_knows = OutcomeUnknown("The store failed; the node's log says more.")
            for owned, _ in batches:
                partitions.lost(owned.key, nobody_knows)
            return
        self._note(problem)
        if problem is None and self._silent is not None:
            self._store_answers(partitions)
        now = loop.time()
        for owned, _ in batches:
            if partitions.owned.get(owned.key) is not owned:
                continue
            if owned.key in overtaken:
                partitions.lost(owned.key, NotOwner("Somebody else owns this partition now."))
                continue
            try:
                if owned.key in written:
                    owned.partition.store_replies.committed(now)
                elif isinstance(problem, OutcomeUnknown):
                    partitions.lost(owned.key, problem)
                elif problem is not None:
                    owned.partition.store_replies.not_committed(problem, now)
            except Exception as fault:  # noqa: BLE001 - likewise
                partitions.failed(owned, fault)
            partitions.touch(owned)

    def _note(self, problem: MaitredError | None) -> None:
        if problem is not None and not self._failing:
            self._shard.log.error("store cannot be written; tasks are refused", error=problem)
        elif problem is None and self._failing:
            self._shard.log.info("store can be written again")
        self._failing = problem is not None
        if self._failing:
            self._awake.set()


def store_silent(seconds: float) -> StoreUnavailable:
    """Return the error for a request that cannot be served because the store does not answer."""
    return StoreUnavailable(
        f"The store has not answered for {seconds:g} s.",
        remedy="Try again later; the node goes on by itself when the store answers.",
    )
