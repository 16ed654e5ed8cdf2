"""Asking many partitions, queues or nodes at once; those that do not answer are listed by error.

The command line imports this for its help and its completion, so asyncio and the messages are
loaded only when something is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar, cast

from maitred.errors import (
    InvalidArgument,
    MaitredError,
    PermissionDenied,
    UnknownQueue,
    UnknownRequest,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from maitred.client.client import AsyncClient
    from maitred.client.requester import Requester
    from maitred.protocol.messages import AnyAnswer, AnyRequest
    from maitred.protocol.tasks import PartitionDescription
    from maitred.routing.names import QueueId

_Item = TypeVar("_Item")
_Found = TypeVar("_Found")

AT_ONCE: Final = 64
"""Requests of one question that are in flight at a time: enough to keep every shard busy, and few
enough that tasks and queries are not delayed."""

ROOT: Final = 0
"""The partition that knows the partition counts of its queue."""


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
    client: Requester, queue: QueueId, ask: Callable[[int], Awaitable[_Found]]
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


def is_refusal(problem: MaitredError) -> bool:
    """Whether the error is about the request and its user, so that every partition would refuse it,
    rather than about one partition that is away or unknown."""
    return isinstance(problem, PermissionDenied | InvalidArgument) and not isinstance(
        problem, UnknownQueue
    )


async def inspect(
    client: Requester,
    message: AnyRequest,
    timeout: float | None = None,  # noqa: ASYNC109 - it travels with the request
) -> AnyAnswer:
    """Ask a partition to list, show or change tasks; an older node cannot, and the error says so in
    words."""
    try:
        return await client.request(message, timeout)
    except UnknownRequest:
        raise UnknownRequest(
            "The node that has the partition can neither show nor change single tasks: it runs an "
            "older release of maitred.",
            remedy="Upgrade it.",
        ) from None


async def described(
    client: Requester,
    queue: QueueId,
    partition: int,
    timeout: float | None = None,  # noqa: ASYNC109 - it travels with the request
) -> PartitionDescription:
    """Ask one partition for its state."""
    from maitred.protocol.tasks import Describe

    answer = await client.request(Describe(*queue, partition, 0), timeout)
    return cast("PartitionDescription", answer)
