"""Serves operators who look at single tasks and change them: LIST_TASKS, SHOW_TASK, CHANGE_TASKS.

A list is made in pieces of at most `PIECE` tasks, which are compared with the filter in slices of
`SLICE`. After its first slice a list waits for its turn before each further one, and the shard
rests afterwards (`ScanPace`): it serves other requests, however many lists there are. A request
ends with what it has after `LOOKED_AT` tasks or `WORK_SECONDS`, and its answer says where to go on.
So a backlog of ten million tasks is listed without stalling the shard, however few of them pass the
filter.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

from msgspec import DecodeError, msgpack

from maitred.errors import InvalidArgument, MaitredError
from maitred.matching.records import BY_LETTERS, PRIORITIES, RowDamagedError
from maitred.matching.task import WAITING
from maitred.matching.task_ends import decode_ended
from maitred.node.partitions import settle
from maitred.node.request_table import RequestTable
from maitred.node.task_privacy import ShownValue, TaskArguments
from maitred.node.task_views import LISTED_ARGUMENT_BYTES, TaskView
from maitred.protocol.frames import Opcode
from maitred.protocol.inspection import ListTasks, ShowTask, TasksChanged, TaskShown, TasksListed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from maitred.matching.sighted_task import Place, SightedTask
    from maitred.matching.task import QueueTask, Ticket
    from maitred.node.owned import Owned
    from maitred.node.partitions import Partitions
    from maitred.node.queue_requests import QueueRequests
    from maitred.node.signature_requests import SignatureRequests
    from maitred.node.task_privacy import HandlerKnowledge
    from maitred.protocol.inspection import ChangeTasks, ListedTask, TaskFilter
    from maitred.protocol.tasks import Revoked
    from maitred.security.audit_log import AuditLog

PIECE: Final = 1_000
"""Tasks that are read at once, as many as a segment has: some two milliseconds."""

SLICE: Final = 200
"""Tasks that are compared with the filter before other requests are served: about a millisecond."""

PIECE_BYTES: Final = 4 * 2**20
"""Bytes of rows that are read for a piece."""

LOOKED_AT: Final = 10_000
"""Tasks that one request looks at: some hundred milliseconds."""

WORK_SECONDS: Final = 1.0
"""How long one request looks at tasks: it is answered before its deadline, however many lists take
turns."""

NUMBER_MAX: Final = 2**63 - 1
"""No task has a higher number: the stores have no larger integers."""

AUDITED_IDS: Final = 100
"""Tasks that a record of the audit log names; it has the number of all."""


class AskedHere:
    """A request of this shard to one of its partitions; its answer resolves a future."""

    __slots__ = ("answered",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.answered: asyncio.Future[Any] = loop.create_future()

    def answer(self, message: object) -> None:
        """Resolve the future with the partition's answer."""
        settle(self.answered, message)

    def refuse(self, problem: MaitredError) -> None:
        """Resolve the future with the partition's error."""
        settle(self.answered, problem)


class ScanPace:
    """Lets all lists of a shard together work for half of the time at most.

    As a context manager it waits until no other list works or rests, and after the block it rests
    for as long as the block took.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._turn = asyncio.Lock()
        self._began = 0.0

    async def __aenter__(self) -> None:
        await self._turn.acquire()
        self._began = self._loop.time()

    async def __aexit__(self, *_: object) -> None:
        try:
            await asyncio.sleep(0)  # the time of the loop is that at which its turn began
            await asyncio.sleep(self._loop.time() - self._began)
        finally:
            self._turn.release()


class InspectionRequests:
    """Serves the requests about single tasks for the partitions of one shard."""

    def __init__(
        self,
        partitions: Partitions,
        signatures: SignatureRequests,
        queues: QueueRequests,
        audit: AuditLog | None,
    ) -> None:
        self._partitions = partitions
        self._signatures = signatures
        self._queues = queues
        self._audit = audit
        self._shard = partitions.shard
        self._loop = partitions.loop
        self._store = partitions.store
        self._pace = ScanPace(self._loop)
        self.requests = RequestTable(
            holders={
                Opcode.LIST_TASKS: partitions.answerer(self._list),
                Opcode.SHOW_TASK: partitions.answerer(self._show),
                Opcode.CHANGE_TASKS: partitions.answerer(self._change),
            },
        )

    # Lists

    async def _list(self, owned: Owned, message: ListTasks) -> TasksListed:
        wanted = message.filter
        is_revealing = message.reveal
        if wanted.argument is not None and not is_revealing:
            raise InvalidArgument("A filter by argument has to ask to reveal arguments.")
        handlers = await self._signatures.handlers(owned) if is_revealing else None
        read = self._pieces[message.state]
        found: list[ListedTask] = []
        looked_at = 0
        cursor: Place | None = message.after
        end = self._loop.time() + WORK_SECONDS

        def must_end() -> bool:
            return len(found) == message.most or looked_at >= LOOKED_AT or self._loop.time() >= end

        pace: AbstractAsyncContextManager[None] = nullcontext()
        while cursor is not None:
            async with pace:
                sightings, cursor = await read(self, owned, message, cursor)
                self._partitions.check(owned)
            for begin in range(0, len(sightings), SLICE):
                some = sightings[begin : begin + SLICE]
                async with pace:
                    self._partitions.check(owned)
                    seen = self._add_rows(found, owned, some, message, handlers)
                looked_at += seen
                pace = self._pace
                if must_end():
                    if begin + seen < len(sightings) or cursor is not None:
                        cursor = some[seen - 1].at
                    break
            if must_end():
                break
        now = self._loop.time() + owned.partition.ledger.wall
        return TasksListed(found, cursor, looked_at, now)

    def _add_rows(
        self,
        found: list[ListedTask],
        owned: Owned,
        sightings: Sequence[SightedTask],
        message: ListTasks,
        handlers: HandlerKnowledge | None,
    ) -> int:
        """Append the rows of tasks that pass the filter, as long as there is room; return how many
        tasks were looked at."""
        for seen, sighting in enumerate(sightings, 1):
            row = self._row(owned, sighting, message.filter, handlers)
            if row is not None:
                found.append(row)
                if len(found) == message.most:
                    return seen
        return len(sightings)

    def _row(
        self,
        owned: Owned,
        sighting: SightedTask,
        wanted: TaskFilter,
        handlers: HandlerKnowledge | None,
    ) -> ListedTask | None:
        partition = owned.partition
        view = TaskView(sighting, owned.key.partition, partition.ledger.wall)
        if not view.passes(wanted, reveal=handlers is not None):
            return None
        if handlers is None:
            return view.row(reveal=False)
        if wanted.argument is None and len(sighting.task.payload) > LISTED_ARGUMENT_BYTES:
            return view.listed(ShownValue(None, "size"), reveal=True)
        arguments = _arguments(sighting.task, handlers)
        if wanted.argument is not None and not _has(arguments, wanted):
            return None
        shown = ShownValue(None, "forgotten") if arguments is None else arguments.shown()
        return view.listed(shown, reveal=True)

    async def _running(
        self, owned: Owned, _: ListTasks, after: Place
    ) -> tuple[list[SightedTask], Place | None]:
        found = owned.partition.lists.running(after, PIECE)
        return found, found[-1].at if len(found) == PIECE else None

    async def _ended(
        self, owned: Owned, message: ListTasks, after: Place
    ) -> tuple[list[SightedTask], Place | None]:
        await self._partitions.stored_histories.known(owned)
        kind: Any = None if message.state == "ended" else message.state
        found = owned.partition.lists.ended(kind, after, PIECE, self._loop.time())
        return found, found[-1].at if len(found) == PIECE else None

    async def _waiting(
        self, owned: Owned, _: ListTasks, after: Place
    ) -> tuple[list[SightedTask], Place | None]:
        """Read the segment that has the next number, unless it is between two, and those behind it
        unless that one is enough."""
        priority, sequence = int(after[0]), min(after[1], NUMBER_MAX - 1)
        if not 0 <= priority < PRIORITIES:
            raise InvalidArgument(f"There is no priority {priority}.")
        key = owned.key
        segments = await self._store.segments_around(key, sequence + 1) if sequence else []
        segments = [one for one in segments if one.segment.priority == priority]
        if segments:
            sequence = segments[-1].segment.last
        is_all = False
        if sequence - after[1] < PIECE // 2:
            following = await self._store.segments(key, priority, sequence, PIECE, PIECE_BYTES)
            tasks = sum(segment.tasks for segment, _ in following)
            size = sum(len(segment.body) for segment, _ in following)
            is_all = tasks < PIECE and size < PIECE_BYTES
            segments += following
        self._partitions.check(owned)
        found, horizon = owned.partition.lists.waiting(
            priority, after[1], segments, self._loop.time(), is_all=is_all
        )
        if horizon is not None:
            return found, (float(priority), horizon)
        return found, (priority + 1.0, 0) if priority + 1 < PRIORITIES else None

    async def _delayed(
        self, owned: Owned, _: ListTasks, after: Place
    ) -> tuple[list[SightedTask], Place | None]:
        with owned.partition.purge.reading():
            rows = await self._store.later_after(owned.key, after, PIECE, PIECE_BYTES)
            self._partitions.check(owned)
            is_all = len(rows) < PIECE and sum(len(one.body) for one in rows) < PIECE_BYTES
            return owned.partition.lists.delayed(after, rows, self._loop.time(), is_all=is_all)

    async def _dead(
        self, owned: Owned, _: ListTasks, after: Place
    ) -> tuple[list[SightedTask], Place | None]:
        rows = await self._store.dead(owned.key, after[1], PIECE, PIECE_BYTES)
        self._partitions.check(owned)
        found = owned.partition.lists.dead(rows, self._loop.time())
        is_all = len(rows) < PIECE and sum(len(one.body) for one in rows) < PIECE_BYTES
        return found, None if is_all else (0.0, rows[-1].sequence)

    _pieces: Final = {
        "running": _running,
        "waiting": _waiting,
        "delayed": _delayed,
        "dead": _dead,
        "ended": _ended,
        "done": _ended,
        "cancelled": _ended,
        "expired": _ended,
    }

    # One task

    async def _show(self, owned: Owned, message: ShowTask) -> TaskShown:
        handlers = await self._signatures.handlers(owned)
        # Last, because the task goes on: its state would be an old one after another wait.
        sighting = await self._sighting(owned, message.sequence)
        self._partitions.check(owned)
        partition, task, reveal = owned.partition, sighting.task, message.reveal
        view = TaskView(sighting, owned.key.partition, partition.ledger.wall)
        arguments = _arguments(task, handlers)
        row = view.row(reveal=reveal)
        shown = TaskShown(
            task=row,
            events=view.events(reveal=reveal),
            node=self._shard.description.node,
            shard=self._shard.number,
            retention=task.terms.retention,
            timeout=task.terms.timeout,
            lease_until=task.lease_until + partition.ledger.wall if task.lease_until else 0.0,
            function=handlers.function,
        )
        if not reveal:
            return shown
        told = ShownValue(None, "forgotten") if arguments is None else arguments.shown()
        row.arguments, row.withheld = told.body, told.withheld
        shown.traceback = view.failure.traceback
        if sighting.state == "done":
            body = await self._result(owned, task.sequence)
            if body is None:
                result = ShownValue(None, "forgotten")
            elif arguments is None:
                is_open = handlers.is_complete and not (task.terms.hidden or handlers.hides)
                result = ShownValue(body) if is_open else ShownValue(None, "unknown")
            else:
                result = arguments.result(body)
            shown.result, shown.result_withheld = result.body, result.withheld
        return shown

    async def _sighting(self, owned: Owned, sequence: int) -> SightedTask:
        if sequence not in owned.partition.own_tasks.tasks:
            await self._partitions.stored_histories.known(owned)
        asked = AskedHere(self._loop)
        owned.partition.stored_tasks.show(sequence, asked, self._loop.time())
        self._partitions.touch(owned)
        found: SightedTask = await asked.answered
        return found

    async def _result(self, owned: Owned, sequence: int) -> bytes | None:
        ended = owned.partition.results.outcomes.get(sequence, self._loop.time())
        if ended is not None:
            return ended.body
        row = await self._store.result(owned.key, sequence)
        if row is None or row.expires_at <= self._partitions.wall_clock():
            return None
        try:
            return decode_ended(row.body)[2]
        except RowDamagedError:
            return None  # `result()` sets it aside

    # Changes

    async def _change(self, owned: Owned, message: ChangeTasks) -> TasksChanged:
        answer = TasksChanged([])
        try:
            await self._works[message.action](self, owned, message, answer)
        finally:
            if answer.done:
                self._tell(owned, message, answer.done)
        return answer

    async def _cancel(self, owned: Owned, message: ChangeTasks, answer: TasksChanged) -> None:
        stored_tasks = owned.partition.stored_tasks
        asked: list[tuple[int, AskedHere]] = []
        for sequence in message.sequences:
            one = AskedHere(self._loop)
            try:
                stored_tasks.revoke(sequence, one, self._loop.time())
            except MaitredError as problem:
                one.refuse(problem)
            asked.append((sequence, one))
        self._partitions.touch(owned)
        for sequence, one in asked:
            try:
                told: Revoked = await one.answered
            except MaitredError as problem:
                answer.left[sequence] = _why(problem)
            else:
                if told.state == "over":
                    answer.left[sequence] = "over"
                else:
                    answer.done.append(sequence)

    async def _letters(self, owned: Owned, message: ChangeTasks, answer: TasksChanged) -> None:
        found = await self._queues.act_on_letters(owned, message.action, message.sequences)
        answer.done = [one.sequence for one in found]
        done = set(answer.done)
        answer.left = {one: "not-dead" for one in message.sequences if one not in done}

    async def _run_now(self, owned: Owned, message: ChangeTasks, answer: TasksChanged) -> None:
        partition = owned.partition
        async with self._partitions.written(owned) as ticket:
            for sequence in message.sequences:
                if sequence not in partition.own_tasks.tasks:
                    await self._recall(owned, sequence)
                partition.health.raise_problem()
                self._run_one_now(owned, sequence, ticket, answer)
                self._partitions.touch(owned)

    async def _recall(self, owned: Owned, sequence: int) -> None:
        """Bring a delayed task into memory, if the store has it."""
        await self._partitions.stored_histories.known(owned)
        with owned.partition.purge.reading():
            row = await self._store.later_one(owned.key, sequence)
            self._partitions.check(owned)
            if row is not None:
                owned.partition.store_replies.recall_later(row, self._loop.time())

    def _run_one_now(
        self, owned: Owned, sequence: int, ticket: Ticket, answer: TasksChanged
    ) -> None:
        now = self._loop.time()
        task = owned.partition.own_tasks.tasks.get(sequence)
        if task is not None and task.state is WAITING:
            owned.partition.own_tasks.run_now(task, ticket, now)
            answer.done.append(sequence)
            return
        sighting = owned.partition.lists.one(sequence, now)
        if sighting is None:
            answer.left[sequence] = "not-delayed"
        else:
            is_open = sighting.state in ("running", "waiting")
            answer.left[sequence] = sighting.state if is_open else "over"

    async def _again(self, owned: Owned, message: ChangeTasks, answer: TasksChanged) -> None:
        partition = owned.partition
        if not partition.writable:
            answer.left = dict.fromkeys(message.sequences, "read-only")
            return
        host = message.source.rpartition(":")[0]
        by = f"{message.user}@{host}" if message.user and host else message.user or host
        added: list[tuple[int, int, asyncio.Future[None]]] = []
        for sequence in message.sequences:
            try:
                sighting = await self._sighting(owned, sequence)
            except MaitredError as problem:
                answer.left[sequence] = _why(problem)
                continue
            self._partitions.check(owned)
            task = sighting.task
            if sighting.state in ("running", "waiting", "delayed"):
                answer.left[sequence] = sighting.state
            elif task.payload_gone or not task.added:
                answer.left[sequence] = "forgotten"
            else:
                future: asyncio.Future[None] = self._loop.create_future()
                try:
                    number = self._add_again(owned, task, by, future)
                except MaitredError as problem:  # a quota
                    answer.left[sequence] = problem.code
                    continue
                added.append((sequence, number, future))
        self._partitions.touch(owned)
        for sequence, number, future in added:
            try:
                await future
            except MaitredError as problem:
                answer.left[sequence] = problem.code
            else:
                answer.done.append(sequence)
                answer.added[sequence] = number

    def _add_again(
        self, owned: Owned, task: QueueTask, by: str, future: asyncio.Future[None]
    ) -> int:
        return owned.partition.intake.add(
            [task.payload],
            token=lambda _, problem: settle(future, problem),
            now=self._loop.time(),
            priority=task.priority,
            terms=task.terms,
            by=by[:BY_LETTERS],
        )

    _works: Final = {
        "cancel": _cancel,
        "retry": _letters,
        "drop": _letters,
        "run-now": _run_now,
        "again": _again,
    }

    # The record

    def _tell(self, owned: Owned, message: ChangeTasks, done: Sequence[int]) -> None:
        """Record what was done, in the log and in the audit log."""
        namespace, queue, _, partition = owned.key
        details = {
            "partition": partition,
            "tasks": len(done),
            "ids": list(done[:AUDITED_IDS]),
            "reason": message.reason,
        }
        self._shard.log.info(
            "tasks changed",
            namespace=namespace,
            queue=queue,
            action=message.action,
            user=message.user,
            partition=partition,
            tasks=len(done),
            reason=message.reason,
        )
        if self._audit is not None:
            self._audit.record(
                f"{message.action} tasks",
                user=message.user,
                source=message.source,
                target=f"{namespace}/{queue}",
                details=details,
            )


if TYPE_CHECKING:
    Piece = Callable[
        [InspectionRequests, Owned, ListTasks, Place],
        Awaitable[tuple[list[SightedTask], Place | None]],
    ]


def _arguments(task: QueueTask, handlers: HandlerKnowledge) -> TaskArguments | None:
    """Return the arguments of a task; None if they are no longer kept."""
    if task.payload_gone or not task.added:
        return None
    return TaskArguments(task.payload, task.terms.hidden, handlers)


def _has(arguments: TaskArguments | None, wanted: TaskFilter) -> bool:
    if arguments is None or wanted.argument is None:
        return False
    is_there, value = arguments.value(wanted.argument.name)
    try:
        return is_there and bool(value == msgpack.decode(wanted.argument.value))
    except (DecodeError, ValueError, RecursionError):
        raise InvalidArgument("The value of the filter by argument is not msgpack.") from None


def _why(problem: MaitredError) -> str:
    """Return why nothing was done to a task, in the words of `TasksChanged.left`."""
    return _WORDS.get(problem.code, problem.code)


_WORDS: Final = {"unknown-task": "unknown", "task-forgotten": "forgotten"}
