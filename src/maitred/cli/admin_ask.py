"""What commands ask of queues: many partitions at once, and who does not answer says why."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import click

from maitred.errors import MaitredError, UnknownQueue

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from maitred.client.client import AsyncClient
    from maitred.client.pending_client import PendingClient
    from maitred.protocol.tasks import PartitionDescription
    from maitred.routing.names import QueueId

_Item = TypeVar("_Item")
_Found = TypeVar("_Found")

AT_ONCE = 64
"""Requests of one command that are under way at a time: enough to keep every shard busy, and few
enough that those who work notice nothing."""

ROOT = 0
UNREACHABLE = "unreachable"


class Silent(NamedTuple):
    """The error of a party that did not answer."""

    error: MaitredError

    def __str__(self) -> str:
        said = " ".join(filter(None, (self.error.sentence, self.error.remedy)))
        return f"{said} [{self.error.code}]"

    def told(self) -> dict[str, str | None]:
        """For JSON."""
        error = self.error
        return {"code": error.code, "sentence": error.sentence, "remedy": error.remedy}


def connecting(url: str, seconds: float) -> PendingClient:
    """The client that all of these commands use."""
    from maitred.client.pending_client import PendingClient

    return PendingClient(url, timeout_seconds=seconds, connect_seconds=seconds)


async def each(
    items: Iterable[_Item], ask: Callable[[_Item], Awaitable[_Found]]
) -> list[_Found | Silent]:
    """Ask for every one of them, some at a time; the answers in the order of the items."""
    import asyncio

    turn = asyncio.Semaphore(AT_ONCE)

    async def one(item: _Item) -> _Found | Silent:
        async with turn:
            try:
                return await ask(item)
            except MaitredError as problem:
                return Silent(problem)

    return await asyncio.gather(*map(one, items))


def unreachable(silent: Mapping[int, Silent]) -> list[dict[str, object]]:
    """The partitions that did not answer, for JSON."""
    return [{"partition": at, "error": one.told()} for at, one in silent.items()]


def tell_unreachable(silent: Mapping[int, Silent]) -> None:
    """The same for people, on standard error."""
    for at, reason in silent.items():
        click.echo(f"partition {at}: {reason}", err=True)


async def described(client: AsyncClient, queue: QueueId, partition: int) -> PartitionDescription:
    """How one partition is."""
    from maitred.protocol.tasks import Describe

    answer = await client.request(Describe(*queue, partition, 0))
    return cast("PartitionDescription", answer)


async def all_described(
    client: AsyncClient, queue: QueueId
) -> tuple[PartitionDescription, list[PartitionDescription | Silent]]:
    """The root, which has to answer because it knows the counts; then all partitions."""
    try:
        root = await described(client, queue, ROOT)
    except UnknownQueue as problem:
        raise await nearest(client, queue, problem) from None
    others = await each(range(1, root.counts.read), lambda at: described(client, queue, at))
    return root, [root, *others]


async def nearest(client: AsyncClient, queue: QueueId, problem: UnknownQueue) -> MaitredError:
    """The same problem, with the name that may have been meant."""
    from maitred.protocol.tasks import Queues, QueuesFound

    try:
        found = await client.request(Queues(0, 0))
    except MaitredError:
        return problem  # who may not list queues hears of this one only
    names = [f"{one[0]}/{one[1]}" for one in cast("QueuesFound", found).queues]
    near = get_close_matches(f"{queue.namespace}/{queue.queue}", names, n=1)
    sentence = f"The queue {queue.namespace}/{queue.queue} does not exist."
    return UnknownQueue(sentence, remedy=f"Did you mean {near[0]!r}?" if near else None)


def plain(description: PartitionDescription) -> dict[str, Any]:
    """For JSON, with names instead of places."""
    from msgspec import to_builtins

    told: dict[str, Any] = to_builtins(description)
    counts = description.counts
    told["counts"] = {"read": counts.read, "write": counts.write, "version": counts.version}
    told["worker_details"] = [
        {"worker": name, "running": running, "heard_seconds_ago": ago}
        for name, running, ago in description.worker_details
    ]
    return told
