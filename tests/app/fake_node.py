"""A node whose shard is real and whose partitions are not: dictionaries, and no store.

It speaks the wire protocol, so that clients and workers cannot tell the difference; a test can look
at everything that was said, and decide what is answered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from maitred.errors import UnknownTask
from maitred.protocol.frames import Opcode
from maitred.protocol.messages import encode
from maitred.protocol.queries import Attend, Attended
from maitred.protocol.tasks import (
    DONE,
    FAILED,
    RETURNED,
    STOPPED,
    Add,
    Added,
    Await,
    Counts,
    End,
    Failure,
    Finish,
    Finished,
    Given,
    Heard,
    Heartbeat,
    Offer,
    Offered,
    Outcome,
    Revoke,
    Revoked,
)
from tests.client.nodes import QUICK, RunningNode
from tests.node.in_process import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from maitred.app.app import App

EARLY_SECONDS = 0.02
"""A node answers what it holds a little before the time is over."""


def proof_of(sequence: int, attempt: int) -> bytes:
    """What a worker has to show; any bytes, of which each attempt has its own."""
    return b"%8d%8d" % (sequence % 10**8, attempt)


class FakeTask:
    def __init__(self, sequence: int, payload: bytes, message: Add) -> None:
        self.sequence = sequence
        self.payload = payload
        self.terms = message.terms
        self.attempt = 0
        self.running = False
        self.revoked = False
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()


class FakePartition:
    def __init__(self, number: int) -> None:
        self.number = number
        self.tasks: dict[int, FakeTask] = {}
        self.waiting: deque[FakeTask] = deque()
        self.next = 2**32
        self.changed = asyncio.Event()

    def tell(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class FakeNode(RunningNode):
    """One shard. State survives a stop and a start, as if it were on disk."""

    def __init__(self, *, counts: Counts | None = None, lease_seconds: float = 10.0) -> None:
        super().__init__(1)
        self.counts = counts or Counts(1, 1, 0)
        self.lease_seconds = lease_seconds
        self.partitions: dict[tuple[str, int], FakePartition] = {}
        self.said: list[Any] = []
        """Every request, in order."""
        self.under_way: list[Any] = []
        """Every request that is not answered yet."""
        self.orders: dict[str, asyncio.Queue[Attended]] = {}
        self.attending: set[tuple[str, bytes]] = set()
        """For workers of a queue."""
        self.refused: list[int] = []
        """Ends of these are said to be unproven."""
        self.before: dict[type, Callable[[Any], Awaitable[Any] | None]] = {}
        """Called with the message first; what is awaited may raise."""

    async def start(self, *numbers: int) -> None:
        await super().start(*numbers)
        for shard in self.shards:
            shard.handlers |= {
                Opcode.ADD: self._hooked(self._add),
                Opcode.AWAIT: self._hooked(self._await),
                Opcode.REVOKE: self._hooked(self._revoke),
                Opcode.OFFER: self._hooked(self._offer),
                Opcode.FINISH: self._hooked(self._finish),
                Opcode.HEARTBEAT: self._hooked(self._heartbeat),
                Opcode.ATTEND: self._hooked(self._attend),
            }

    def app(self, app: App) -> App:
        """Have the app use this node."""
        app.node = self.url
        app._settings = {**QUICK, **app._settings}
        return app

    def heard(self, kind: type[Any]) -> list[Any]:
        """What was said of that kind."""
        return [message for message in self.said if type(message) is kind]

    def held(self, kind: type[Any]) -> list[Any]:
        """Of these, what is not answered yet."""
        return [message for message in self.under_way if type(message) is kind]

    async def until(self, condition: Callable[[], object], seconds: float = 30) -> None:
        """Look until the condition holds, whether it is of the node or of who talks to it.

        Waiting for the next request or answer would not do: a worker acts on an answer after the
        node has given it, and may have nothing to say after that.
        """
        await until(lambda: bool(condition()), seconds)

    def ends(self) -> list[End]:
        return [end for finish in self.heard(Finish) for end in finish.ends]

    def partition(self, queue: str, number: int = 0) -> FakePartition:
        return self.partitions.setdefault((queue, number), FakePartition(number))

    def _hooked(self, handler: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Any]:
        async def handle(message: Any) -> Any:  # noqa: ANN401 - any request
            self.said.append(message)
            self.under_way.append(message)
            before = self.before.get(type(message))
            answer = None
            try:
                if before is not None:
                    waited = before(message)
                    if waited is not None:
                        answer = await waited
                return answer if answer is not None else await handler(message)
            finally:
                self.under_way = [one for one in self.under_way if one is not message]

        return handle

    def _newer(self, version: int) -> Counts | None:
        return self.counts if version < self.counts.version else None

    async def _add(self, message: Add) -> Added:
        newer = self._newer(message.version)
        if message.partition >= self.counts.write:
            return Added(-1, newer)
        partition = self.partition(message.queue, message.partition)
        first = partition.next
        for payload in message.payloads:
            task = FakeTask(partition.next, payload, message)
            partition.next += 1
            partition.tasks[task.sequence] = task
            partition.waiting.append(task)
        partition.tell()
        return Added(first, newer)

    def _task(self, message: Await | Revoke) -> FakeTask:
        partition = self.partition(message.queue, message.partition)
        try:
            return partition.tasks[message.sequence]
        except KeyError:
            raise UnknownTask("There is no such task.") from None

    async def _await(self, message: Await) -> Outcome:
        return await asyncio.shield(self._task(message).outcome)

    async def _revoke(self, message: Revoke) -> Revoked:
        task = self._task(message)
        if task.outcome.done():
            return Revoked("over")
        task.revoked = True
        partition = self.partition(message.queue, message.partition)
        if task.running:
            partition.tell()
            return Revoked("cancelling")
        partition.waiting.remove(task)
        task.outcome.set_result(Outcome("cancelled", task.attempt, b""))
        return Revoked("cancelled")

    async def _offer(self, message: Offer) -> Offered:
        partition = self.partition(message.queue, message.partition)
        loop = asyncio.get_running_loop()
        end = loop.time() + message.timeout_milliseconds / 1000 - EARLY_SECONDS
        while not partition.waiting and loop.time() < end:
            try:
                async with asyncio.timeout_at(end):
                    await partition.changed.wait()
            except TimeoutError:
                break
        given: list[Given] = []
        while partition.waiting and len(given) < message.slots:
            task = partition.waiting.popleft()
            task.attempt += 1
            task.running = True
            given.append(
                Given(
                    partition.number,
                    task.sequence,
                    task.attempt,
                    proof_of(task.sequence, task.attempt),
                    task.terms.timeout,
                    task.payload,
                )
            )
        return Offered(
            given, self.lease_seconds, len(partition.waiting), 0.0, self._newer(message.version)
        )

    async def _attend(self, message: Attend) -> Attended:
        if (message.queue, message.session) not in self.attending:
            self.attending.add((message.queue, message.session))
            return Attended()
        orders = self.orders.setdefault(message.queue, asyncio.Queue())
        try:
            async with asyncio.timeout(message.timeout_milliseconds / 1000 - EARLY_SECONDS):
                return await orders.get()
        except TimeoutError:
            return Attended()

    async def _finish(self, message: Finish) -> Finished:
        partition = self.partition(message.queue, message.partition)
        late = []
        for end in message.ends:
            assert end.proof == proof_of(end.sequence, end.attempt)
            task = partition.tasks.get(end.sequence)
            if task is None or not task.running or task.attempt != end.attempt:
                late.append(end.sequence)
                continue
            task.running = False
            if end.how == RETURNED:
                task.attempt -= 1
                partition.waiting.appendleft(task)
            elif end.how == DONE:
                task.outcome.set_result(Outcome("done", task.attempt, end.body))
            elif end.how == STOPPED:
                task.outcome.set_result(Outcome("cancelled", task.attempt, b""))
            elif task.attempt > task.terms.retries:
                body = end.body
                if end.how != FAILED:
                    body = encode(Failure("timed-out", "It took too long."))
                task.outcome.set_result(Outcome("failed", task.attempt, body))
            else:
                partition.waiting.append(task)
        partition.tell()
        return Finished(late, self.refused)

    async def _heartbeat(self, message: Heartbeat) -> Heard:
        partition = self.partition(message.queue, message.partition)
        loop = asyncio.get_running_loop()
        end = loop.time() + message.timeout_milliseconds / 1000 - EARLY_SECONDS
        while True:
            lost, revoked = [], []
            for sequence, attempt, proof in message.running:
                assert proof == proof_of(sequence, attempt)
                task = partition.tasks.get(sequence)
                if task is None or task.attempt != attempt:
                    lost.append(sequence)
                elif task.running and task.revoked:
                    revoked.append(sequence)
            if lost or revoked or loop.time() >= end:
                return Heard(lost, revoked)
            try:
                async with asyncio.timeout_at(end):
                    await partition.changed.wait()
            except TimeoutError:
                return Heard([], [])
