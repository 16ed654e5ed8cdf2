"""A handler: a function whose calls are the tasks and queries of a queue.

Calling a handler calls the function. Enqueueing makes the call a task: the arguments are checked,
serialised and sent to the node; when `enqueue` returns, they are durable. `ParamSpec` types both,
so a type checker finds wrong arguments of either.

Querying has a free worker run the call now, and returns its result; nothing is persisted. A
generator's rows come as a list, or one by one from `stream`.
"""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from maitred.app.options import (
    Options,
    conditions,
    is_idempotent,
    is_now_or_never,
    is_worker_required,
)
from maitred.app.task import SyncTask, Task, parse_id
from maitred.app.task_actions import change_selected
from maitred.app.task_listing import TaskListing, each_task, each_task_waiting
from maitred.client.enqueue_batches import added_within
from maitred.client.query_calls import (
    Stream,
    SyncStream,
    read_any_rows,
    read_anything,
)
from maitred.dispatch.ask import Ask
from maitred.errors import InvalidArguments, InvalidTaskId
from maitred.redaction import hidden_parameters

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
    from typing import Unpack

    from maitred.app.session import SessionOwner
    from maitred.app.signature import Signature
    from maitred.app.task_listing import TaskFilters
    from maitred.app.task_views import TaskStatus
    from maitred.client.asked_query import AskedQuery
    from maitred.client.changed_tasks import ChangedTasks
    from maitred.client.enqueue_batches import Conditions, EnqueueBatches, EnqueuedTask
    from maitred.client.query_gateway import QueryGateway
    from maitred.protocol.inspection import TaskAction
    from maitred.routing.names import QueueId
    from maitred.telemetry.tracing import Tracing

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Row = TypeVar("Row")
Called = TypeVar("Called")
"""What calling the function itself returns: the result, or a coroutine for it."""


class TaskCall(Struct, Generic[Parameters], eq=False, gc=False):
    """Arguments for one task of a batch, already checked and serialised."""

    signature: Signature
    payload: bytes


class Handler(Generic[Parameters, Result, Called]):
    """A function that serves a queue; `App.handler` makes it."""

    def __init__(
        self,
        app: SessionOwner,
        queue: QueueId,
        signature: Signature,
        wanted: Conditions,
        selection: str,
        *,
        idempotent: bool = False,
        do_not_queue: bool = False,
        require_worker: bool = False,
        hide: Sequence[str] = (),
    ) -> None:
        self.app = app
        self.id = queue
        self.queue = queue.queue
        self.signature = signature
        self.hidden = hidden_parameters(signature.names, hide, signature.name, signature.defaults)
        """The parameters whose values stay out of logs and failures, and that no operator may see;
        None if there are none."""
        places = () if self.hidden is None else self.hidden.places
        self.conditions = replace(wanted, terms=replace(wanted.terms, hidden=places))
        self.selection = selection
        self.is_async = signature.is_async
        self._write = signature.write
        self._read_result = signature.read_result
        self._adding: EnqueueBatches | None = None
        self.idempotent = idempotent
        """Whether its queries may be run again on another worker."""
        self.do_not_queue = do_not_queue
        self.require_worker = require_worker
        if self.hidden is not None:
            self.describe()  # a handler whose hidden parameters cannot be announced is refused here
        self._querying: QueryGateway | None = None
        functools.update_wrapper(self, signature.function)

    def __repr__(self) -> str:
        return f"<Handler {self.signature.name} of {self.id.namespace}/{self.queue}>"

    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Called:
        """Call the function itself, in this process."""
        called: Called = self.signature.function(*args, **kwargs)
        return called

    async def enqueue(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Task[Result]:
        """Add a task; it is durable, or done, when this returns.

        An error whose `outcome` is "nothing" means that the task was not added and no attempt at it
        was begun; "unknown" means that it may have been added, and run. `NoHandlerFits` is of the
        first kind: no worker that serves the queue, or did in the last day, accepts the arguments.
        """
        payload = self._write(args, kwargs)
        adding = self._adding
        loop = asyncio.get_running_loop()
        if adding is None or adding.loop is not loop:
            adding = await self._begin_adding()
        if loop.time() >= adding.unchecked_until or self.require_worker:
            await self._check(adding, [payload])
        tracing = adding.tracing
        if tracing is None:
            added = await adding.add(self.conditions, payload)
        elif (trace := tracing.skipped()) is not None:
            added = await adding.add(self.conditions, payload, trace)
        else:
            added = await self._add_traced(adding, tracing, payload)
        partition, sequence, result = added
        return Task(self.app, self.queue, partition, sequence, self._read_result, result)

    async def _add_traced(
        self, adding: EnqueueBatches, tracing: Tracing, payload: bytes
    ) -> EnqueuedTask:
        name = f"{self.id.namespace}/{self.queue}"
        span = tracing.sends(name, 1)
        add = functools.partial(adding.add, self.conditions, payload, span.context)
        return await added_within(span, add, name)

    async def enqueue_many(self, calls: Iterable[TaskCall[Parameters]]) -> list[Task[Result]]:
        """Add many tasks, made by `call`, with as few messages as possible; all or some.

        A batch of up to 10,000 tasks and a megabyte for one partition is one message. If one of
        several messages fails, the tasks of the others are added all the same, and `OutcomeUnknown`
        says how many. As for `enqueue`, an `outcome` of "nothing" means that no task was added.
        """
        payloads = []
        for one in calls:
            if getattr(one, "signature", None) is not self.signature:
                raise InvalidArguments(
                    f"{one!r:.80} is not a call of {self.signature.name}.",
                    remedy=f"Make them with {self.signature.name}.call(...).",
                )
            payloads.append(one.payload)
        adding = await self._begin_adding()
        if asyncio.get_running_loop().time() >= adding.unchecked_until or self.require_worker:
            await self._check(adding, payloads)
        tracing = adding.tracing
        trace = b"" if tracing is None else tracing.skipped()
        if tracing is None or trace is not None:
            added = await adding.add_many(self.conditions, payloads, trace or b"")
        else:
            span = tracing.sends(f"{self.id.namespace}/{self.queue}", len(payloads))
            try:
                added = await adding.add_many(self.conditions, payloads, span.context)
            except BaseException as problem:
                span.end(problem)
                raise
            span.end()
        app, queue, read = self.app, self.queue, self._read_result
        return [
            Task(app, queue, partition, sequence, read, result)
            for partition, sequence, result in added
        ]

    async def query(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        """Have a free worker run the call now, and return its result; for a generator, all rows.

        Raises `QueryFailed` for the handler's own error, and other errors of a query:
        `DeadlineExceeded`, `NoWorker`, `WorkerLost`, ... Cancelling the query stops the handler.
        """
        payload = self._write(args, kwargs)
        querying = self._querying
        if querying is None or querying.closed or querying.loop is not asyncio.get_running_loop():
            querying = await self._begin_querying()
        answer = await self._begin(querying, payload, rows=False).answer()
        result: Result = answer.read(self._read_result)
        return result

    def stream(
        self: Handler[Parameters, list[Row], Any],
        *args: Parameters.args,
        **kwargs: Parameters.kwargs,
    ) -> Stream[Row]:
        """Return the rows of a generator as they come; closing the stream early stops the
        generator."""
        payload = self._write(args, kwargs)

        async def begin() -> AskedQuery:
            return self._begin(await self._begin_querying(), payload, rows=True)

        read_row = self.signature.read_row if self.signature.is_stream else read_anything
        return Stream(begin, self._read_rows, read_row)

    def _begin(self, querying: QueryGateway, payload: bytes, *, rows: bool) -> AskedQuery:
        wanted = self.conditions
        seconds = wanted.terms.timeout or querying.settings.timeout_seconds
        ask = Ask(
            namespace=self.id.namespace,
            queue=self.queue,
            payload=payload,
            deadline=querying.loop.time() + seconds,
            priority=wanted.priority,
            idempotent=self.idempotent,
            do_not_queue=self.do_not_queue,
            rows=rows,
            user=querying.client.user,
        )
        return querying.begin(ask)

    async def _begin_querying(self) -> QueryGateway:
        session = await self.app.session()
        self._querying = querying = session.client.querying
        return querying

    def _read_rows(self, body: bytes) -> list[Any]:
        if not self.signature.is_stream:
            return read_any_rows(body)
        rows: list[Any] = self._read_result(body)
        return rows

    def call(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> TaskCall[Parameters]:
        """Return arguments for `enqueue_many`; they are checked now, so that an error points
        here."""
        return TaskCall(self.signature, self._write(args, kwargs))

    def options(self, **options: Unpack[Options]) -> Handler[Parameters, Result, Called]:
        """Return the same handler with other options for its tasks and queries."""
        other: Handler[Parameters, Result, Called] = object.__new__(Handler)
        other.__dict__.update(self.__dict__)
        other.conditions = conditions(options, self.conditions)
        other.idempotent = is_idempotent(options, self.idempotent)
        other.do_not_queue = is_now_or_never(options, self.do_not_queue)
        other.require_worker = is_worker_required(options, self.require_worker)
        return other

    def task(self, id: str) -> Task[Result]:  # noqa: A002 - users' word
        """Return the handle of a task of this queue that was added earlier."""
        queue, partition, sequence = parse_id(self.id.namespace, id)
        if queue != self.queue:
            raise InvalidTaskId(
                f"{id!r:.120} is a task of the queue {queue!r}, not of {self.queue!r}."
            )
        return Task(self.app, queue, partition, sequence, self._read_result)

    def tasks(self, **filters: Unpack[TaskFilters]) -> AsyncIterator[TaskStatus]:
        """List the tasks of this queue; see `App.tasks`."""
        return each_task(self.listing(filters))

    async def change_tasks(
        self,
        action: TaskAction,
        *,
        dry_run: bool = False,
        reason: str = "",
        **filters: Unpack[TaskFilters],
    ) -> ChangedTasks:
        """Do something to all tasks of this queue that pass the filters; see `App.change_tasks`."""
        return await change_selected(
            self.app, self.id, action, filters, dry_run=dry_run, reason=reason
        )

    def listing(self, filters: TaskFilters) -> TaskListing:
        """Return the tasks of this queue that pass the filters, page by page."""
        return TaskListing(self.app, [self.queue], filters, has_handlers=True)

    def describe(self) -> bytes:
        """Return the shape of its parameters (`client/shapes.py`), as its workers announce it."""
        hidden = () if self.hidden is None else self.hidden.places
        names = self.signature.names
        return self.signature.describe(tuple(names[place] for place in hidden))

    @property
    def sync(self) -> SyncHandler[Parameters, Result]:
        """The same handler for synchronous code."""
        return SyncHandler(self)

    async def _check(self, adding: EnqueueBatches, payloads: list[bytes]) -> None:
        await adding.check(payloads, self.describe(), require_worker=self.require_worker)

    async def _begin_adding(self) -> EnqueueBatches:
        session = await self.app.session()
        self._adding = adding = session.adding(self.id, self.selection)
        return adding


class SyncHandler(Generic[Parameters, Result]):
    """A handler for synchronous code: every call blocks until it is done. Any thread may use it."""

    def __init__(self, handler: Handler[Parameters, Result, Any]) -> None:
        self._handler = handler
        self._app = handler.app

    def __repr__(self) -> str:
        return repr(self._handler).replace("Handler", "SyncHandler", 1)

    def enqueue(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> SyncTask[Result]:
        """See `Handler.enqueue`."""
        task = self._app.sync.run(lambda: self._handler.enqueue(*args, **kwargs))
        return SyncTask(self._app, task)

    def enqueue_many(self, calls: Iterable[TaskCall[Parameters]]) -> list[SyncTask[Result]]:
        """See `Handler.enqueue_many`."""
        listed = list(calls)  # in this thread: the iterable may be slow code of the caller
        tasks = self._app.sync.run(lambda: self._handler.enqueue_many(listed))
        return [SyncTask(self._app, task) for task in tasks]

    def query(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        """See `Handler.query`."""
        return self._app.sync.run(lambda: self._handler.query(*args, **kwargs))

    def stream(
        self: SyncHandler[Parameters, list[Row]],
        *args: Parameters.args,
        **kwargs: Parameters.kwargs,
    ) -> SyncStream[Row]:
        """See `Handler.stream`; close it if you leave early."""
        return SyncStream(self._handler.stream(*args, **kwargs), self._app.sync.run)

    def call(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> TaskCall[Parameters]:
        """See `Handler.call`."""
        return self._handler.call(*args, **kwargs)

    def options(self, **options: Unpack[Options]) -> SyncHandler[Parameters, Result]:
        """See `Handler.options`."""
        return SyncHandler(self._handler.options(**options))

    def task(self, id: str) -> SyncTask[Result]:  # noqa: A002 - users' word
        """See `Handler.task`."""
        return SyncTask(self._app, self._handler.task(id))

    def tasks(self, **filters: Unpack[TaskFilters]) -> Iterator[TaskStatus]:
        """See `Handler.tasks`."""
        return each_task_waiting(self._handler.listing(filters), self._app.sync.run)

    def change_tasks(
        self,
        action: TaskAction,
        *,
        dry_run: bool = False,
        reason: str = "",
        **filters: Unpack[TaskFilters],
    ) -> ChangedTasks:
        """See `App.change_tasks`."""
        return self._app.sync.run(
            lambda: self._handler.change_tasks(action, dry_run=dry_run, reason=reason, **filters)
        )


Anything = Handler[Any, Any, Any]
