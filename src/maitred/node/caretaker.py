"""The periodic work of a shard for its partitions.

A root keeps the partition counts of its queue, tells them to the other partitions, and scales them
with the load. The shard lets go of idle partitions, deletes those that stay empty, loads partitions
with tasks that no request names, and deletes expired results.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from maitred.errors import MaitredError
from maitred.matching.idleness import Idleness, is_as_new
from maitred.matching.scaler import Scaler
from maitred.node.control_changes import ControlChanges
from maitred.node.handover import KEPT_AT_ONCE, KEPT_BYTES
from maitred.node.ownership import load_only
from maitred.protocol.tasks import Counts, Describe, Sync, Synced
from maitred.settings import Queue

if TYPE_CHECKING:
    from msgspec import Struct

    from maitred.matching.records import PartitionKey
    from maitred.node.owned import Owned
    from maitred.node.partitions import Partitions
    from maitred.routing.counts import PartitionCounts

HISTORIES_SECONDS: Final = 10.0
"""Interval at which ended tasks are forgotten. Lists leave out those that are due before."""

LOOK_SECONDS: Final = 1.0
"""Interval at which the caretaker looks which partitions are due."""

AT_ONCE: Final = 256
"""Partitions that are tended in one loop turn, before requests are served again."""

FIND_SECONDS: Final = 30.0
"""Interval at which the caretaker looks for tasks in partitions that are not loaded."""

TOLD_AT_ONCE: Final = 32
"""Partitions of a queue to which its root sends the counts at a time."""

UNTOLD_LOOKS: Final = 2
"""How many looks of its root a partition waits to be told before it asks: one look may be late."""

EMPTY_AT_ONCE: Final = 1_000
"""Rows of empty partitions that are read at a time: some milliseconds of the store's time."""

FORGOTTEN_AT_ONCE: Final = 100
"""Partitions that are deleted with one commit, so that other commits wait briefly."""

SET_SECONDS: Final = 120.0
"""How long the shard remembers a worker's set of partitions without offers."""

LOOKS: Final = 4
"""How often a shard looks for idle queues within `forget_seconds`, while it knows partitions that
are not in memory. Otherwise it looks a quarter as often, because each look reads the rows of all
empty partitions."""

RESULTS_AT_ONCE: Final = 1_000
"""Expired results that are deleted with one commit."""


class Caretaker:
    """Does the periodic work of one shard: partition counts of the queues whose root it owns, idle
    and abandoned partitions, expired results."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._shard = partitions.shard
        self._loop = partitions.loop
        self._scalers: dict[PartitionKey, Scaler] = {}
        self._changing: dict[PartitionKey, asyncio.Lock] = {}

        self._idleness = Idleness()
        self._histories_at = 0.0
        """When to forget ended tasks next."""
        self.controls = ControlChanges(self, partitions)
        """Changes the controls of the queues whose root the shard owns."""

    def begin(self) -> None:
        self._shard.spawn(self._run())
        self._shard.spawn(self._find())
        self._shard.spawn(self._forget_idle())

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            owned = list(self._partitions.owned.values())
            for start in range(0, len(owned), AT_ONCE):
                now = self._loop.time()
                due = [one for one in owned[start : start + AT_ONCE] if one.tend_at <= now]
                await asyncio.gather(*(self._tend(one, now) for one in due))
                await asyncio.sleep(0)
            self._partitions.supplies.forget_unused(self._loop.time() - SET_SECONDS)
            self._forget_histories()
            with self._shard.failures_logged("histories not stored"):
                await self._partitions.stored_histories.write()
            await self._forget_results()

    def _forget_histories(self) -> None:
        now = self._loop.time()
        if now >= self._histories_at:
            self._histories_at = now + HISTORIES_SECONDS
            self._partitions.histories.forget_expired(now, self._partitions.owned)

    async def _tend(self, owned: Owned, now: float) -> None:
        partition = owned.partition
        owned.tend_at = now + partition.settings.scaling.look_seconds
        try:
            partition.forget(now)
            self._look_at_home(owned, now)
            if owned.key.partition == 0:
                await self._look_at_root(owned, now)
            else:
                self._look_for_root(owned, now)
            await self._let_go_if_idle(owned, now)
        except MaitredError as problem:
            self._shard.log.warning("queue not looked after", queue=owned.key.queue, error=problem)
        except Exception:
            # A failure at one queue must not end the care of the others.
            self._shard.log.exception("queue not looked after", queue=owned.key.queue)

    def _look_at_home(self, owned: Owned, now: float) -> None:
        """Persist results while the partition is about to move: at that moment another shard
        acquires the partition without notice, and has to answer for its results."""
        if self._partitions.moves is not None:
            self._partitions.moves.look_at(owned)  # a change of the batch size may have moved it
        partition = owned.partition
        settings = partition.settings
        left = self._shard.moves_at(owned.key) - self._partitions.wall_clock()
        if left > settings.memory_seconds + 2 * settings.scaling.look_seconds:
            partition.results.write_all(moving=False)
        else:
            partition.results.write_all(moving=True)
            if partition.results.keep_in_store(now, KEPT_AT_ONCE, KEPT_BYTES):
                owned.tend_at = now  # the rest at the next look
                self._partitions.touch(owned)

    async def _find(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            with self._shard.failures_logged("partitions not looked for"):
                await self._load_left_behind()
            await asyncio.sleep(FIND_SECONDS - LOOK_SECONDS)

    async def _load_left_behind(self) -> None:
        """Load partitions with tasks that no request names: a retried dead letter of a removed
        partition is a task that only the store has if its shard died meanwhile. In a cluster the
        last owner of a root may be gone, too."""
        partitions, shard = self._partitions, self._shard
        if partitions.moves is not None:
            await partitions.moves.load_those_with_tasks()
            return
        for key in await partitions.store.children_with_tasks():
            message = load_only(key)
            if key in partitions.owned or shard.owner_of(message) != shard.number:
                continue
            try:
                await partitions.question(message)
            except MaitredError as problem:
                shard.log.warning(
                    "partition not loaded",
                    queue=key.queue,
                    partition=key.partition,
                    error=problem,
                )

    async def _forget_idle(self) -> None:
        queues = [Queue(), *self._shard.settings.queues.values()]
        shortest = min(queue.forget_seconds for queue in queues)
        rest = 0
        while True:
            await asyncio.sleep(min(FIND_SECONDS, shortest / LOOKS))
            rest -= 1
            if rest > 0 and not self._idleness.waiting:
                continue
            rest = LOOKS
            with self._shard.failures_logged("idle queues not looked for"):
                await self._look_for_idle()

    async def _look_for_idle(self) -> None:
        """Delete empty partitions of this shard that were idle for `forget_seconds`. A root goes
        after its other partitions, so a queue may take several looks.

        Each is deleted under the range id with which it was seen: a partition that is loaded
        meanwhile has a higher range id, and stays. Without its lease a node of a cluster may have
        been declared dead, and would delete partitions that others have loaded.
        """
        partitions, shard = self._partitions, self._shard
        if not shard.trusted():
            return
        after = None
        forgotten = 0
        while True:
            found = await partitions.store.empty_partitions(after, EMPTY_AT_ONCE)
            now = self._loop.time()
            due = []
            for key, range_id, counts in found:
                if partitions.has(key) or shard.owner_of(Describe(*key, 0)) != shard.number:
                    continue
                settings = partitions.settings_of(key)
                idle_for = self._idleness.seen(key, range_id, now)
                if idle_for >= settings.forget_seconds and is_as_new(counts, settings):
                    due.append((key, range_id))
            for start in range(0, len(due), FORGOTTEN_AT_ONCE):
                some = due[start : start + FORGOTTEN_AT_ONCE]
                forgotten += len(await partitions.store.forget(some))
            if len(found) < EMPTY_AT_ONCE:
                break
            after = found[-1].key
        self._idleness.pass_ends()
        if forgotten:
            shard.log.info("idle partitions forgotten", partitions=forgotten)

    async def _forget_results(self) -> None:
        """Delete the expired results of the whole store. The time of the cluster is known only with
        a lease; by a wrong clock, results of other nodes would be deleted too early."""
        if not self._shard.trusted():
            return
        with self._shard.failures_logged("results not forgotten"):
            wall = self._partitions.wall_clock()
            forgotten = RESULTS_AT_ONCE
            while forgotten == RESULTS_AT_ONCE:
                forgotten = await self._partitions.store.forget_results(wall, RESULTS_AT_ONCE)

    async def _let_go_if_idle(self, owned: Owned, now: float) -> None:
        if now - owned.last_used > owned.partition.settings.idle_seconds and owned.partition.idle:
            await self._partitions.let_go(owned)
            self._idleness.waiting = True
            if self._partitions.owned.get(owned.key) is not owned:
                self._scalers.pop(owned.key, None)
                # A root that is in use again keeps its lock: a change may wait under it.
                self._changing.pop(owned.key, None)

    def _look_for_root(self, owned: Owned, now: float) -> None:
        """Have a partition that its root does not tell ask for what the root tells the others: a
        partition that was removed may still have tasks, and would stay paused for ever."""
        partition = owned.partition
        untold = now - owned.told_at
        if untold >= UNTOLD_LOOKS * partition.settings.scaling.look_seconds and partition.is_used:
            owned.told_at = now
            self._shard.spawn(self._ask_root(owned))

    async def _ask_root(self, owned: Owned) -> None:
        key, controls = owned.key, owned.partition.controls
        message = Sync(
            *(key.namespace, key.queue, key.queue_type, 0, 0, Counts(1, 1, 0)),
            controls=controls if controls.version else None,
        )
        with self._shard.failures_logged("root not asked"):
            answer = await self._partitions.question(message)
            if isinstance(answer, Synced) and self._partitions.owned.get(key) is owned:
                self._partitions.learn(owned, answer.counts)
                self._partitions.learn_controls(owned, answer.controls)

    # Roots

    async def _look_at_root(self, owned: Owned, now: float) -> None:
        settings = owned.partition.settings.scaling
        partition = owned.partition
        if partition.counts.read == 1 and not settings.adaptive:
            return
        answers = await self.tell_partitions(owned)
        await self.controls.take_over(owned, answers)
        rate = partition.intake.added.per_second(now)
        rate += sum(answer.added_per_second for answer in answers.values())
        if len(answers) < partition.counts.read - 1:
            return  # the missing answers might change the decision
        scaler = self._scalers.setdefault(owned.key, Scaler())
        drained = {number: answer.version for number, answer in answers.items() if answer.drained}
        wanted = scaler.wanted(partition.counts, rate, drained, settings, now)
        if wanted is not None:
            counts = await self.change(owned, *wanted, force=False)
            self._shard.log.info(
                "partitions changed",
                queue=owned.key.queue,
                read=counts.read,
                write=counts.write,
                tasks_per_second=round(rate, 1),
            )

    async def change(self, owned: Owned, read: int, write: int, *, force: bool) -> PartitionCounts:
        """Persist new counts and tell all partitions; raise `UnsafePartitionChange` if unsafe."""
        async with self.changing(owned):
            partition = owned.partition
            old = partition.counts
            if force:
                counts = old.forced(read=read, write=write)
            else:
                drained = {}
                if read < old.read:
                    answers = await self.tell_partitions(owned)
                    drained = {
                        number: answer.version
                        for number, answer in answers.items()
                        if answer.drained
                    }
                counts = old.changed(read=read, write=write, drained=drained)
            await self._write(owned, counts)
            partition.set_counts(counts, self._loop.time())
            await self.tell_partitions(owned, also=old.read)
            return counts

    def changing(self, owned: Owned) -> asyncio.Lock:
        """Return the lock under which the counts and the controls of a queue change."""
        return self._changing.setdefault(owned.key, asyncio.Lock())

    async def _write(self, owned: Owned, counts: PartitionCounts) -> None:
        self._partitions.check(owned)
        async with self._partitions.written(owned) as ticket:
            owned.partition.ledger.set_counts(counts, ticket, self._loop.time())

    async def tell_partitions(self, owned: Owned, also: int = 0) -> dict[int, Synced]:
        """Tell every partition the counts and the controls; return the answers by partition."""
        key, counts, controls = owned.key, owned.partition.counts, owned.partition.controls
        told = Counts(counts.read, counts.write, counts.version)
        known = controls if controls.version else None
        numbers = range(1, max(counts.read, also))
        turns = asyncio.Semaphore(TOLD_AT_ONCE)

        async def tell(number: int) -> Struct:
            async with turns:
                message = Sync(
                    key.namespace, key.queue, key.queue_type, number, 0, told, controls=known
                )
                return await self._partitions.question(message)

        answers = await asyncio.gather(*map(tell, numbers), return_exceptions=True)
        found = {}
        for number, answer in zip(numbers, answers, strict=True):
            if isinstance(answer, Synced):
                found[number] = answer
            elif not isinstance(answer, MaitredError | TimeoutError):
                self._shard.log.warning("partition not told the counts", error=repr(answer))
        return found
