"""Adding tasks, many at once.

A message costs some ten microseconds at each end, a task in it less than one. So the tasks that are
added in one turn of the loop under the same conditions go out as one message, and each producer
waits for its own part of the answer. No task waits for others to come: the batch ends with the
turn.

A small batch goes to one partition, because splitting it would only make more messages; a large
one is spread over all partitions that can be written. A new client does not know how many there
are: it sends to partition 0, and if the queue has more, the node adds nothing and answers with the
counts. The client then cuts the same batch anew, by those counts.

Adding is not repeatable: if the connection is lost before the answer came, the client cannot know
whether the tasks were added, and each producer is told so.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from maitred.errors import (
    NOTHING,
    UNKNOWN,
    MaitredError,
    OutcomeUnknown,
    PayloadTooLarge,
    ProtocolViolation,
    Unavailable,
)
from maitred.matching.records import Terms
from maitred.protocol.tasks import TASKS_MAX, Add, Added

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from maitred.client.queues import QueueView
    from maitred.client.requester import Requester
    from maitred.client.signatures import SignatureLookup
    from maitred.protocol.messages import AnyAnswer
    from maitred.telemetry.tracing import OpenSpan, Tracing

SPREAD_TASKS: Final = 32
"""Tasks of one message, before a batch is spread over a further partition."""

PIECE_BYTES: Final = 2**20
"""Payloads of one message, together, unless a single one is larger. Larger messages save nothing
more, and hold up those behind them."""

PIECE_OVERHEAD_BYTES: Final = 4096
"""For names, terms, and what is around the payloads; each of those has five bytes of its own."""

PIECES_UNDER_WAY: Final = 8
"""Messages of one `add_many` that may be unanswered at a time."""

CORRECTIONS_MAX: Final = 8
"""How often in a row a partition may turn out to take no more tasks. Each time newer counts come
with the answer, so more than one is rare already."""


class Conditions(Struct, frozen=True, cache_hash=True, gc=False):
    """What a producer wants for a task besides its payload; tasks that share them may share a
    message."""

    priority: int = 2
    delay: float = 0.0
    expires: float = 0.0
    terms: Terms = Terms()


class EnqueuedTask(NamedTuple):
    """A task that was added: its partition, its number there, and its encoded result if it is done
    already."""

    partition: int
    sequence: int
    result: bytes | None = None


_new_task: Final = tuple.__new__
"""Makes an `EnqueuedTask` of its fields: what calling the class does, without Python code for each
task."""


async def added_within(
    span: OpenSpan, add: Callable[[], Awaitable[EnqueuedTask]], queue: str
) -> EnqueuedTask:
    """Add a task, wait for it, and end the span of that; `queue` is `namespace/queue`."""
    try:
        added = await add()
    except BaseException as problem:
        span.end(problem)
        raise
    span.end(task=f"{queue}/{added.partition}/{added.sequence}" if span.trace_id else "")
    return added


class _Batch:
    """Tasks that were added in this turn of the loop under the same conditions."""

    __slots__ = ("futures", "payloads", "traces")

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.traces: list[bytes] | None = None
        """Their trace contexts; None while none of them belongs to a trace."""
        self.futures: list[asyncio.Future[EnqueuedTask]] = []


class EnqueueBatches:
    """Batches this client's enqueues to one queue."""

    __slots__ = (
        "_batches",
        "_client",
        "_loop",
        "_signatures",
        "_user",
        "loop",
        "most_bytes",
        "piece_bytes",
        "tracing",
        "unchecked_until",
        "view",
    )

    def __init__(
        self,
        client: Requester,
        view: QueueView,
        signatures: SignatureLookup,
        user: str = "",
        tracing: Tracing | None = None,
    ) -> None:
        self._client = client
        self.tracing = tracing
        """Records the spans of producers; None: the program does not trace."""
        self._signatures = signatures
        self.unchecked_until = -inf
        """The loop's time until which arguments that fit the caller's own handler are added without
        asking what the queue's handlers take."""
        self._user = user
        """The user for whom a gateway adds tasks. The node knows a client's user by its
        connection."""
        self.view = view
        self._loop = asyncio.get_running_loop()
        self.loop: asyncio.AbstractEventLoop | None = self._loop
        """None after `close`: a producer compares it with its own loop, and then asks the session
        for other batches."""
        self._batches: dict[Conditions, _Batch] = {}
        self.most_bytes = 0
        self.piece_bytes = PIECE_BYTES
        self.look_at_limits()

    def look_at_limits(self) -> None:
        """Take over the limits of the strictest node: partitions may move to any of them."""
        known = [node for node in self._client.nodes() if node.node is not None]
        self.most_bytes = min((node.payload_bytes for node in known), default=0)
        frame_bytes = min((node.frame_bytes for node in known), default=PIECE_BYTES)
        self.piece_bytes = max(1, min(PIECE_BYTES, frame_bytes // 2 - PIECE_OVERHEAD_BYTES))

    async def check(
        self,
        payloads: Sequence[bytes],
        signature: bytes | None = None,
        *,
        require_worker: bool = False,
    ) -> None:
        """Raise `NoHandlerFits`, `NoWorker` or `UnknownQueue` for tasks that are not to be added;
        see `SignatureLookup.check`."""
        self.unchecked_until = await self._signatures.check(
            self.view.id, payloads, signature, require_worker=require_worker
        )

    def add(
        self, conditions: Conditions, payload: bytes, trace: bytes = b""
    ) -> asyncio.Future[EnqueuedTask]:
        """Add one task, with its trace context; the future has it when it is durable."""
        if len(payload) > self.most_bytes:
            self._check_size(payload)
        batch = self._batches.get(conditions)
        if batch is None:
            if not self._batches:
                self._loop.call_soon(self._flush)
            batch = self._batches[conditions] = _Batch()
        future: asyncio.Future[EnqueuedTask] = self._loop.create_future()
        if trace or batch.traces is not None:
            if batch.traces is None:
                batch.traces = [b""] * len(batch.payloads)
            batch.traces.append(trace)
        batch.payloads.append(payload)
        batch.futures.append(future)
        return future

    async def add_many(
        self, conditions: Conditions, payloads: Sequence[bytes], trace: bytes = b""
    ) -> list[EnqueuedTask]:
        """Add all these tasks, which have the same trace context. If one message fails, the tasks
        of the others are added all the same: the error then says that the outcome is unknown, and
        how many were added."""
        if not payloads:
            return []
        if max(map(len, payloads)) > self.most_bytes:
            self._check_size(max(payloads, key=len))
        under_way = asyncio.Semaphore(PIECES_UNDER_WAY)

        async def send(part: list[bytes], corrections: int) -> list[EnqueuedTask]:
            async with under_way:
                message = self._message(conditions, part, trace)
                tasks = self._added(message, await self._client.request(message))
            return tasks or await spread(part, self._corrected(corrections))

        async def spread(batch: Sequence[bytes], corrections: int) -> list[EnqueuedTask]:
            pieces = [list(batch[piece]) for piece in self._pieces(batch)]
            found = await asyncio.gather(
                *(send(piece, corrections) for piece in pieces), return_exceptions=True
            )
            added: list[EnqueuedTask] = []
            failed: list[BaseException] = []
            for one in found:
                if isinstance(one, BaseException):
                    failed.append(one)
                else:
                    added += one
            if failed:
                raise _for_the_batch(failed, len(added), len(batch))
            return added

        return await spread(payloads, 0)

    def close(self) -> None:
        """Let producers add nothing more here; tasks that were added before are still sent."""
        self.loop = None

    def _flush(self) -> None:
        batches, self._batches = self._batches, {}
        for conditions, batch in batches.items():
            self._spread(conditions, batch.payloads, batch.futures, batch.traces or b"", 0)

    def _spread(
        self,
        conditions: Conditions,
        payloads: list[bytes],
        futures: list[asyncio.Future[EnqueuedTask]],
        traces: bytes | list[bytes],
        corrections: int,
    ) -> None:
        for piece in self._pieces(payloads):
            these = traces[piece] if isinstance(traces, list) else traces
            self._send(conditions, payloads[piece], futures[piece], these, corrections)

    def _send(
        self,
        conditions: Conditions,
        payloads: list[bytes],
        futures: list[asyncio.Future[EnqueuedTask]],
        traces: bytes | list[bytes],
        corrections: int,
    ) -> None:
        if isinstance(traces, list) and traces.count(traces[0]) == len(traces):
            traces = traces[0]
        message = self._message(conditions, payloads, traces)

        def told(answer: AnyAnswer | MaitredError) -> None:
            try:
                tasks = self._added(message, answer)
                if not tasks:
                    corrected = self._corrected(corrections)
                    self._spread(conditions, payloads, futures, traces, corrected)
            except MaitredError as problem:
                for future in futures:
                    if not future.done():
                        future.set_exception(_another(problem))
                return
            for future, task in zip(futures, tasks, strict=False):
                if not future.done():
                    future.set_result(task)

        self._client.request_told(message, told)

    def _message(
        self, conditions: Conditions, payloads: list[bytes], traces: bytes | list[bytes]
    ) -> Add:
        view = self.view
        return Add(
            *view.id,
            view.to_write(self._loop.time()),
            0,
            view.counts.version,
            payloads,
            conditions.priority,
            conditions.delay,
            conditions.expires,
            conditions.terms,
            self._user,
            traces=traces,
        )

    def _added(self, message: Add, answer: AnyAnswer | MaitredError) -> list[EnqueuedTask]:
        """Return the tasks that a message added, in the order of its payloads: none if the
        partition accepts no tasks any more. The view has newer counts then, by which to choose
        again."""
        if isinstance(answer, MaitredError):
            raise answer
        if not isinstance(answer, Added):
            raise ProtocolViolation("The answer to ADD is another one's.")
        self.view.learn(answer.counts)
        first, count, partition = answer.first, len(message.payloads), message.partition
        if first < 0:
            return []
        results = answer.results or [None] * count
        if len(results) != count:
            raise ProtocolViolation(f"The answer to ADD has {len(results)} results of {count}.")
        return [
            _new_task(EnqueuedTask, (partition, sequence, result))
            for sequence, result in enumerate(results, first)
        ]

    def _corrected(self, corrections: int) -> int:
        """Count one more correction of the same tasks; raises `Unavailable` after the last."""
        if corrections + 1 < CORRECTIONS_MAX:
            return corrections + 1
        raise Unavailable(
            f"{CORRECTIONS_MAX} partitions of {self.view.id.queue!r} in turn took no more tasks. "
            "Nothing was done.",
            remedy="Try again: its partitions are being changed.",
        )

    def _pieces(self, payloads: Sequence[bytes]) -> Iterator[slice]:
        """Cut a batch into messages: by number of tasks, by bytes, and over the partitions."""
        count = len(payloads)
        write = self.view.counts.write
        most = TASKS_MAX
        if write > 1 and count > SPREAD_TASKS:
            most = min(most, max(SPREAD_TASKS, -(-count // write)))
        if count <= most and sum(map(len, payloads)) <= self.piece_bytes:
            yield slice(0, count)
            return
        start = size = 0
        for at, payload in enumerate(payloads):
            size += len(payload)
            if at > start and (size > self.piece_bytes or at - start >= most):
                yield slice(start, at)
                start, size = at, len(payload)
        yield slice(start, count)

    def _check_size(self, payload: bytes) -> None:
        self.look_at_limits()  # they may be higher by now
        if len(payload) > self.most_bytes:
            raise PayloadTooLarge(
                f"Arguments of {len(payload):,} bytes are more than the {self.most_bytes:,} that "
                "the node allows for a task.",
                remedy="Put them into a store and send a reference, or raise limits.payload_bytes.",
            )


def _for_the_batch(failed: list[BaseException], added: int, tasks: int) -> BaseException:
    """Return what is raised for a batch of several messages: an error that says that nothing was
    done only if that is true of all of them."""
    first = failed[0]
    for problem in failed:
        if not isinstance(problem, MaitredError):
            return problem
    unknown = next((one for one in failed if getattr(one, "outcome", UNKNOWN) is not NOTHING), None)
    if not added:
        return unknown or first
    return OutcomeUnknown(
        f"Of {tasks:,} tasks {added:,} were added, and the others "
        f"{'were not' if unknown is None else 'may have been'}: {unknown or first}"
    )


def _another(problem: MaitredError) -> MaitredError:
    """Copy the error: one that is raised in many tasks would gather the tracebacks of all."""
    kind = type(problem)
    made = kind.__new__(kind)
    made.args = problem.args
    made.__dict__.update(problem.__dict__)
    return made
