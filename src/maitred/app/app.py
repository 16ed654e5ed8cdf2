"""An app: a namespace, its handlers, and the connection to the node that keeps their tasks.

    app = App("shop")

    @app.handler("thumbnails", retries=3, timeout=30)
    async def thumbnail(url: str, size: int) -> str: ...

    async with app:                                          # or not: it connects when first used
        task = await thumbnail.enqueue("https://...", size=128)
        print(await task.result(timeout=10))

    task = thumbnail.sync.enqueue("https://...", size=128)   # synchronous code, any thread
    print(task.result(timeout=10))

    app.task(task.id)                                        # a handle again, later or elsewhere
    print(await task.history())                              # what happened to it

    async for status in app.tasks(state="dead"): ...         # what failed, and why

    await thumbnail.query("https://...", size=128)           # now, by a worker that is free

`maitred worker shop:app` runs the handlers. Which node: the argument `node`, else the variable
MAITRED_URL, else the one on this machine. If neither the address nor an argument has credentials,
the variable MAITRED_TOKEN may hold an API token. Each event loop that uses an app has a connection
of its own; synchronous code shares one, on a loop in a thread that starts when it is first needed.
"""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Self, TypeVar, overload

from maitred.app.handler import Anything, Handler
from maitred.app.options import (
    Options,
    conditions,
    is_idempotent,
    is_now_or_never,
    is_worker_required,
)
from maitred.app.session import Session
from maitred.app.signature import Signature
from maitred.app.task import SyncTask, Task, parse_id
from maitred.app.task_actions import change_selected
from maitred.app.task_listing import TaskListing, each_task, each_task_waiting
from maitred.balancing import ALGORITHMS
from maitred.client.address import parse_address
from maitred.client.pending_client import PendingClient
from maitred.client.sync import Client
from maitred.errors import InvalidHandler, MaitredError, UnknownAlgorithm
from maitred.routing.names import TASKS, QueueId, check_name
from maitred.settings import PORT
from maitred.surroundings import Surroundings
from maitred.telemetry.start import app_tracing, program_tracing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
    from types import TracebackType
    from typing import Protocol, Unpack

    from maitred.app.task_listing import TaskFilters
    from maitred.app.task_views import TaskStatus
    from maitred.client.changed_tasks import ChangedTasks
    from maitred.client.client import AsyncClient
    from maitred.protocol.inspection import TaskAction
    from maitred.telemetry.tracing import Tracing

    class Decorating(Protocol):
        """The decorator that `App.handler` returns, typed by the kind of function."""

        @overload
        def __call__(
            self, function: Callable[Parameters, AsyncIterator[Row]]
        ) -> Handler[Parameters, list[Row], AsyncIterator[Row]]: ...

        @overload
        def __call__(
            self, function: Callable[Parameters, Iterator[Row]]
        ) -> Handler[Parameters, list[Row], Iterator[Row]]: ...

        @overload
        def __call__(
            self, function: Callable[Parameters, Coroutine[Any, Any, Result]]
        ) -> Handler[Parameters, Result, Coroutine[Any, Any, Result]]: ...

        @overload
        def __call__(
            self, function: Callable[Parameters, Result]
        ) -> Handler[Parameters, Result, Result]: ...


Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Row = TypeVar("Row")

DEFAULT_NODE: Final = f"maitred://127.0.0.1:{PORT}"
NODE_VARIABLE: Final = "MAITRED_URL"
TOKEN_VARIABLE: Final = "MAITRED_TOKEN"  # noqa: S105 - the variable's name, not a token
TELEMETRY_VARIABLE: Final = "MAITRED_TELEMETRY"


class App:
    """Handlers of one namespace. Create one at the top of a module."""

    def __init__(
        self,
        namespace: str,
        *,
        node: str | None = None,
        surroundings: Surroundings | None = None,
        tracing: bool | Tracing | None = None,
        **settings: Any,  # noqa: ANN401 - whatever `maitred.connect` takes
    ) -> None:
        """With `tracing`, OpenTelemetry (the extra `otel`) records the tasks and queries that the
        program begins, as the program has set it up. None: the variable MAITRED_TELEMETRY__TRACES
        decides, and in a worker what the worker does."""
        self.namespace = check_name("namespace", namespace)
        self.handlers: dict[str, Handler[Any, Any, Any]] = {}
        """Handlers by the name of their queue."""
        self.node = node
        self.sync: Final = SyncApp(self)
        self._settings = settings
        self._surroundings = surroundings
        self._tracing = tracing
        self._sessions: dict[asyncio.AbstractEventLoop, asyncio.Task[Session]] = {}
        # Wrong settings raise here, where they are written.
        PendingClient(node or DEFAULT_NODE, **settings)

    def __repr__(self) -> str:
        return f"<App {self.namespace!r}, {len(self.handlers)} handlers>"

    # Handlers

    def handler(
        self,
        queue: str,
        *,
        selection: str = "weighted",
        hide: Sequence[str] = (),
        **options: Unpack[Options],
    ) -> Decorating:
        """Have a function serve a queue. `options` apply to every task unless a call overrides
        them.

        `selection` is how partitions are picked, if the queue has several. `hide` names parameters
        whose values stay out of logs, of the texts of failures, and of all that operators see.
        """
        of = QueueId(self.namespace, queue, TASKS)
        wanted = conditions(options)
        idempotent = is_idempotent(options, base=False)
        do_not_queue = is_now_or_never(options, base=False)
        require_worker = is_worker_required(options, base=False)
        if selection not in ALGORITHMS:
            raise UnknownAlgorithm.named("selection algorithm", str(selection), ALGORITHMS)

        def decorate(function: Callable[..., Any]) -> Handler[Any, Any, Any]:
            other = self.handlers.get(queue)
            if other is not None:
                raise InvalidHandler(
                    f"The queue {queue!r} has a handler already: {other.signature.name}.",
                    remedy="Give each handler a queue of its own.",
                )
            made: Handler[Any, Any, Any] = Handler(
                self,
                of,
                self._signature(function),
                wanted,
                selection,
                idempotent=idempotent,
                do_not_queue=do_not_queue,
                require_worker=require_worker,
                hide=hide,
            )
            self.handlers[queue] = made
            return made

        return decorate

    def _signature(self, function: Callable[..., Any]) -> Signature:
        """Return the function's signature, which all queues that it serves share."""
        for made in self.handlers.values():
            if made.signature.function is function:
                return made.signature
        return Signature(function)

    def task(self, id: str) -> Task[Any]:  # noqa: A002 - users' word
        """Return the handle of a task that was added earlier; `handler.task` knows its type as
        well."""
        queue, partition, sequence = parse_id(self.namespace, id)
        known = self.handlers.get(queue)
        if known is not None:
            return known.task(id)
        return Task(self, queue, partition, sequence)

    def tasks(
        self, queue: str | Anything | None = None, **filters: Unpack[TaskFilters]
    ) -> AsyncIterator[TaskStatus]:
        """List the tasks of a queue, by default of all queues that the app has handlers for.

        They come by state, in the order `running`, `waiting`, `delayed`, `dead`, `ended`; running
        ones the longest first, delayed ones by their due times, ended ones the last first. The user
        needs the permission `read`, and `reveal` to see arguments and messages of errors and to
        search in them. A list is no snapshot: a task that changes its state meanwhile may be
        missed, or come twice. Raises `Unavailable` at the end if a partition did not answer.
        """
        return each_task(self.listing(queue, filters))

    async def change_tasks(
        self,
        action: TaskAction,
        queue: str | Anything,
        *,
        dry_run: bool = False,
        reason: str = "",
        **filters: Unpack[TaskFilters],
    ) -> ChangedTasks:
        """Do something to all tasks of a queue that pass the filters, which are those of `tasks`.

        `action` is `cancel`, `retry` or `drop` (dead letters), `run-now` (delayed tasks) or `again`
        (needs a state: `dead`, or one of those that are over). Without filters it is done to all
        tasks to which it applies. A dry run counts them in `matched`, and changes nothing. Tasks
        that begin, end or are added meanwhile are not meant. A cancelled call has changed a part,
        and can be repeated, but for `again`, which would add that part once more. The user needs
        the permission `operate`.
        """
        id_ = QueueId(self.namespace, queue if isinstance(queue, str) else queue.queue, TASKS)
        return await change_selected(self, id_, action, filters, dry_run=dry_run, reason=reason)

    def listing(self, queue: str | Anything | None, filters: TaskFilters) -> TaskListing:
        """Return the tasks that `tasks` lists, page by page."""
        if queue is None:
            return TaskListing(self, list(self.handlers), filters, has_handlers=True)
        name = queue if isinstance(queue, str) else queue.queue
        return TaskListing(self, [name], filters, has_handlers=name in self.handlers)

    # Connections

    async def session(self) -> Session:
        """Return the connection of the running event loop; the first call opens it."""
        loop = asyncio.get_running_loop()
        opening = self._sessions.get(loop)
        if opening is not None and opening.done():
            if not opening.cancelled() and opening.exception() is None:
                return opening.result()
            opening = None
        if opening is None:
            for other in list(self._sessions):
                if other.is_closed():
                    self._sessions.pop(other, None)
            opening = self._sessions[loop] = loop.create_task(self._open())
        return await asyncio.shield(opening)

    def prefer(self, **settings: Any) -> None:  # noqa: ANN401 - whatever `maitred.connect` takes
        """Use these connection settings from now on where the program has not set its own."""
        self._settings = settings | self._settings

    def trace_with(self, tracing: Tracing | None) -> None:
        """Record what the program begins from now on with this, if the program has not decided
        about tracing itself."""
        if self._tracing is None:
            self._tracing = tracing or False

    async def close(self) -> None:
        """Disconnect this event loop; the next use connects again."""
        opening = self._sessions.pop(asyncio.get_running_loop(), None)
        if opening is not None:
            with suppress(MaitredError):  # the connection was never opened
                await (await opening).close()

    async def __aenter__(self) -> Self:
        await self.session()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def url(self) -> str:
        """Address of the node: the argument `node`, else MAITRED_URL, else this machine."""
        return self.node or os.environ.get(NODE_VARIABLE) or DEFAULT_NODE

    async def _open(self) -> Session:
        settings = self._settings
        if not (settings.keys() & {"token", "token_file"}) and parse_address(self.url).is_anonymous:
            settings = {"token": os.environ.get(TOKEN_VARIABLE) or None, **settings}
        if self._surroundings is None:  # not before: programs fork, and set OpenTelemetry up
            self._surroundings = Surroundings.real(_tracing(self._tracing))
        around = self._surroundings
        client = await PendingClient(self.url, surroundings=around, **settings)
        return Session(client, around)


class SyncApp:
    """An app for synchronous code; `with app.sync:` disconnects at the end."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._process = 0
        """Process in which the client's thread runs. A forked process has the object but not the
        thread, and needs a client of its own."""

    def task(self, id: str) -> SyncTask[Any]:  # noqa: A002 - users' word
        """See `App.task`."""
        return SyncTask(self._app, self._app.task(id))

    def tasks(
        self, queue: str | Anything | None = None, **filters: Unpack[TaskFilters]
    ) -> Iterator[TaskStatus]:
        """See `App.tasks`."""
        return each_task_waiting(self._app.listing(queue, filters), self.run)

    def change_tasks(
        self,
        action: TaskAction,
        queue: str | Anything,
        *,
        dry_run: bool = False,
        reason: str = "",
        **filters: Unpack[TaskFilters],
    ) -> ChangedTasks:
        """See `App.change_tasks`."""
        return self.run(
            lambda: self._app.change_tasks(action, queue, dry_run=dry_run, reason=reason, **filters)
        )

    def run(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Run this on the app's own event loop, and wait for its result."""
        with self._lock:
            client = self._client if self._process == os.getpid() else None
            if client is None:
                client = self._client = Client(self._open)
                self._process = os.getpid()
        return client.call(lambda _: work())

    def close(self) -> None:
        """Disconnect; the next use connects again."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None and self._process == os.getpid():
            client.call(lambda _: self._app.close())
            client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def _open(self) -> AsyncClient:
        return (await self._app.session()).client


def _tracing(wanted: bool | Tracing | None) -> Tracing | None:
    if wanted is None:
        if not any(name.startswith(TELEMETRY_VARIABLE) for name in os.environ):
            return None
        from maitred.config import telemetry_settings

        return app_tracing(telemetry_settings(os.environ))
    if isinstance(wanted, bool):
        return program_tracing() if wanted else None
    return wanted
