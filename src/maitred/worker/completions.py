"""Telling the node what ended, until it has heard.

The ends of one turn of the loop go out as one message to each partition. Telling twice is the same
as telling once, so what is not answered is told again, for as long as it takes: across a lost
connection, and across a restart of the node.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING, Final, cast

from maitred.client.enqueue_batches import PIECE_BYTES
from maitred.errors import NO, Closed, InvalidProof, MaitredError, UnknownQueue
from maitred.protocol.tasks import RETURNED, TASKS_MAX, Finish

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maitred.protocol.messages import AnyAnswer
    from maitred.protocol.tasks import End, Finished
    from maitred.worker.context import WorkerContext
    from maitred.worker.execution import Origin

SLOW_SECONDS: Final = 0.5
"""Only a report that is unanswered for this long can concern a task that is given to the worker
again: another node takes longer to become the owner of its partition."""


class CompletionReports:
    """Reports the ends of this worker's tasks to their partitions, again and again until each is
    answered."""

    def __init__(self, context: WorkerContext) -> None:
        self._client = context.client
        self._session = context.session
        self._seconds = context.settings.finish_seconds
        self._outage = context.outage
        self._failures = context.failures
        self._statistics = context.statistics
        self._log = context.log
        self._loop = asyncio.get_running_loop()
        self._gathered: list[Origin] = []
        """Those with ends that were not sent yet."""
        self._messages = 0
        """How many were sent."""
        self._unanswered = 0
        self._settled: asyncio.Future[None] | None = None
        self._stopped = False

    def add(self, origin: Origin, end: End) -> None:
        """Report this end together with the others of this turn of the loop."""
        if not origin.ends:
            if not self._gathered:
                self._loop.call_soon(self._flush)
            self._gathered.append(origin)
        origin.ends.append(end)

    def has_ended(self, origin: Origin, key: tuple[int, int], now: float) -> bool:
        """Return whether the node has not confirmed the end of this attempt, which it has given to
        this worker once more: the partition's owner was replaced before it could record the end.

        The end is then reported again: the first report may reach the previous owner, which takes
        note of it in vain. An attempt that the worker returned has not ended, and may begin.
        """
        for sent_at, ends in origin.sending.values():
            if sent_at > now - SLOW_SECONDS:
                return False
            for end in ends:
                if (end.sequence, end.attempt) == key and end.how != RETURNED:
                    self.add(origin, end)
                    return True
        return False

    @property
    def unanswered(self) -> int:
        """Messages that the node has not answered, or that were not sent yet."""
        return self._unanswered + len(self._gathered)

    async def settled(self) -> None:
        """Wait until the node has answered for all ends."""
        while self.unanswered:
            self._flush()
            if self._unanswered:
                self._settled = self._loop.create_future()
                await self._settled

    def stop(self) -> None:
        """Report nothing more."""
        self._stopped = True
        self._failures.unanswered()

    def _flush(self) -> None:
        gathered, self._gathered = self._gathered, []
        now = self._loop.time()
        for origin in gathered:
            ends, origin.ends = origin.ends, []
            for piece in pieces(ends):
                self._messages += 1
                self._unanswered += 1
                if not origin.sending:
                    origin.unanswered_since = now
                origin.sending[self._messages] = (now, piece)
                self._send(origin, self._messages)

    def _send(self, origin: Origin, number: int) -> None:
        if self._stopped:
            return
        _, ends = origin.sending[number]
        message = Finish(*origin.queue, origin.partition, 0, self._session, ends)

        def told(answer: AnyAnswer | MaitredError) -> None:
            if isinstance(answer, MaitredError) and answer.retry is not NO:
                self._failures.answered(origin, ends, None)
                seconds = self._outage.failed(origin.queue.queue, origin.partition, answer)
                self._loop.call_later(seconds, self._send, origin, number)
                return
            self._answered(origin, ends, answer)
            sending = origin.sending
            del sending[number]
            origin.unanswered_since = next(iter(sending.values()))[0] if sending else inf
            self._unanswered -= 1
            if self._settled is not None and not self._unanswered and not self._settled.done():
                self._settled.set_result(None)

        self._client.request_told(message, told, self._seconds, patient=True)

    def _answered(
        self, origin: Origin, reported: list[End], answer: AnyAnswer | MaitredError
    ) -> None:
        statistics = self._statistics
        ends = len(reported)
        finished = None if isinstance(answer, MaitredError) else cast("Finished", answer)
        self._failures.answered(origin, reported, finished)
        if isinstance(answer, UnknownQueue):
            # The queue was deleted, or forgotten since all its tasks were over: these as well.
            statistics.late += ends
        elif isinstance(answer, Closed):  # the worker stopped, and logs what it could not report
            statistics.unreported += ends
        elif isinstance(answer, MaitredError):
            statistics.unreported += ends
            self._log.error("the node refuses the end of tasks", tasks=ends, error=answer)
        elif finished is not None:
            queue = origin.queue.queue
            self._outage.worked(queue, origin.partition)
            if finished.late:
                statistics.late += len(finished.late)
                self._failures.late(origin, len(finished.late))
            if finished.refused:
                statistics.unreported += len(finished.refused)
                self._log.error(
                    "the node refuses the end of tasks",
                    queue=queue,
                    tasks=len(finished.refused),
                    error=InvalidProof(
                        "The node says that it did not give these tasks to this worker.",
                        remedy="Its signing key, or this worker's user, may have changed.",
                    ),
                )


def pieces(ends: list[End]) -> Iterator[list[End]]:
    """Cut into messages of a size that every node takes."""
    if len(ends) <= TASKS_MAX and sum([len(end.body) for end in ends]) <= PIECE_BYTES:
        yield ends
        return
    start = size = 0
    for at, end in enumerate(ends):
        size += len(end.body)
        if at > start and (size > PIECE_BYTES or at - start >= TASKS_MAX):
            yield ends[start:at]
            start, size = at, len(end.body)
    yield ends[start:]
