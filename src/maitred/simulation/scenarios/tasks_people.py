"""The users of the scenario of tasks: producers, workers, and an admin of the queue.

Producers and workers run what real ones run, `maitred.app` and `maitred.worker`. What they do and
see goes into the record.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Final, Literal, cast

from maitred.app.attempt import current
from maitred.errors import DeadlineExceeded, MaitredError, UnknownQueue
from maitred.protocol.sessions import session_of_secret
from maitred.protocol.tasks import ControlQueue, DeadLetters, Describe, Resize
from maitred.routing.names import TASKS
from maitred.settings import WorkerSettings
from maitred.simulation.scenarios.people import Guest, WorkerGuest

if TYPE_CHECKING:
    from collections.abc import Callable

    from maitred.app.app import App
    from maitred.app.task import Task
    from maitred.client.client import AsyncClient
    from maitred.protocol.tasks import DeadLettersFound
    from maitred.simulation.hosts import Host
    from maitred.simulation.scenarios.people import NodeHosts
    from maitred.simulation.scenarios.tasks_record import Story, TasksRecord

NAMESPACE: Final = "shop"
QUEUE: Final = "orders"
QUEUES: Final = (QUEUE, *(f"{QUEUE}-{number}" for number in range(1, 9)))
"""The names of queues; a run uses the first ones."""
PARTITIONS_MAX: Final = 5
RETENTION_SECONDS: Final = 3_600.0
BATCH_MAX: Final = 12
"""The most tasks of a batch, which fit one message: a batch of several may be accepted in part. Its
tasks are alike, so more would find no more; but they do not all fit in a small buffer."""

SELECTION: Final = "weighted"


def serving(app: App, queues: int, handle: Callable[[int], object]) -> App:
    """Let `handle` serve the first `queues` queues in a new app, and return the app."""
    for queue in QUEUES[:queues]:
        app.handler(queue, retention=RETENTION_SECONDS, selection=SELECTION)(handle)
    return app


async def unserved(number: int) -> int:
    """Stand for the handler in a process that serves no queue."""
    raise NotImplementedError


class Person(Guest):
    """A host with one process that uses the first `queues` queues and serves none."""

    def __init__(
        self, host: Host, node: NodeHosts, record: TasksRecord, *, queues: int = 1
    ) -> None:
        super().__init__(host, node)
        self.record = record
        self.queues = queues

    def app(self) -> App:
        """Return a new app whose handlers are never called."""
        return serving(self.app_of(NAMESPACE), self.queues, unserved)


class Producer(Person):
    """Adds tasks, asks for some results, cancels some."""

    tasks = 30
    pause_seconds = 0.6
    quick_probability = 0.9
    """The share of tasks that run for less than half a second."""

    def __init__(
        self,
        host: Host,
        node: NodeHosts,
        record: TasksRecord,
        *,
        queues: int = 1,
        plain: bool = False,
    ) -> None:
        super().__init__(host, node, record, queues=queues)
        self.plain = plain
        """Whether to do nothing that would change the order in which tasks are begun."""

    async def main(self) -> None:
        """Add tasks until all are added or refused."""
        app = self.app()
        await self.connected(app)
        async with self.cut_now_and_then():
            waiting = []
            left = self.tasks
            while left > 0:
                count = min(left, self.random.choice((1, 1, 1, 2, 5, BATCH_MAX)))
                left -= count
                waiting += await self._add(app, count)
                await asyncio.sleep(self.random.random() * self.pause_seconds)
            for task in waiting:
                await task
        await self.leave(app)

    async def _add(self, app: App, count: int) -> list[asyncio.Task[None]]:
        random = self.random
        delay = expires = timeout = 0.0
        retries, backoff = 20, (0.1, 1.0)
        if not self.plain:
            delay = random.choice((0.0,) * 6 + (0.1, 3.0))
            expires = random.choice((0.0,) * 9 + (2.0,))
            timeout = random.choice((0.0, 0.0, 8.0))
            retries = random.choice((0, 2, 20))
        priority = random.choice((2, 2, 0, 4))
        queue = random.choice(QUEUES[: self.queues]) if self.queues > 1 else QUEUE
        handler = app.handlers[queue]
        stories = [
            self.record.told(
                retries=retries,
                queue=handler.queue,
                priority=priority,
                delayed=bool(delay),
                may_expire=bool(expires),
                fails=0 if self.plain else random.choice((0,) * 8 + (1, 3)),
                runs_seconds=random.choice((0.0, 0.0, 0.0, 0.01, 0.05))
                if self.plain or random.random() < self.quick_probability
                else random.choice((0.5, 1.5, 5.0)),
            )
            for _ in range(count)
        ]
        wished = handler.options(
            delay=delay,
            expires=expires,
            timeout=timeout,
            retries=retries,
            backoff=backoff,
            priority=priority,
        )
        calls = [wished.call(story.number) for story in stories]
        try:
            tasks = await wished.enqueue_many(calls)
        except MaitredError as problem:
            for story in stories:
                self.record.refuses(story, problem)
            return []
        for story, task in zip(stories, tasks, strict=True):
            story.place = (task.partition, task.sequence)
        later = []
        if random.random() < 0.5:
            later.append(asyncio.ensure_future(self._await(tasks[0], stories[0])))
        if random.random() < 0.4 and not self.plain:
            later.append(asyncio.ensure_future(self._cancel(tasks[-1], stories[-1])))
        return later

    async def _await(self, task: Task[object], story: Story) -> None:
        await self._ask(task, story, self.random.choice((0.01, 1.0, 5.0)))

    async def _ask(self, task: Task[object], story: Story, seconds: float) -> None:
        try:
            result = await task.result(timeout=seconds)
        except DeadlineExceeded:
            return
        except MaitredError as problem:
            if problem.code in ENDS:
                story.answers.append(ENDS[problem.code])
            elif problem.code not in ALLOWED_AWAITING | self.record.promise.other_errors:
                raise
            else:
                self.record.fails(story, problem)
            return
        story.answers.append("done")
        if result != story.number:
            raise self.record.violation(story, f"has the result {result!r}")
        if not story.completed:
            raise self.record.violation(story, "is done, and no worker completed it")

    async def _cancel(self, task: Task[object], story: Story) -> None:
        await asyncio.sleep(self.random.random())
        story.revoked = True
        # A separate source, so that other draws of a seed stay the same.
        random = Random(story.number)
        for _ in range(random.choice((1, 2, 3))):  # a caller that gets no answer asks again
            try:
                answer = await task.cancel()
            except MaitredError as problem:
                if problem.code in ENDS:
                    story.answers.append(ENDS[problem.code])
                else:
                    self.record.fails(story, problem)
            else:
                story.answers.append(answer)
                story.cancelled |= answer == "cancelled"
            await asyncio.sleep(random.choice((0.0, 0.1, 4.0)))
        await self._ask(task, story, random.choice((0.01, 5.0)))


ENDS: Final = {
    "task-failed": "failed",
    "task-cancelled": "cancelled",
    "task-expired": "expired",
    "task-forgotten": "forgotten",
}
"""The end of a task that an error code reports."""

ALLOWED_AWAITING: Final = frozenset(
    {"outcome-unknown", "store-unavailable", "store-full", "not-owner", "closed", "draining"}
)
"""The errors with which waiting for a result may fail: no shard that knows it was reachable."""


class WorkerHost(WorkerGuest):
    """A worker that serves the first `queues` queues."""

    def __init__(
        self, host: Host, node: NodeHosts, record: TasksRecord, *, slots: int = 4, queues: int = 1
    ) -> None:
        super().__init__(host, node, record, slots=slots)
        self.record = record
        self.queues = queues
        self.session = b""
        """Session of the worker that runs now, or ran last."""

    def gone(self, name: str) -> None:
        super().gone(name)
        self.record.worker_gone(name)

    async def main(self, name: str) -> None:
        loop = asyncio.get_running_loop()
        stories = self.record.stories

        async def handle(number: int) -> int:
            attempt = current()
            partition, sequence = attempt.task_id.split("/")[-2:]
            place = (int(partition), int(sequence))
            run = self.record.begins(number, name, attempt.number, place, loop.time())
            self.record.takes_slot(name, self.slots)
            try:
                await asyncio.sleep(stories[number].runs_seconds)
            finally:
                run.ended = True
                self.record.leaves_slot(name)
            if attempt.number <= stories[number].fails:
                raise ValueError(f"attempt {attempt.number}")
            self.record.completes(number)
            return number

        app = serving(self.app_of(NAMESPACE), self.queues, handle)
        client = await self.connected(app)
        secret = self.random.randbytes(16)
        self.session = session_of_secret(secret)
        settings = WorkerSettings(slots=self.slots, offer_seconds=10.0, finish_seconds=4.0)
        await self.serve(app, client, settings, name=name, secret=secret)


class Admin(Person):
    """Changes the number of partitions, looks at them, pauses and resumes queues, and has dead
    letters tried again."""

    is_calm = False
    """Whether to pause no more queues, and to resume those that are paused."""
    has_resumed = False
    """Whether no queue is paused any more, and none will be."""

    def paused(self) -> list[object]:
        """Return what is left to do before the admin may leave."""
        return [] if self.has_resumed else ["the admin has not resumed all queues"]

    async def main(self) -> None:
        """Resize, pause and describe queues, and revive dead letters, for ever."""
        client = await self.connected(self.app())
        random = self.random
        read = 1
        while True:
            await asyncio.sleep(random.expovariate(1.0))
            with suppress(MaitredError):
                if self.is_calm and not self.has_resumed:
                    await self._resume_all(client)
                what = random.random()
                queue = random.choice(QUEUES[: self.queues]) if self.queues > 1 else QUEUE
                where = (NAMESPACE, queue, TASKS, random.randrange(PARTITIONS_MAX), 0)
                if what < 0.6:
                    write = random.randint(1, PARTITIONS_MAX)
                    wanted = max(write, random.choice((read, write)))
                    await client.request(Resize(NAMESPACE, queue, TASKS, 0, 0, wanted, write))
                    read = wanted
                elif what < 0.75:
                    await client.request(Describe(*where))
                elif what < 0.8:
                    action: Literal["pause", "resume"] = "resume"
                    if not self.is_calm and random.random() < 0.5:
                        action = "pause"
                    await client.request(ControlQueue(NAMESPACE, queue, TASKS, 0, 0, action))
                else:
                    await self._revive(client, where)

    async def _resume_all(self, client: AsyncClient) -> None:
        for queue in QUEUES[: self.queues]:
            with suppress(UnknownQueue):
                await client.request(ControlQueue(NAMESPACE, queue, TASKS, 0, 0, "resume"))
        self.has_resumed = True

    async def _revive(self, client: AsyncClient, where: tuple[str, str, int, int, int]) -> None:
        """Have some dead letters tried again."""
        listed = cast("DeadLettersFound", await client.request(DeadLetters(*where, "list")))
        some = [one.sequence for one in listed.letters if self.random.random() < 0.5]
        for sequence in some:
            self.record.revives(where[1], (where[3], sequence))
        if some:
            await client.request(DeadLetters(*where, "retry", some))
