"""What goes wrong under tasks, and is none of our errors: nobody waits for ever, nothing stops."""

from __future__ import annotations

import asyncio
import gc
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

import maitred
from maitred.errors import (
    DeadlineExceeded,
    Draining,
    MaitredError,
    NotOwner,
    Overloaded,
    UnknownTask,
)
from maitred.matching.attempt_proofs import AttemptProofs
from maitred.matching.records import Terms
from maitred.node import caretaker, task_lookups
from maitred.node.caretaker import Caretaker
from maitred.node.waiting_requests import Makes, RequestKind
from maitred.protocol.frames import Opcode
from maitred.protocol.tasks import (
    DONE,
    FAILED,
    Add,
    Added,
    Await,
    DeadLetters,
    End,
    Finish,
    Finished,
    Heartbeat,
    Offer,
    Offered,
)
from maitred.settings import Queue
from maitred.store.sqlite import open_sqlite
from tests.node.in_process import in_a_loop, node, until
from tests.node.raw import PATIENCE_SECONDS
from tests.store.samples import acquire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from maitred.client.client import AsyncClient
    from maitred.node.owned import Owned
    from maitred.node.partitions import Partitions
    from maitred.node.shard import Shard
    from maitred.store.interface import Store

SESSION = b"a worker's own.."


class FaultyStore:
    """The real one; what is in `instead` is done first, and may raise, or take its time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.instead: dict[str, Callable[[], Awaitable[None]]] = {}
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a store has
        real = getattr(self._store, name)

        async def call(*arguments: Any) -> Any:  # noqa: ANN401
            self.calls.append(name)
            first = self.instead.get(name)
            if first is not None:
                await first()
            return await real(*arguments)

        return call

    def fails_once(self, name: str) -> None:
        async def fail() -> None:
            del self.instead[name]
            raise RuntimeError("a fault")

        self.instead[name] = fail

    def waits(self, name: str) -> asyncio.Event:
        """Until the event is set."""
        go = asyncio.Event()

        async def wait() -> None:
            await go.wait()

        self.instead[name] = wait
        return go


class Stage:
    """A shard with tasks, and somebody who asks."""

    def __init__(self, shard: Shard, store: FaultyStore, client: AsyncClient) -> None:
        self.shard = shard
        self.store = store
        self.client = client

    @property
    def partitions(self) -> Partitions:
        partitions = self.shard._partitions
        assert partitions is not None
        return partitions

    def owned(self, queue: str = "mails") -> Owned:
        return next(one for key, one in self.partitions.owned.items() if key.queue == queue)

    async def add(self, count: int = 1, queue: str = "mails", **terms: Any) -> int:  # noqa: ANN401
        message = Add("shop", queue, 1, 0, 0, 0, [b"task"] * count, **terms)
        added = await self.client.request(message, 5)
        assert isinstance(added, Added)
        return added.first

    async def take(self, slots: int = 1, queue: str = "mails") -> list[Any]:
        message = Offer("shop", queue, 1, 0, 0, 0, SESSION, "worker", slots)
        offered = await self.client.request(message, 5)
        assert isinstance(offered, Offered)
        return offered.tasks

    async def end(self, sequence: int, attempt: int = 1, how: int = DONE) -> End:
        """With the proof that any owner of the partition gives to the session."""
        signer = AttemptProofs(await self.store.signing_key(), self.owned().key)
        return End(sequence, attempt, signer.issue(sequence, attempt, SESSION), how)


@asynccontextmanager
async def stage(directory: Path, **settings: Any) -> AsyncIterator[Stage]:  # noqa: ANN401
    queue = Queue(**{"recovery_seconds": 0.0, "hold_seconds": 0.0, **settings})
    async with node(directory, queues={"*": queue}) as made:
        store = FaultyStore(await open_sqlite(directory / "data", 0))
        made.shard.keep_tasks(store)
        async with maitred.connect(f"maitred://127.0.0.1:{made.port}") as client:
            yield Stage(made.shard, store, client)
        made.shard.close()
        await store.close()


@in_a_loop
async def test_a_commit_that_fails_as_none_should_is_answered_and_the_next_one_goes(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path) as one:
        await one.add()
        one.store.fails_once("commit")
        with pytest.raises(MaitredError) as told:
            await one.add()
        assert told.value.code == "outcome-unknown"
        await one.add()
        # Whoever was told that nobody knows may try again; what was acknowledged is there.
        await until(lambda: one.owned().partition.backlog.ready == 2)


@pytest.mark.parametrize("read", ["segments", "later"])
@in_a_loop
async def test_a_read_that_fails_as_none_should_is_done_again(tmp_path: Path, read: str) -> None:
    async with stage(tmp_path) as one:
        await one.add(delay=0.0 if read == "segments" else 0.05)
        partitions, owned = one.partitions, one.owned()
        await partitions.let_go(owned)
        partitions.lost(owned.key, NotOwner("for the test"))
        one.store.fails_once(read)
        assert len(await one.take()) == 1


@in_a_loop
async def test_a_fault_in_one_partition_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage(tmp_path) as one:
        await one.add(queue="mails")
        await one.add(queue="bills")

        def broken(_now: float) -> float:
            raise RuntimeError("a fault")

        monkeypatch.setattr(one.owned("mails").partition, "look", broken)
        answers = await asyncio.gather(
            one.take(queue="mails"), one.add(queue="bills"), return_exceptions=True
        )
        assert isinstance(answers[0], MaitredError)
        assert not isinstance(answers[1], BaseException)
        # It was loaded anew, and is well.
        assert len(await one.take(queue="mails")) == 1
        assert "partition failed" in _events(one)


@in_a_loop
async def test_a_fault_in_serving_those_who_waited_for_a_partition_hits_one(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path) as one:
        go = one.store.waits("acquire")
        real = one.partitions.newer
        asked = [asyncio.ensure_future(one.add()) for _ in range(3)]
        await until(lambda: one.store.calls.count("acquire") == 1)
        await until(lambda: sum(map(len, one.partitions._loading.values())) == 3)
        waiting = next(iter(one.partitions._loading.values()))

        def broken(*_: object) -> None:
            raise RuntimeError("a fault")

        waiting[0] = waiting[0]._replace(kind=RequestKind(broken, Makes.QUEUES, None))
        go.set()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert [isinstance(answer, MaitredError) for answer in answers] == [True, False, False]
        assert real == one.partitions.newer


@in_a_loop
async def test_the_caretaker_outlives_a_fault_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caretaker, "LOOK_SECONDS", 0.01)
    async with stage(tmp_path) as one:
        one.store.fails_once("forget_results")
        await until(lambda: one.store.calls.count("forget_results") > 3)


@in_a_loop
async def test_an_offer_that_nobody_waits_for_when_the_partition_is_there_gets_nothing(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, lease_seconds=60.0) as one:
        await one.add()
        partitions, owned = one.partitions, one.owned()
        await partitions.let_go(owned)
        partitions.lost(owned.key, NotOwner("for the test"))
        go = one.store.waits("acquire")
        offer = asyncio.ensure_future(one.take())
        await until(lambda: "acquire" in one.store.instead and bool(partitions._loading))
        offer.cancel()
        await until(lambda: not one.shard.in_flight)
        beat = Heartbeat("shop", "mails", 1, 0, 0, SESSION, "worker", [])
        held = one.client.hold(beat, 5)
        await until(lambda: sum(map(len, partitions._loading.values())) == 2)
        held.take_back()
        await until(lambda: not one.shard.in_flight)
        go.set()
        assert len(await one.take()) == 1
        assert not one.owned().partition.heartbeats.waiting


@in_a_loop
async def test_who_leaves_while_the_store_is_asked_is_not_waited_for(tmp_path: Path) -> None:
    async with stage(tmp_path, buffer_tasks=10) as one:
        await one.add(20)
        first = await one.add(100)
        assert one.owned().partition.backlog.any_unread
        go = one.store.waits("segments_around")
        waiting = one.client.request(Await("shop", "mails", 1, 0, 0, first + 90), 5)
        asked = asyncio.ensure_future(waiting)
        await until(lambda: "segments_around" in one.store.calls)
        asked.cancel()
        await until(lambda: not one.shard.in_flight)
        go.set()
        with pytest.raises(UnknownTask):  # asked later, so that the other is over
            await one.client.request(Await("shop", "mails", 1, 0, 0, 5), 5)
        assert not one.owned().partition.results.waiters


@in_a_loop
async def test_what_is_asked_of_a_partition_that_is_lost_meanwhile_is_refused_at_once(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path) as one:
        first = await one.add()
        partitions, owned = one.partitions, one.owned()
        go = one.store.waits("segments_around")
        finish = Finish("shop", "mails", 1, 0, 0, SESSION, [await one.end(first + 7)])
        asked = asyncio.ensure_future(one.client.request(finish, 30))
        await until(lambda: "segments_around" in one.store.calls)
        partitions.lost(owned.key, NotOwner("for the test"))
        go.set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            answer = await asked  # it was told again, by the client
            assert isinstance(answer, Finished)
            assert answer.late == [first + 7]
            # The counts of a queue whose root is somebody else's by now.
            with pytest.raises(NotOwner):
                await Caretaker(partitions).change(owned, 2, 2, force=False)


@in_a_loop
async def test_a_thousand_who_ask_for_tasks_in_the_store_read_them_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment may have ten thousand tasks: read for each of them, nobody else would be served."""
    monkeypatch.setattr(task_lookups, "SEGMENTS_KEPT_SECONDS", 60.0)  # a busy machine takes longer
    async with stage(tmp_path, buffer_tasks=10) as one:
        await one.add(20)
        first = await one.add(5_000)
        waiting = [
            asyncio.ensure_future(one.client.request(Await("shop", "mails", 1, 0, 0, number), 60))
            for number in range(first, first + 500)
        ]
        partition = one.owned().partition
        await until(lambda: len(partition.results.waiters) == 500)
        assert one.store.calls.count("segments_around") == 1
        ends = [await one.end(number) for number in range(first, first + 500)]
        await one.client.request(Finish("shop", "mails", 1, 0, 0, SESSION, ends), 10)
        assert one.store.calls.count("segments_around") <= 3
        assert all(answer.status == "done" for answer in await asyncio.gather(*waiting))  # type: ignore[union-attr]


@in_a_loop
async def test_a_parent_that_has_no_room_for_a_task_was_never_asked(tmp_path: Path) -> None:
    """Otherwise its attempt would be lost, for a lease, though nobody ever had it."""
    async with stage(tmp_path, partitions=2, lease_seconds=0.3) as one:

        def refuse(_message: Any, held: Any) -> None:  # noqa: ANN401
            held.refuse(Overloaded("No room."))

        one.shard.holders[Opcode.FORWARD] = refuse
        message = Add("shop", "mails", 1, 1, 0, 1, [b"task"], terms=Terms(retries=0))
        await one.client.request(message, 5)
        await asyncio.sleep(0.7)
        found = await one.client.request(
            Offer("shop", "mails", 1, 1, 0, 1, SESSION, "worker", 1), 2
        )
        assert isinstance(found, Offered)
        assert [task.attempt for task in found.tasks] == [1]


@in_a_loop
async def test_tasks_that_a_worker_may_have_are_not_added_again_elsewhere(tmp_path: Path) -> None:
    """A client sends again what was not done; but of this nobody knows."""
    async with stage(tmp_path, hold_seconds=0.3) as one:
        taking = asyncio.ensure_future(one.take())
        await until(lambda: bool(one.partitions.owned) and one.owned().partition.offers.slots == 1)
        go = one.store.waits("commit")
        adding = asyncio.ensure_future(one.add())
        assert len(await taking) == 1
        await acquire(one.store, one.owned().key)  # somebody else becomes the owner
        go.set()
        with pytest.raises(MaitredError) as told:
            await adding
        assert told.value.code == "outcome-unknown"
        assert not one.partitions.owned


@in_a_loop
async def test_whoever_has_no_patience_does_not_know_whether_a_task_was_added(
    tmp_path: Path,
) -> None:
    """As docs/tasks.md says."""
    async with stage(tmp_path) as one:
        await one.add(queue="bills")
        go = one.store.waits("commit")
        with pytest.raises(DeadlineExceeded):
            await one.client.request(Add("shop", "bills", 1, 0, 0, 0, [b"slow"]), 0.3)
        go.set()
        assert [task.payload for task in await one.take(2, "bills")] == [b"task", b"slow"]


@in_a_loop
async def test_a_dead_letter_that_two_retry_at_once_is_done_once(tmp_path: Path) -> None:
    async with stage(tmp_path) as one:
        first = await one.add(2, terms=Terms(retries=0))
        given = await one.take(2)
        ends = [End(task.sequence, 1, task.proof, FAILED) for task in given]
        await one.client.request(Finish("shop", "mails", 1, 0, 0, SESSION, ends), 5)
        go = asyncio.Event()
        asked = 0

        async def second_waits() -> None:
            nonlocal asked
            asked += 1
            if asked == 2:
                await go.wait()

        def retry(*sequences: int) -> Awaitable[object]:
            message = DeadLetters("shop", "mails", 1, 0, 0, "retry", list(sequences))
            return one.client.request(message, 10)

        one.store.instead["dead_one"] = second_waits
        slow = asyncio.ensure_future(retry(first, first + 1))
        await until(lambda: asked == 2)
        await retry(first)
        (again,) = await one.take(1)
        ended = End(again.sequence, again.attempt, again.proof)
        done = Finish("shop", "mails", 1, 0, 0, SESSION, [ended])
        await one.client.request(done, 5)
        go.set()
        await slow
        assert [task.sequence for task in await one.take(2)] == [first + 1]


@in_a_loop
async def test_a_partition_that_is_lost_while_dead_letters_are_read_is_one_error_and_not_two(
    tmp_path: Path,
) -> None:
    """Whoever asked asks again; the loop has nothing to report."""
    async with stage(tmp_path) as one:
        first = await one.add(2, terms=Terms(retries=0))
        ends = [End(task.sequence, 1, task.proof, FAILED) for task in await one.take(2)]
        await one.client.request(Finish("shop", "mails", 1, 0, 0, SESSION, ends), 5)
        go = asyncio.Event()
        asked = 0

        async def second_waits() -> None:
            nonlocal asked
            asked += 1
            if asked == 2:
                await go.wait()

        one.store.instead["dead_one"] = second_waits
        commit = one.store.waits("commit")  # so that the first one is lost as well
        message = DeadLetters("shop", "mails", 1, 0, 0, "retry", [first, first + 1])
        retrying = asyncio.ensure_future(one.client.request(message, 10))
        await until(lambda: asked == 2)
        one.partitions.lost(one.owned().key, NotOwner("Somebody else owns it."))
        go.set()
        commit.set()
        await retrying
        gc.collect()  # a future that nobody looked at complains when it goes


@pytest.mark.parametrize("attempts", [1, 2])
@in_a_loop
async def test_a_failure_that_is_told_before_its_task_was_read_counts(
    tmp_path: Path, attempts: int
) -> None:
    """A worker's first word to a shard that was started again may be the end of an attempt."""
    async with stage(tmp_path) as one:
        soon = Terms(retries=attempts - 1, backoff_first=0.01, backoff_longest=0.01)
        first = await one.add(terms=soon)
        for attempt in range(1, attempts + 1):
            (given,) = await one.take()
            assert given.attempt == attempt
            if attempt == attempts:
                one.partitions.lost(one.owned().key, NotOwner("for the test"))
            failed = [End(first, attempt, given.proof, FAILED)]
            finish = Finish("shop", "mails", 1, 0, 0, SESSION, failed)
            answer = await one.client.request(finish, 5)
            assert isinstance(answer, Finished)
            assert not answer.late
        assert await one.store.dead_count(one.owned().key) == 1
        assert not one.owned().partition.own_tasks.open_tasks


@in_a_loop
async def test_a_failure_of_a_task_far_back_is_told_again_until_it_is_read(tmp_path: Path) -> None:
    async with stage(tmp_path, buffer_tasks=10, recovery_seconds=0.5) as one:
        firsts = [await one.add(10, terms=Terms(retries=0)) for _ in range(6)]
        last = firsts[-1] + 9
        given = await one.take(60)
        while len(given) < 60:
            given += await one.take(60)
        one.partitions.lost(one.owned().key, NotOwner("for the test"))
        failed = [End(last, 1, given[-1].proof, FAILED)]
        assert given[-1].sequence == last
        finish = Finish("shop", "mails", 1, 0, 0, SESSION, failed)
        telling = asyncio.ensure_future(one.client.request(finish, 10))
        again: list[int] = []
        while len(again) < 59:
            again += [task.sequence for task in await one.take(10)]
        answer = await telling
        assert isinstance(answer, Finished)
        assert not answer.late
        assert last not in again


@in_a_loop
async def test_a_partition_that_comes_while_the_node_stops_keeps_nobody_waiting(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path) as one:
        go = one.store.waits("acquire")
        offer = Offer("shop", "mails", 1, 0, 0, 0, SESSION, "worker", 1)
        held = one.client.hold(offer, 30)
        await until(lambda: bool(one.partitions._loading))
        draining = asyncio.ensure_future(one.shard.drain())
        await asyncio.sleep(0)
        go.set()
        with pytest.raises(Draining):
            await held.answer()
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await draining


def _events(one: Stage) -> list[str]:
    log: Any = one.shard.log
    return [event for _, event, _ in log.lines]
