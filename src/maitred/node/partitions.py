"""The partitions that a shard owns: found, or loaded when they are first asked for, and let go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from maitred.errors import (
    DeadlineExceeded,
    Draining,
    InternalError,
    MaitredError,
    NotOwner,
    Unavailable,
    UnknownQueue,
)
from maitred.matching.partition import Partition
from maitred.matching.records import Changes, PartitionKey
from maitred.matching.task_memory import TaskMemory
from maitred.node.asking import ASK_SECONDS, ask
from maitred.node.driving import Driving, Owned
from maitred.node.settling import settle
from maitred.node.stored_quotas import StoredQuotas
from maitred.protocol.tasks import (
    Counts,
    Sync,
    Synced,
)
from maitred.routing.counts import PartitionCounts

if TYPE_CHECKING:
    from msgspec import Struct

    from maitred.matching.records import Acquired
    from maitred.node.held import Held
    from maitred.node.shard import Shard
    from maitred.node.writer import Writer
    from maitred.protocol.requests import PartitionRequest
    from maitred.settings import Queue
    from maitred.store.interface import Store
    from maitred.surroundings import Surroundings

ANSWER_EARLY_SECONDS: Final = 0.2
"""So long before the caller's patience ends an offer is answered with nothing."""

NEAREST: Final = 3
"""Queues that are named to somebody who asked for one that there is not."""

Serve = Callable[["Owned", Any, "Held"], None]
"""Serves a request at a partition that is loaded."""


class Partitions(Driving):
    """All of one shard."""

    def __init__(
        self, shard: Shard, store: Store, writer: Writer, surroundings: Surroundings
    ) -> None:
        super().__init__(shard, store, writer, surroundings)
        self._loading: dict[PartitionKey, list[tuple[Serve, Any, Held]]] = {}
        self.stored = StoredQuotas(shard, store)
        self._memory = TaskMemory(shard.limits.waiting_bytes)
        self.signing_key = b""
        """The store's; empty until `load_signing_key` has read it for the first time."""

    @property
    def loading(self) -> list[PartitionKey]:
        """Partitions that are being loaded, for requests that wait until they are there."""
        return list(self._loading)

    def settings_of(self, key: PartitionKey) -> Queue:
        """The most that is said of the queue."""
        return queue_settings(self.shard.settings.queues, key)

    # Finding

    def holder(
        self,
        serve: Serve,
        *,
        makes: bool = True,
        of_known: bool = False,
        touches: bool = False,
    ) -> Callable[[Any, Held], None]:
        """What the shard calls for a request: serves it as soon as the partition is there.

        Unless it `makes` partitions, it is refused for one that nobody ever used; if it makes those
        `of_known` queues, for a queue that nobody ever used. One that `touches` the partition says
        itself how much happened to it.
        """

        def hold(message: PartitionRequest, held: Held) -> None:
            key = PartitionKey(
                message.namespace, message.queue, message.queue_type, message.partition
            )
            owned = self.owned.get(key)
            if owned is None:
                self._load_for(key, serve, message, held, makes=makes, of_known=of_known)
                return
            owned.last_used = self.loop.time()
            serve(owned, message, held)
            if not touches:
                self.touch(owned)

        return hold

    def _load_for(
        self,
        key: PartitionKey,
        serve: Serve,
        message: Any,  # noqa: ANN401
        held: Held,
        *,
        makes: bool,
        of_known: bool,
    ) -> None:
        waiting = self._loading.get(key)
        if waiting is not None:
            waiting.append((serve, message, held))
            return
        self._loading[key] = [(serve, message, held)]
        self.shard.spawn(self._load(key, makes=makes, of_known=of_known))

    async def _load(self, key: PartitionKey, *, makes: bool, of_known: bool = False) -> None:
        problem: MaitredError | None = None
        owned: Owned | None = None
        try:
            if not makes and not await self._is_known(key, of_known=of_known):
                raise await self._unknown(key)  # noqa: TRY301 - the same way out for all
            owned = await self._acquired(key)
        except MaitredError as refused:
            problem = refused
        except Exception as failure:
            self.shard.log.exception(
                "partition not loaded", queue=key.queue, partition=key.partition
            )
            problem = Unavailable(f"The partition could not be loaded: {failure}.")
        finally:
            waiting = self._loading.pop(key)
        if isinstance(problem, UnknownQueue) and len(waiting) > 1:
            # Others who came meanwhile may be of those who make it.
            (_, _, held), *waiting = waiting
            held.refuse(problem)
            for _, message, held in waiting:
                self.shard.holders[message.opcode](message, held)
            return
        if owned is None:
            for _, _, held in waiting:
                held.refuse(problem or Unavailable("The partition could not be loaded."))
            return
        self.owned[key] = owned
        for serve, message, held in waiting:
            self._serve_who_waited(owned, serve, message, held)
        self.touch(owned)

    async def _is_known(self, key: PartitionKey, *, of_known: bool) -> bool:
        if await self.store.exists(key):
            return True
        root = key._replace(partition=0)
        return of_known and root != key and await self.store.exists(root)

    async def _unknown(self, key: PartitionKey) -> UnknownQueue:
        """Names the nearest queues of the namespace: most who err have mistyped."""
        known = {
            one.queue: None
            for one in await self.store.partitions()
            if one.namespace == key.namespace and one.queue_type == key.queue_type
        }
        near = get_close_matches(key.queue, known, n=NEAREST, cutoff=0.5)
        remedy = f"Did you mean {' or '.join(map(repr, near))}?" if near else None
        if key.queue in known:
            remedy = "The queue has others."
        elif not near and known:
            some = ", ".join(sorted(known)[:NEAREST])
            remedy = f"The namespace has {len(known):,} queues, among them {some}."
        which = f"partition {key.partition} of " if key.partition else ""
        return UnknownQueue(
            f"Nobody ever used {which}the queue {key.namespace}/{key.queue}.",
            remedy=remedy,
        )

    def _serve_who_waited(self, owned: Owned, serve: Serve, message: Any, held: Held) -> None:  # noqa: ANN401
        has_left = not held.wanted
        try:
            serve(owned, message, held)
        except MaitredError as refused:
            held.refuse(refused)
        except Exception:
            self.shard.log.exception("request failed")
            held.refuse(
                InternalError("The node failed at this request.", remedy="Its log says more.")
            )
        if has_left:
            # Nobody could be told so before. An offer, say, must not be given anything.
            held.on_stop()

    async def _acquired(self, key: PartitionKey) -> Owned:
        if self.shard.draining:
            raise Draining("The node is stopping.")
        settings = self.settings_of(key)
        signing_key = await self.load_signing_key()
        await self.stored.known()
        acquired = await self.store.acquire(key)
        if key.partition == 0:
            counts = acquired.counts or await self._first_counts(key, acquired, settings.partitions)
        else:
            counts = await self.counts_of(key)
        if self.shard.draining:  # those who wait have been told to go, and nobody tells any more
            raise Draining("The node is stopping.")
        now = self.loop.time()
        wall = self._surroundings.wall_clock() - now
        around = self._surroundings
        partition = Partition(
            key,
            acquired,
            counts,
            settings,
            around.random,
            now,
            wall,
            around.secret,
            signing_key=signing_key,
            quotas=self.stored.of(key, settings),
            memory=self._memory,
        )
        self.shard.log.debug(
            "partition loaded", queue=key.queue, partition=key.partition, backlog=acquired.backlog
        )
        return Owned(partition, now)

    async def load_signing_key(self) -> bytes:
        """Return the store's key, with which partitions prove what they handed out."""
        if not self.signing_key:
            self.signing_key = await self.store.signing_key()
        return self.signing_key

    async def _first_counts(
        self, key: PartitionKey, acquired: Acquired, partitions: int
    ) -> PartitionCounts:
        """Of a queue whose counts nobody ever changed. Callers take one partition for granted; more
        are written down before anybody hears of them: if the settings named fewer at the next start
        the tasks of the others would be found by nobody."""
        if partitions == 1:
            return PartitionCounts()
        counts = PartitionCounts(partitions, partitions, 1)
        changes = Changes(key, acquired.range_id, acquired.backlog, counts=counts)
        if await self.store.commit([changes]):
            raise NotOwner("Somebody else owns this partition now.")
        return counts

    async def counts_of(self, key: PartitionKey) -> PartitionCounts:
        """Ask the root."""
        ours = Counts(1, 1, 0)
        root = Sync(key.namespace, key.queue, key.queue_type, 0, 0, ours)
        answer = await self.question(root)
        if not isinstance(answer, Synced):
            raise InternalError("The root answered something else.")
        told = answer.counts or ours
        return PartitionCounts(told.read, told.write, told.version)

    async def question(self, message: Any, seconds: float = ASK_SECONDS) -> Struct:  # noqa: ANN401
        """Ask the owner of a partition and wait for the answer."""
        future: asyncio.Future[Struct] = self.loop.create_future()

        asked = ask(self.shard, message, seconds, lambda outcome: settle(future, outcome))
        try:
            return await asyncio.wait_for(future, seconds + 1)
        except DeadlineExceeded:
            raise
        except TimeoutError:  # what we ask of ourselves has nobody else to look at the clock
            raise DeadlineExceeded("The owner of the partition did not answer in time.") from None
        finally:
            if not future.done() or future.cancelled():
                asked.give_up()

    def answering(self, held: Held, answer: Coroutine[Any, Any, None]) -> None:
        """Have a coroutine answer it; if that fails, the caller hears so."""
        self.shard.spawn(self._answered(held, answer))

    async def _answered(self, held: Held, answer: Coroutine[Any, Any, None]) -> None:
        try:
            await answer
        except MaitredError as problem:
            held.refuse(problem)
        except Exception:
            self.shard.log.exception("request failed")
            held.refuse(
                InternalError("The node failed at this request.", remedy="Its log says more.")
            )

    async def let_go(self, owned: Owned) -> None:
        """Leave it in order: the next owner need not wait for anybody."""
        await self._writer.commit([owned], self, anything=True, clean=True)
        if self.owned.get(owned.key) is owned and owned.partition.idle:
            del self.owned[owned.key]
            self._let_go(owned, NotOwner("The partition was let go."))

    def stop_waiting(self) -> None:
        """The shard stops: whoever waits for work, news or results is told to go elsewhere."""
        for owned in self.owned.values():
            owned.partition.stop_waiting()
            for token in owned.partition.waiters():
                token.refuse(Draining("The node is stopping.", remedy="Ask again later."))
            self.touch(owned)

    async def leave(self) -> None:
        """Write down what there is; everything else is safe already."""
        for owned in list(self.owned.values()):
            self._drive(owned, self.loop.time())
        await self._writer.finish(self)
        for owned in list(self.owned.values()):
            self._let_go(owned, Draining("The node is stopping."))
        self.owned = {}

    def wall_clock(self) -> float:
        return self._surroundings.wall_clock()


def queue_settings(queues: dict[str, Queue], key: PartitionKey) -> Queue:
    """`namespace/queue`, else `namespace/*`, else `*`, else the defaults."""
    from maitred.settings import Queue as Defaults

    for name in (f"{key.namespace}/{key.queue}", f"{key.namespace}/*", "*"):
        if name in queues:
            return queues[name]
    return Defaults()
