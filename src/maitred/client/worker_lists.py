"""Lists the workers of many queues: asks every shard of every node, and joins the answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

from maitred.client.statistics import answers_of
from maitred.protocol.worker_overview import (
    TASKS_MAX,
    ListWorkers,
    ShowWorkerTasks,
    WorkersListed,
    WorkerTask,
    WorkerTasksShown,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maitred.client.requester import ShardRequester
    from maitred.client.statistics import Unreachable
    from maitred.protocol.queries import WorkerRow

WorkerPlace = tuple[str, bytes]
"""Name and session of a worker, the order of lists."""

BEGINNING: WorkerPlace = ("", b"")


class ServingWorkerRow(NamedTuple):
    """A worker, with those of its queues that the caller may read."""

    row: WorkerRow
    """As the root tells it that heard from the worker last."""
    queues: list[tuple[str, str]]
    """Namespace and name of some of them."""
    queue_count: int

    @property
    def place(self) -> WorkerPlace:
        """The place of the worker in a list."""
        return self.row.worker, self.row.session


class WorkerPage(NamedTuple):
    """Some workers, and where the list goes on."""

    workers: list[ServingWorkerRow]
    after: WorkerPlace | None
    """None: the list has ended."""
    unreachable: list[Unreachable]


async def list_workers(
    client: ShardRequester,
    *,
    namespace: str = "",
    queue: str = "",
    match: str = "",
    after: WorkerPlace = BEGINNING,
    most: int = 100,
    within: Sequence[str] | None = None,
    timeout: float | None = None,  # noqa: ASYNC109 - it travels with each request
) -> WorkerPage:
    """Return the next workers by name and session. `within` are the namespaces that the caller of a
    gateway may read; for other clients the node fills it in. Raises the first error if no shard
    answers."""
    allowed = None if within is None else list(within)
    outcomes = await client.ask_shards(
        lambda _, shard: ListWorkers(shard, 0, namespace, queue, match, after, most, allowed),
        timeout,
    )
    answers, silent = answers_of(outcomes)
    listed = [cast("WorkersListed", one.answer) for one in answers]
    found: dict[WorkerPlace, ServingWorkerRow] = {}
    for answer in listed:
        for one in answer.workers:
            place = (one.row.worker, one.row.session)
            before = found.get(place)
            if before is None:
                found[place] = ServingWorkerRow(one.row, list(one.queues), one.queue_count)
                continue
            row = min(one.row, before.row, key=lambda row: row.heard_seconds)
            queues = sorted({*before.queues, *one.queues})
            found[place] = ServingWorkerRow(row, queues, before.queue_count + one.queue_count)
    # Behind the last worker of a shard that has more, workers may be missing.
    ends = [
        (last.worker, last.session)
        for answer in listed
        if answer.more
        for last in [answer.workers[-1].row]
    ]
    end = min(ends, default=None)
    places = sorted(place for place in found if end is None or place <= end)
    page = places[:most]
    has_more = end is not None or len(places) > len(page)
    return WorkerPage(
        [found[place] for place in page], page[-1] if has_more and page else None, silent
    )


async def worker_tasks(
    client: ShardRequester,
    sessions: Sequence[bytes],
    *,
    namespace: str = "",
    within: Sequence[str] | None = None,
    timeout: float | None = None,  # noqa: ASYNC109 - it travels with each request
) -> tuple[dict[bytes, list[WorkerTask]], list[Unreachable]]:
    """Return the tasks that these workers run, by session, the longest-running first; and the
    shards that did not answer."""
    if not sessions:
        return {}, []
    allowed = None if within is None else list(within)
    outcomes = await client.ask_shards(
        lambda _, shard: ShowWorkerTasks(shard, 0, list(sessions), namespace, allowed), timeout
    )
    answers, silent = answers_of(outcomes)
    found: dict[bytes, list[WorkerTask]] = {}
    for one in answers:
        for session, tasks in cast("WorkerTasksShown", one.answer).tasks.items():
            found.setdefault(session, []).extend(tasks)
    for session, tasks in found.items():
        found[session] = sorted(tasks, key=lambda task: task.since)[:TASKS_MAX]
    return found, silent
