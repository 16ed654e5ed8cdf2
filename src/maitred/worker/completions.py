"""Telling the node what ended, until it has heard.

The ends of one turn of the loop go out as one message to each partition. Telling twice is the same
as telling once, so what is not answered is told again, for as long as it takes: across a lost
connection, and across a restart of the node.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from maitred.client.enqueue_batches import PIECE_BYTES
from maitred.errors import NO, InvalidProof, MaitredError, UnknownQueue
from maitred.protocol.tasks import TASKS_MAX, Finish, Finished

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maitred.client.client import AsyncClient
    from maitred.logs import Logger
    from maitred.protocol.tasks import End
    from maitred.worker.origin import Origin
    from maitred.worker.outage import Outage
    from maitred.worker.statistics import WorkerStatistics


class CompletionReports:
    """Reports the ends of this worker's tasks to their partitions, again and again until each is
    answered."""

    def __init__(
        self,
        client: AsyncClient,
        session: bytes,
        seconds: float,
        outage: Outage,
        statistics: WorkerStatistics,
        log: Logger,
    ) -> None:
        self._client = client
        self._session = session
        self._seconds = seconds
        self._outage = outage
        self._statistics = statistics
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._gathered: list[Origin] = []
        """Those with ends that were not sent yet."""
        self._sending: dict[asyncio.Task[None], None] = {}
        self._messages = 0
        """How many were sent."""

    def add(self, origin: Origin, end: End) -> None:
        """Tell it with the others of this turn."""
        if not origin.ends:
            if not self._gathered:
                self._loop.call_soon(self._flush)
            self._gathered.append(origin)
        origin.ends.append(end)

    @property
    def unanswered(self) -> int:
        """Messages that the node has not answered, or that were not sent yet."""
        return len(self._sending) + len(self._gathered)

    async def settled(self) -> None:
        """Wait until the node has answered for all ends."""
        while self.unanswered:
            self._flush()
            await asyncio.wait(self._sending)

    def stop(self) -> None:
        """Give up."""
        for sending in list(self._sending):
            sending.cancel()

    def _flush(self) -> None:
        gathered, self._gathered = self._gathered, []
        for origin in gathered:
            ends = origin.ends
            for piece in pieces(ends):
                self._messages += 1
                origin.sending[self._messages] = piece
                sending = self._loop.create_task(self._settle(origin, self._messages, piece))
                self._sending[sending] = None
                sending.add_done_callback(self._sending.pop)
            origin.ends = []

    async def _settle(self, origin: Origin, number: int, ends: list[End]) -> None:
        try:
            await self._send(origin, ends)
        finally:
            origin.sending.pop(number, None)

    async def _send(self, origin: Origin, ends: list[End]) -> None:
        queue, partition = origin.queue.queue, origin.partition
        while True:
            message = Finish(*origin.queue, partition, 0, self._session, ends)
            try:
                answer = cast(
                    "Finished", await self._client.request(message, self._seconds, patient=True)
                )
            except UnknownQueue:
                # It was deleted, or forgotten since all its tasks were over: these as well.
                self._statistics.late += len(ends)
                return
            except MaitredError as problem:
                if problem.retry is NO:
                    self._statistics.unreported += len(ends)
                    self._log.error(
                        "the node refuses the end of tasks", tasks=len(ends), error=problem
                    )
                    return
                await asyncio.sleep(self._outage.failed(queue, partition, problem))
            else:
                self._outage.worked(queue, partition)
                self._statistics.late += len(answer.late)
                if answer.refused:
                    self._statistics.unreported += len(answer.refused)
                    self._log.error(
                        "the node refuses the end of tasks",
                        queue=queue,
                        tasks=len(answer.refused),
                        error=InvalidProof(
                            "The node says that it did not give these tasks to this worker.",
                            remedy="Its signing key, or this worker's user, may have changed.",
                        ),
                    )
                return


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
