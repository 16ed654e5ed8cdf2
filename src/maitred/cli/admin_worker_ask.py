"""Asking the roots of queues which workers serve them.

A worker attends at the root of each of its queues, so it is in as many answers as it has queues;
here they are joined by the worker's session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from maitred.cli.admin_ask import with_suggestion
from maitred.cli.admin_list import all_queues
from maitred.cli.admin_names import TASKS, label
from maitred.client.answers import ROOT, Silent, each
from maitred.errors import InvalidArgument, UnknownQueue, UnknownWorker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maitred.client.client import AsyncClient
    from maitred.protocol.queries import WorkerRow, WorkersFound
    from maitred.routing.names import QueueId

SESSION_LETTERS = 8
"""Letters of a session that are printed; enough to tell workers of one name apart."""


class ServingWorker(NamedTuple):
    """A worker, and the queues that it serves."""

    row: WorkerRow
    """As reported by the queue that heard from it last."""
    queues: tuple[QueueId, ...]

    @property
    def session(self) -> str:
        return self.row.session.hex()

    def is_called(self, name: str) -> bool:
        """Whether this is the worker's name, or the first letters of its session."""
        return self.row.worker == name or (
            len(name) >= SESSION_LETTERS and self.session.startswith(name.lower())
        )


class PresentWorkers(NamedTuple):
    """The workers that serve some queues, and the queues whose root did not answer."""

    workers: list[ServingWorker]
    silent: dict[str, Silent]


async def ask(
    client: AsyncClient,
    queue: QueueId,
    action: Literal["list", "offline", "online"] = "list",
    worker: str = "",
) -> list[WorkerRow]:
    """Ask one queue's root for its workers, or give one of them an order."""
    from maitred.protocol.queries import Workers

    answer = await client.request(Workers(*queue, ROOT, 0, action, worker))
    return cast("WorkersFound", answer).workers


async def present(
    client: AsyncClient, queues: Sequence[QueueId], namespace: str | None = None
) -> PresentWorkers:
    """Return the workers of these queues; if none is named, of all queues of the namespace, or of
    all."""
    from msgspec.structs import replace

    named = list(queues)
    if not named:
        known, _, _ = await all_queues(client)
        named = sorted(
            (one for one in known if one.type == TASKS and namespace in (None, one.namespace)),
            key=label,
        )
    answers = await each(named, lambda queue: ask(client, queue))
    silent: dict[str, Silent] = {}
    for queue, problem in answers.silent.items():
        if not isinstance(problem.error, UnknownQueue):
            silent[label(queue)] = problem
        elif queues:  # otherwise it was in the store a moment ago
            silent[label(queue)] = Silent(await with_suggestion(client, queue, problem.error))
    if named and len(silent) == len(named):
        raise next(iter(silent.values())).error
    found: dict[bytes, ServingWorker] = {}
    for queue, rows in answers.found.items():
        for row in rows:
            before = found.get(row.session, ServingWorker(row, ()))
            latest = min(row, before.row, key=lambda one: one.heard_seconds)
            # A worker is as good as at the queue where it fails the most.
            latest = replace(latest, good=min(row.good, before.row.good))
            found[row.session] = ServingWorker(latest, (*before.queues, queue))
    workers = sorted(found.values(), key=lambda one: (one.row.worker, one.session))
    return PresentWorkers(workers, silent)


def workers_named(there: PresentWorkers, name: str) -> list[ServingWorker]:
    """Return the workers of this name, which several processes may share; raise if none has it."""
    if not name.strip():
        raise InvalidArgument(
            "A worker's name is empty.", remedy="`maitred admin worker list` shows them."
        )
    found = [one for one in there.workers if one.is_called(name)]
    if found:
        return found
    if not there.workers:
        raise UnknownWorker(
            f"There is no worker {name!r}, nor any other.",
            remedy="`maitred worker MODULE:APP` starts one.",
        )
    from difflib import get_close_matches

    names = sorted({one.row.worker for one in there.workers})
    near = get_close_matches(name, names, n=1)
    raise UnknownWorker(
        f"There is no worker {name!r}.",
        remedy=f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(names[:10])}.",
    )
