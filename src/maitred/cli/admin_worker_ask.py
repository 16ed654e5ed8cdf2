"""Asking the roots of queues who serves them.

A worker attends at the root of each of its queues, so it is in as many answers as it has queues;
here it is one again, by its session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from maitred.cli.admin_ask import ROOT, Silent, each, nearest
from maitred.cli.admin_names import TASKS, label
from maitred.errors import InvalidArgument, UnknownQueue, UnknownWorker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maitred.client.client import AsyncClient
    from maitred.protocol.queries import WorkerRow, WorkersFound
    from maitred.protocol.tasks import QueuesFound
    from maitred.routing.names import QueueId

SESSION_LETTERS = 8
"""Of a session, as it is printed; enough to tell workers of one name apart."""


class ServingWorker(NamedTuple):
    """A worker, and where it serves."""

    row: WorkerRow
    """As the queue says that heard of it last."""
    queues: tuple[QueueId, ...]

    @property
    def session(self) -> str:
        return self.row.session.hex()

    def is_called(self, name: str) -> bool:
        """By its name, or by the first letters of its session."""
        return self.row.worker == name or (
            len(name) >= SESSION_LETTERS and self.session.startswith(name.lower())
        )


class Present(NamedTuple):
    """The workers that serve some queues, and the queues whose root did not answer."""

    workers: list[ServingWorker]
    silent: dict[str, Silent]


async def ask(
    client: AsyncClient,
    queue: QueueId,
    action: Literal["list", "offline", "online"] = "list",
    worker: str = "",
) -> list[WorkerRow]:
    """One queue's root."""
    from maitred.protocol.queries import Workers

    answer = await client.request(Workers(*queue, ROOT, 0, action, worker))
    return cast("WorkersFound", answer).workers


async def present(client: AsyncClient, queues: Sequence[QueueId]) -> Present:
    """The workers of these queues; of all, if none is named."""
    from msgspec.structs import replace

    named = list(queues)
    if not named:
        named = await _all_queues(client)
    answers = await each(named, lambda queue: ask(client, queue))
    found: dict[bytes, ServingWorker] = {}
    silent: dict[str, Silent] = {}
    for queue, answer in zip(named, answers, strict=True):
        if isinstance(answer, Silent):
            if isinstance(answer.error, UnknownQueue):
                if not queues:
                    continue  # it was in the store a moment ago
                answer = Silent(await nearest(client, queue, answer.error))  # noqa: PLW2901
            silent[label(queue)] = answer
            continue
        for row in answer:
            known = found.get(row.session)
            freshest = (
                row if known is None else min(row, known.row, key=lambda one: one.heard_seconds)
            )
            if known is not None:
                # What fails is one of its queues, and that is what people look for.
                freshest = replace(freshest, good=min(row.good, known.row.good))
            found[row.session] = ServingWorker(freshest, (*(known.queues if known else ()), queue))
    if named and len(silent) == len(named):
        raise next(iter(silent.values())).error
    workers = sorted(found.values(), key=lambda one: (one.row.worker, one.session))
    return Present(workers, silent)


async def _all_queues(client: AsyncClient) -> list[QueueId]:
    """Of every node: they may share a store, or have one each."""
    from maitred.protocol.tasks import Queues
    from maitred.routing.names import QueueId

    nodes = [view.address for view in client.nodes()]
    answers = await each(nodes, lambda node: client.request(Queues(0, 0), node=node))
    failed = [one for one in answers if isinstance(one, Silent)]
    if len(failed) == len(nodes):
        raise failed[0].error
    found = {
        QueueId(*queue)
        for one in answers
        if not isinstance(one, Silent)
        for queue in cast("QueuesFound", one).queues
    }
    return sorted((one for one in found if one.type == TASKS), key=label)


def meant(there: Present, name: str) -> list[ServingWorker]:
    """Those that somebody named. Several processes may share a name; then all of them are."""
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


def no_empty_name(name: str) -> None:
    """An empty name would mean everybody, or nobody."""
    if not name.strip():
        raise InvalidArgument(
            "A worker's name is empty.", remedy="`maitred admin worker list` shows them."
        )
