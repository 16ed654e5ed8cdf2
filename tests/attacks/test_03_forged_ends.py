"""A task is done only by a worker that proves that it was given the attempt.

The attacker speaks the real protocol to real shards. He knows every sequence number and every
session, and may work in the same namespace. Whatever he says of attempts that were not given to
him, no task ends, moves or stays leased by it, and the worker that has the task is heard.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import msgpack

import maitred
from maitred.errors import PermissionDenied, UnknownQueue
from maitred.matching.records import PartitionKey, Terms
from maitred.protocol.frames import Opcode
from maitred.protocol.messages import encode
from maitred.protocol.queries import Workers
from maitred.protocol.tasks import (
    DONE,
    FAILED,
    RETURNED,
    STOPPED,
    TIMED_OUT,
    Add,
    Added,
    Await,
    DeadLetters,
    Describe,
    End,
    Finish,
    Finished,
    Given,
    Heard,
    Heartbeat,
    Offer,
    Offered,
    Outcome,
    PartitionDescription,
    Queues,
)
from maitred.settings import Queue, User
from maitred.simulation.store import SimulatedDisk, SimulatedStore
from tests.node.in_process import NodeUnderTest, in_a_loop, node, until
from tests.node.nodes import running_node
from tests.security.cheap import cheaply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from maitred.client.client import AsyncClient
    from maitred.matching.partition import Partition

SECONDS = 30.0
"""For what is going to come."""
HASHED = cheaply("s")
USERS = {
    "producer": User(secret=HASHED, permissions={"*": ["produce"]}),
    "worker": User(secret=HASHED, permissions={"n": ["work"], "m": ["work"]}),
    "mallory": User(secret=HASHED, permissions={"n": ["work"]}),
    "outsider": User(secret=HASHED, permissions={"evil": ["work"], "n": ["produce", "query"]}),
    "boss": User(secret=HASHED, permissions={"*": ["admin"]}),
}
Place = tuple[str, str, int, int, int]

A, B = b"session of A....", b"session of B...."
RESULT, FORGED = msgpack.encode("of the worker"), msgpack.encode("forged")
NOISE = b"\x00forged proof\xff\x00\xff"
WARNING = "attempts refused: the caller was not given them"


class Shop:
    """A node whose shards keep tasks, and everybody who comes there."""

    def __init__(
        self, running: NodeUnderTest, disk: SimulatedDisk, clients: AsyncExitStack
    ) -> None:
        self.node = running
        self.queue = running.queue_of(len(running.shards) - 1)
        self._disk = disk
        self._clients = clients

    def begin(self) -> None:
        for shard in self.node.shards:
            shard.keep_tasks(SimulatedStore(self._disk))

    async def client(self, user: str) -> AsyncClient:
        address = f"maitred://{user}:s@127.0.0.1:{self.node.port}"
        return await self._clients.enter_async_context(maitred.connect(address, close_seconds=0.1))

    async def crash(self) -> None:
        """Every shard dies, and is started again with what is on disk."""
        for number in range(len(self.node.shards)):
            self.node.kill(number)
            shard = await self.node.start_again(number)
            shard.keep_tasks(SimulatedStore(self._disk))

    def at(self, partition: int = 0, queue: str = "", namespace: str = "n") -> Place:
        return namespace, queue or self.queue, 1, partition, 0

    def partition(self, number: int = 0) -> Partition:
        key = PartitionKey("n", self.queue, 1, number)
        shards: list[Any] = [*self.node.shards]
        owned = [shard._partitions.owned.get(key) for shard in shards]
        (found,) = (one.partition for one in owned if one is not None)
        return found  # type: ignore[no-any-return]

    async def add(self, count: int = 1, *, where: Place | None = None, **more: Any) -> int:  # noqa: ANN401
        producer = await self.client("producer")
        message = Add(*(where or self.at()), 1, [b"task"] * count, **more)
        added = await producer.request(message, SECONDS)
        assert isinstance(added, Added)
        return added.first

    async def outcome(self, sequence: int, *, where: Place | None = None) -> Outcome:
        producer = await self.client("producer")
        answer = await producer.request(Await(*(where or self.at()), sequence), SECONDS)
        assert isinstance(answer, Outcome)
        return answer

    async def take(
        self,
        client: AsyncClient,
        slots: int = 1,
        *,
        session: bytes = A,
        where: Place | None = None,
    ) -> list[Given]:
        message = Offer(*(where or self.at()), 0, session, "ant", slots)
        offered = await client.request(message, SECONDS)
        assert isinstance(offered, Offered)
        return offered.tasks

    async def finish(
        self,
        client: AsyncClient,
        ends: Sequence[End],
        *,
        session: bytes = A,
        where: Place | None = None,
    ) -> tuple[list[int], list[int]]:
        """Those that came too late, and those that are refused."""
        message = Finish(*(where or self.at()), session, [*ends])
        answer = await client.request(message, SECONDS)
        assert isinstance(answer, Finished)
        return answer.late, answer.refused

    async def beat(
        self, client: AsyncClient, sequence: int, attempt: int, proof: bytes, session: bytes = A
    ) -> list[int]:
        """What is lost; only for a heartbeat that is answered at once."""
        running = [(sequence, attempt, proof)]
        message = Heartbeat(*self.at(), session, "ant", running)
        answer = await client.request(message, SECONDS)
        assert isinstance(answer, Heard)
        assert answer.revoked == []
        return answer.lost

    def refused(self) -> int:
        """How many attempts the node says to have refused."""
        return sum(shard.errors["invalid-proof"] for shard in self.node.shards)


@asynccontextmanager
async def shop(directory: Path, shards: int = 1, **settings: Any) -> AsyncIterator[Shop]:  # noqa: ANN401
    settings = {"hold_seconds": 0.0, "lease_seconds": 3600.0, "recovery_seconds": 3600.0} | settings
    disk = SimulatedDisk(Random(1))
    queues = {"*": Queue(**settings)}
    async with (
        node(directory, shards=shards, users=USERS, queues=queues) as running,
        AsyncExitStack() as clients,
    ):
        here = Shop(running, disk, clients)
        here.begin()
        yield here


def done(given: Given, body: bytes = RESULT) -> End:
    return End(given.sequence, given.attempt, given.proof, DONE, body)


both = pytest.mark.parametrize("shards", [1, 2])


@both
@in_a_loop
async def test_a_session_that_never_offered_finishes_none_of_a_thousand_waiting_tasks(
    tmp_path: Path, shards: int
) -> None:
    async with shop(tmp_path, shards) as here:
        first = await here.add(1_000)
        numbers = list(range(first, first + 1_000))
        mallory = await here.client("mallory")
        forged = [End(number, 1, NOISE, DONE, FORGED) for number in numbers]
        assert await here.finish(mallory, forged, session=B) == ([], numbers)
        boss = await here.client("boss")
        described = await boss.request(Describe(*here.at()), SECONDS)
        assert isinstance(described, PartitionDescription)
        assert (described.backlog, described.finished) == (1_000, 0)
        assert described.unproven == here.refused() == 1_000
        assert here.node.log.events("warning") == [WARNING], "one line, however many there are"
        given = await here.take(await here.client("worker"), 1_000)
        assert [task.sequence for task in given] == numbers


@both
@pytest.mark.parametrize("how", [DONE, FAILED, RETURNED, TIMED_OUT, STOPPED])
@in_a_loop
async def test_a_leased_task_is_ended_by_its_holder_alone(
    tmp_path: Path, shards: int, how: int
) -> None:
    async with shop(tmp_path, shards) as here:
        first = await here.add(terms=Terms(retries=0))
        worker, mallory = await here.client("worker"), await here.client("mallory")
        (given,) = await here.take(worker)

        async def ends(client: AsyncClient, session: bytes, proof: bytes, attempt: int = 1) -> Any:  # noqa: ANN401
            end = End(first, attempt, proof, how, FORGED)
            return await here.finish(client, [end], session=session)

        nothing_done: tuple[list[int], list[int]] = ([], [first])
        assert await ends(mallory, B, NOISE) == nothing_done
        assert await ends(mallory, A, NOISE) == nothing_done, "a session is no secret"
        assert await ends(mallory, B, given.proof) == nothing_done
        assert await ends(mallory, A, given.proof) == nothing_done, "another user saw the proof"
        assert await ends(worker, B, given.proof) == nothing_done, "another session of the user"
        assert await ends(worker, A, given.proof, 2) == nothing_done
        assert await ends(worker, A, given.proof, 0) == nothing_done
        assert here.partition().own_tasks.leases[first].attempt == 0
        assert await here.finish(worker, [done(given)]) == ([], [])
        outcome = await here.outcome(first)
        assert (outcome.status, outcome.attempts, outcome.body) == ("done", 1, RESULT)
        assert here.refused() == 7


@in_a_loop
async def test_ends_that_are_proven_count_beside_those_that_are_not(tmp_path: Path) -> None:
    async with shop(tmp_path) as here:
        first = await here.add(3)
        worker = await here.client("worker")
        one, two, three = await here.take(worker, 3)
        swapped = End(two.sequence, 1, three.proof)
        late, refused = await here.finish(worker, [done(one), swapped, done(three)])
        assert (late, refused) == ([], [two.sequence])
        assert list(here.partition().own_tasks.tasks) == [first + 1]


@both
@in_a_loop
async def test_a_forged_heartbeat_renews_no_lease_and_takes_no_news_away(
    tmp_path: Path, shards: int
) -> None:
    async with shop(tmp_path, shards) as here:
        first = await here.add(2)
        worker, mallory = await here.client("worker"), await here.client("mallory")
        (given,) = await here.take(worker)
        beat = Heartbeat(*here.at(), A, "ant", [(first, 1, given.proof)])
        listening = worker.hold(beat, SECONDS)
        partition = here.partition()
        await until(lambda: bool(partition.heartbeats.waiting))
        (held,) = partition.heartbeats.waiting.values()
        ends_at = partition.own_tasks.leases[first].lease_until
        assert await here.beat(mallory, first, 1, NOISE, B) == [first]
        assert await here.beat(mallory, first, 1, NOISE, A) == [first]
        assert await here.beat(mallory, first, 1, given.proof, A) == [first]
        assert await here.beat(mallory, first + 1, 1, NOISE, B) == [first + 1]
        nothing = await mallory.request(Heartbeat(*here.at(), A, "ant", []), SECONDS)
        assert nothing == Heard([], []), "who has nothing waits for no news"
        assert partition.own_tasks.leases[first].lease_until == ends_at
        assert list(partition.own_tasks.leases) == [first]
        assert list(partition.heartbeats.waiting.values()) == [held], (
            "the worker hears when it is to stop"
        )
        assert [name for name, _ in partition.worker_sightings.workers.values()] == ["ant"]
        assert here.refused() == 4
        listening.take_back()


@both
@in_a_loop
async def test_a_proof_that_was_used_does_no_harm(tmp_path: Path, shards: int) -> None:
    """The same end again is late; so is another end of the same attempt."""
    async with shop(tmp_path, shards) as here:
        soon = Terms(retries=3, backoff_first=0.0, backoff_longest=0.0)
        first = await here.add(terms=soon)
        worker = await here.client("worker")
        (failing,) = await here.take(worker)
        failed = End(first, 1, failing.proof, FAILED)
        assert await here.finish(worker, [failed]) == ([], [])
        assert await here.finish(worker, [done(failing, FORGED)]) == ([first], [])
        assert await here.finish(worker, [failed]) == ([first], [])
        (again,) = await here.take(worker)
        assert (again.sequence, again.attempt) == (first, 2)
        assert again.proof != failing.proof
        # The first proof for the second attempt, and the other way round.
        assert await here.finish(worker, [End(first, 2, failing.proof)]) == ([], [first])
        assert await here.finish(worker, [End(first, 1, again.proof)]) == ([], [first])
        assert await here.finish(worker, [done(again)]) == ([], [])
        for body in (RESULT, FORGED):
            assert await here.finish(worker, [done(again, body)]) == ([first], [])
        outcome = await here.outcome(first)
        assert (outcome.status, outcome.attempts, outcome.body) == ("done", 2, RESULT)


@in_a_loop
async def test_a_proof_is_good_for_one_queue_of_one_namespace(tmp_path: Path) -> None:
    """Sequence numbers of two queues are often the same."""
    async with shop(tmp_path) as here:
        places = [here.at(), here.at(queue="other"), here.at(namespace="m")]
        worker = await here.client("worker")
        tasks = []
        for where in places:
            await here.add(where=where)
            tasks += await here.take(worker, where=where)
        for mine, where in enumerate(places):
            for other, task in enumerate(tasks):
                if other != mine:
                    end = End(tasks[mine].sequence, 1, task.proof)
                    refused = await here.finish(worker, [end], where=where)
                    assert refused == ([], [end.sequence])
        for task, where in zip(tasks, places, strict=True):
            assert await here.finish(worker, [done(task)], where=where) == ([], [])


@both
@in_a_loop
async def test_the_next_owner_hears_the_holder_and_nobody_else(tmp_path: Path, shards: int) -> None:
    """Leases are gone with the process: the proof is all that there is."""
    async with shop(tmp_path, shards) as here:
        first = await here.add(4, terms=Terms(retries=0))
        worker, mallory = await here.client("worker"), await here.client("mallory")
        ended, running, failed, returned = await here.take(worker, 4)
        await here.crash()
        numbers = [first, first + 1, first + 2, first + 3]
        forged = [End(number, 1, NOISE, DONE, FORGED) for number in numbers]
        assert await here.finish(mallory, forged, session=B) == ([], numbers)
        stolen = [done(one, FORGED) for one in (ended, running, failed, returned)]
        assert await here.finish(mallory, stolen) == ([], numbers)
        assert await here.beat(mallory, first, 1, NOISE, B) == [first]
        partition = here.partition()
        assert not partition.own_tasks.leases
        assert not partition.attempts.claims
        assert partition.own_tasks.open_tasks == 4
        # The worker lives, and says what became of what it was given.
        beat = Heartbeat(*here.at(), A, "ant", [(running.sequence, 1, running.proof)])
        listening = worker.hold(beat, SECONDS)
        await until(lambda: list(partition.own_tasks.leases) == [running.sequence])
        assert await here.finish(worker, [done(ended)]) == ([], [])
        assert await here.finish(worker, [End(failed.sequence, 1, failed.proof, FAILED)]) == (
            [],
            [],
        )
        given_back = End(returned.sequence, 1, returned.proof, RETURNED)
        assert await here.finish(worker, [given_back]) == ([], [])
        assert (await here.outcome(first)).body == RESULT
        assert (await here.outcome(failed.sequence)).status == "failed"
        assert sorted(partition.own_tasks.tasks) == [running.sequence, returned.sequence]
        assert list(partition.own_tasks.leases) == [running.sequence]
        listening.take_back()


@in_a_loop
async def test_a_late_end_counts_from_the_worker_that_held_the_attempt(tmp_path: Path) -> None:
    """And from it only as long as no other worker has the task."""
    async with shop(tmp_path) as here:
        soon = Terms(retries=100, backoff_first=0.0, backoff_longest=0.0)
        first = await here.add(2, terms=soon)
        worker, mallory = await here.client("worker"), await here.client("mallory")
        one, two = await here.take(worker, 2)
        here.partition().look(asyncio.get_running_loop().time() + 7200.0)
        assert here.partition().attempts.lost == 2
        for late in (End(first, 1, NOISE), done(one, FORGED)):
            assert await here.finish(mallory, [late]) == ([], [first])
        (again,) = await here.take(worker, session=B)
        assert (again.sequence, again.attempt) == (first, 2)
        assert await here.finish(worker, [done(one, FORGED)]) == ([first], [])
        assert await here.finish(worker, [done(again)], session=B) == ([], [])
        assert await here.finish(worker, [done(two)]) == ([], [])
        for sequence in (first, first + 1):
            assert (await here.outcome(sequence)).body == RESULT


@in_a_loop
async def test_a_task_that_was_given_out_by_a_parent_on_another_shard(tmp_path: Path) -> None:
    """The parent gives it, and its own partition verifies the proof, in both directions."""
    async with shop(tmp_path, 2, partitions=2) as here:
        here.queue = next(name for name in map(str, range(1_000)) if spans_two(here, name))
        worker, mallory = await here.client("worker"), await here.client("mallory")
        for home, asked in ((1, 0), (0, 1)):
            offering = asyncio.ensure_future(here.take(worker, where=here.at(asked)))
            await until(lambda: any(here.node.shards[0].connections))
            first = await here.add(where=here.at(home))
            (given,) = await offering
            assert (given.partition, given.sequence) == (home, first)
            at_home = here.at(home)
            forged = [done(given, FORGED)]
            assert await here.finish(mallory, forged, where=at_home) == ([], [first])
            elsewhere = await here.finish(worker, [done(given)], where=here.at(asked))
            assert elsewhere == ([], [first]), "a proof is for the partition of the task"
            assert await here.finish(worker, [done(given)], where=at_home) == ([], [])
            assert (await here.outcome(first, where=at_home)).body == RESULT


def spans_two(here: Shop, queue: str) -> bool:
    """Whether two partitions of the queue have two shards."""
    shard = here.node.shard
    return len({shard.owner_of(Describe("n", queue, 1, number, 0)) for number in (0, 1)}) == 2


@in_a_loop
async def test_who_may_not_work_in_the_namespace_is_not_even_heard(tmp_path: Path) -> None:
    async with shop(tmp_path) as here:
        first = await here.add()
        worker, outsider = await here.client("worker"), await here.client("outsider")
        (given,) = await here.take(worker)
        end, beat = done(given, FORGED), [(first, 1, given.proof)]
        for message in (
            Offer(*here.at(), 0, A, "ant", 1),
            Finish(*here.at(), A, [end]),
            Heartbeat(*here.at(), A, "ant", beat),
        ):
            with pytest.raises(PermissionDenied, match="lacks the permission 'work'"):
                await outsider.request(message, SECONDS)
        assert await here.finish(worker, [done(given)]) == ([], [])


@in_a_loop
async def test_a_forged_end_makes_no_queue(tmp_path: Path) -> None:
    async with shop(tmp_path) as here:
        mallory, boss = await here.client("mallory"), await here.client("boss")
        where = here.at(queue="never-used")
        for message in (
            Finish(*where, B, [End(2**32, 1, NOISE)]),
            Heartbeat(*where, B, "ant", [(2**32, 1, NOISE)]),
        ):
            with pytest.raises(UnknownQueue):
                await mallory.request(message, SECONDS)
        found: Any = await boss.request(Queues(0, 0), SECONDS)
        assert found.queues == []


@in_a_loop
async def test_proofs_are_shown_to_nobody_else(tmp_path: Path) -> None:
    async with shop(tmp_path) as here:
        await here.add(2, terms=Terms(retries=0))
        worker, boss = await here.client("worker"), await here.client("boss")
        given = await here.take(worker, 2)
        failed = End(given[0].sequence, 1, given[0].proof, FAILED)
        assert await here.finish(worker, [failed]) == ([], [])
        said = []
        for message in (
            Describe(*here.at()),
            DeadLetters(*here.at(), "list"),
            DeadLetters(*here.at(), "show", [given[0].sequence]),
            Workers(*here.at(), "list"),
            Queues(0, 0),
        ):
            answer = await boss.request(message, SECONDS)
            said.append(encode(answer) if message.opcode != Opcode.DESCRIBE else repr(answer))
        said += [repr(here.node.log.lines), repr(here.partition().effects)]
        for task in given:
            for text in said:
                shown = text if isinstance(text, bytes) else text.encode()
                assert task.proof not in shown
                assert task.proof.hex().encode() not in shown
                assert repr(task.proof).encode() not in shown


def test_a_shard_that_was_killed_hears_the_holder_and_nobody_else(tmp_path: Path) -> None:
    """Real processes, a real disk, SIGKILL."""

    async def before(url: str) -> tuple[Given, Given]:
        async with maitred.connect(url) as client:
            await client.request(Add("n", "q", 1, 0, 0, 0, [b"one", b"two"]), SECONDS)
            offered = await client.request(Offer("n", "q", 1, 0, 0, 0, A, "ant", 2), SECONDS)
            assert isinstance(offered, Offered)
            one, two = offered.tasks
            return one, two

    async def after(url: str, one: Given, two: Given) -> None:
        async with maitred.connect(url) as client:
            forged = [End(one.sequence, 1, NOISE, DONE, FORGED), done(two, FORGED)]
            answer = await client.request(Finish("n", "q", 1, 0, 0, B, forged), SECONDS)
            assert answer == Finished([], [one.sequence, two.sequence])
            answer = await client.request(Finish("n", "q", 1, 0, 0, A, [done(one)]), SECONDS)
            assert answer == Finished([], [])
            outcome = await client.request(Await("n", "q", 1, 0, 0, one.sequence), SECONDS)
            assert outcome == Outcome("done", 1, RESULT)
            described = await client.request(Describe("n", "q", 1, 0, 0), SECONDS)
            assert isinstance(described, PartitionDescription)
            assert (described.backlog + described.running, described.unproven) == (1, 2)

    arguments = ("--set", "restarts.first_seconds=0.01")
    with running_node(*arguments, shards=1, data=tmp_path / "data") as running:
        one, two = asyncio.run(before(running.url))
        os.kill(running.shards[0].pid, signal.SIGKILL)
        running.wait_for_event("shard died")
        asyncio.run(after(running.url, one, two))
        assert one.proof.hex() not in str(running.errors)
