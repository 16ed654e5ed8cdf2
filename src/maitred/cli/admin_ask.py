"""Asking many partitions, queues or nodes at once; those that do not answer are listed by error."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar, cast

import click

from maitred.cli.admin_names import label
from maitred.errors import MaitredError, UnknownQueue

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from maitred.client.client import AsyncClient
    from maitred.protocol.messages import AnyAnswer, AnyRequest
    from maitred.protocol.tasks import PartitionDescription, QueuesFound
    from maitred.routing.names import QueueId

_Item = TypeVar("_Item")
_Found = TypeVar("_Found")

AT_ONCE = 64
"""Requests of one command that are in flight at a time: enough to keep every shard busy, and few
enough that tasks and queries are not delayed."""

ROOT = 0
UNREACHABLE = "unreachable"


class Silent(NamedTuple):
    """The error of a partition, queue or node that did not answer."""

    error: MaitredError

    def __str__(self) -> str:
        said = " ".join(filter(None, (self.error.sentence, self.error.remedy)))
        return f"{said} [{self.error.code}]"

    def told(self) -> dict[str, str | None]:
        """Return the error for JSON."""
        error = self.error
        return {"code": error.code, "sentence": error.sentence, "remedy": error.remedy}


class Answers(NamedTuple, Generic[_Item, _Found]):
    """The answers of those that were asked, and the errors of those that did not answer, both in
    the order of the items."""

    found: dict[_Item, _Found]
    silent: dict[_Item, Silent]


async def each(
    items: Iterable[_Item], ask: Callable[[_Item], Awaitable[_Found]]
) -> Answers[_Item, _Found]:
    """Ask for every item, `AT_ONCE` at a time."""
    import asyncio

    turn = asyncio.Semaphore(AT_ONCE)

    async def one(item: _Item) -> _Found | Silent:
        async with turn:
            try:
                return await ask(item)
            except MaitredError as problem:
                return Silent(problem)

    asked = list(items)
    answers = Answers[_Item, _Found]({}, {})
    for item, answer in zip(asked, await asyncio.gather(*map(one, asked)), strict=True):
        if isinstance(answer, Silent):
            answers.silent[item] = answer
        else:
            answers.found[item] = answer
    return answers


async def each_node(client: AsyncClient, message: AnyRequest) -> Answers[str, AnyAnswer]:
    """Ask every node of the cluster, by address; raise the first error if none answers."""
    await client.members_known()
    nodes = [view.address for view in client.nodes()]
    answers = await each(nodes, lambda node: client.request(message, node=node))
    if not answers.found:
        raise next(iter(answers.silent.values())).error
    return answers


async def each_partition(
    client: AsyncClient, queue: QueueId, ask: Callable[[int], Awaitable[_Found]]
) -> Answers[int, _Found]:
    """Ask every partition of the queue, including removed ones: those have no tasks, but dead
    letters and damaged rows stay until a person decides. Partitions are numbered without gaps, so
    the first number that the node does not know ends the removed ones."""
    known = (await described(client, queue, ROOT)).counts.read
    answers = await each(range(known), ask)
    partition = known
    while True:
        removed = await each([partition], ask)
        problem = removed.silent.get(partition)
        if problem is not None and isinstance(problem.error, UnknownQueue):
            return answers
        answers.found.update(removed.found)
        answers.silent.update(removed.silent)
        if problem is not None:
            return answers
        partition += 1


def unreachable(kind: str, silent: Mapping[_Item, Silent]) -> list[dict[str, object]]:
    """Return those that did not answer, for JSON; `kind` is what they are, as in "partition"."""
    return [{kind: name, "error": reason.told()} for name, reason in silent.items()]


def print_unreachable(silent: Mapping[_Item, Silent], kind: str = "") -> None:
    """Print those that did not answer on standard error; `kind` goes before numbers."""
    for name, reason in silent.items():
        click.echo(f"{kind} {name}: {reason}".lstrip(), err=True)


async def described(client: AsyncClient, queue: QueueId, partition: int) -> PartitionDescription:
    """Ask one partition for its state."""
    from maitred.protocol.tasks import Describe

    answer = await client.request(Describe(*queue, partition, 0))
    return cast("PartitionDescription", answer)


async def with_suggestion(
    client: AsyncClient, queue: QueueId, problem: UnknownQueue
) -> MaitredError:
    """Return the error with the existing queue that the caller may have meant as its remedy."""
    from maitred.protocol.tasks import Queues

    try:
        found = cast("QueuesFound", await client.request(Queues(0, 0)))
    except MaitredError:
        return problem  # a user who may not list queues gets no suggestion
    names = [f"{namespace}/{name}" for namespace, name, _ in found.queues]
    near = get_close_matches(label(queue), names, n=1)
    return UnknownQueue(
        f"The queue {label(queue)} does not exist.",
        remedy=f"Did you mean {near[0]!r}?" if near else None,
    )
